"""What is recorded of a run: metrics by name, functions as metrics, and what quality means.

registry.py    metrics by name, @ud.metric, and Probe, what a metric may look at
theory.py      what the papers' proofs follow: drift, momentum_error, ...; gradients.py   those of all clients at once
evaluator.py   which metrics a run records, and when
quality.py     higher or lower is better, final quality, spread over seeds
"""

from undrift.metrics.registry import Metric, Probe, metric

__all__ = ["Metric", "Probe", "metric"]
