"""What the quality of runs means, for reports and sweeps alike."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

BUILT_IN = {  # whether more is better, of what is recorded unless it is a user's
    **dict.fromkeys(("accuracy", "auroc", "f1", "r2"), True),
    **dict.fromkeys(("loss", "mae", "grad_norm", "gap", "distance", "epsilon", "lora_bias"), False),
    **dict.fromkeys(("drift", "momentum_error", "control_error", "dissimilarity", "chi2", "tau_error"), False),
}
JUDGED_BY = ("accuracy", "loss")  # what ranks runs by default: the first that was recorded
SAID: dict[str, bool] = {}  # the same of users' metrics
LAST = 100  # rounds that the papers average over, at most


def higher_is_better(metric: str) -> bool | None:
    """Whether more of a metric is better, None where that is not known: it is never guessed.

    >>> higher_is_better("client_accuracy_worst_tenth"), higher_is_better("grad_norm"), higher_is_better("kappa")
    (True, False, None)
    """
    base = _base(metric)
    return next((known[name] for known in (SAID, BUILT_IN) for name in (metric, base) if name in known), None)


def usual_first(metrics: Iterable[str]) -> list[str]:
    """Metric names, with those that rank runs by default first.

    >>> usual_first(["f1", "loss", "auroc", "accuracy"])
    ['accuracy', 'loss', 'f1', 'auroc']
    """
    names = dict.fromkeys(metrics)
    return [*(name for name in JUDGED_BY if name in names), *(name for name in names if name not in JUDGED_BY)]


def say_which_is_better(directions: Mapping[str, bool], again: bool = True) -> None:
    """Note of users' metrics whether more is better; unless `again`, what has been said already stays."""
    SAID.update({name: higher for name, higher in directions.items() if again or name not in SAID})


def not_known(metric: str) -> str:
    """The sentence about a metric of which it is not known whether more is better."""
    return (
        f"Whether more or less {metric} is better is not known, so nothing is ranked: say it where the metric is "
        f'defined, @ud.metric("{metric}", higher=True), or of this report, higher=True (`--higher`, `--lower`).'
    )


def _base(metric: str) -> str:
    """The metric behind a name, whoever it is of: of clients, one or the worst, of training data, after some steps.

    >>> [_base(name) for name in ("client: accuracy clinic loss", "fine_tuned_f1", "top5_accuracy", "tau_error:10")]
    ['loss', 'f1', 'accuracy', 'tau_error']
    """
    name = metric.split()[-1] if metric.startswith("client: ") else metric  # a client's name is no metric
    name = re.sub(r"^(train|client|fine_tuned|top\d+)_", "", name)
    return re.sub(r"(_worst(_tenth)?|:\d+)$", "", name)


def is_share(metric: str) -> bool:
    """Whether a metric is shown in percent."""
    return _base(metric) == "accuracy"


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
