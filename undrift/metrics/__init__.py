"""What is recorded of a run: metrics by name, functions as metrics, and what quality means."""
