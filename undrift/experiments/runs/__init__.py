"""What stays of a run: its directory, checkpoints, figures and report."""
