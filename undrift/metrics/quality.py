"""What the quality of runs means, for reports and sweeps alike."""

import math
from collections.abc import Sequence

import numpy as np

HIGHER = ("accuracy", "auc", "auroc", "f1", "precision", "recall", "score")
WHOLE = ("r2",)  # which is better when higher, too, but may be part of another word
LAST = 100  # rounds that the papers average over, at most


def higher_is_better(metric: str) -> bool:
    """Whether more of a metric is better: so with accuracies, not with losses, norms and distances.

    >>> higher_is_better("client_accuracy_worst"), higher_is_better("grad_norm")
    (True, False)
    """
    name = metric.lower()
    if name.startswith("client: "):  # whose name, whatever it is, is no metric
        name = name.split()[-1]
    return any(word in name for word in HIGHER) or any(word in name.split("_") for word in WHOLE)


def is_share(metric: str) -> bool:
    """Whether a metric is shown in percent."""
    return "accuracy" in metric.lower()


def as_target(target: float, metric: str) -> float | None:
    """A target as the metric is recorded; percents of a share are understood.  None if it cannot be one.

    >>> as_target(95, "accuracy"), as_target(0.95, "accuracy"), as_target(950, "accuracy"), as_target(95, "loss")
    (0.95, 0.95, None, 95)
    """
    if is_share(metric) and target > 1:
        target = target / 100
    possible = math.isfinite(target) and (not is_share(metric) or 0 < target <= 1)
    return target if possible else None


def usual_last(evaluated: int) -> int:
    """How many of so many evaluated rounds a final quality is the mean of: a tenth, at least 1, at most 100.

    >>> usual_last(5), usual_last(200), usual_last(20_000)
    (1, 20, 100)
    """
    return max(1, min(LAST, evaluated // 10))


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds (n - 1 in the denominator), None for a single one.

    >>> spread([1.0, 3.0]), spread([1.0])
    (1.4142135623730951, None)
    """
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
