"""Hyper-parameters chosen fairly: the same budget, seeds and data for every method."""
