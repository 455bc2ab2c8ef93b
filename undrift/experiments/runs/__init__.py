"""What stays of a run: its directory, checkpoints, metrics and report."""
