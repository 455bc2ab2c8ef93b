"""Run directories, checkpoints and metrics; how runs are started, resumed and executed side by side."""
