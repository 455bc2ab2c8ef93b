"""Experiments: one configuration, run directories and checkpoints, sweeps, recipes, reports."""
