"""What a quality costs, each cost defined here once.

to reach X       everything spent up to and in the first evaluated round in which the mean over all seeds is as good as X; for a
                 method that never is, all that it spent is a lower bound
GHBM's Table 4   (appendix C.3) r/T of what all T rounds cost, where the baseline is charged for all its rounds: r = T
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from undrift.experiments.report.curves import finite_or_none, mean_curve, mean_over_seeds
from undrift.experiments.report.load import Method, RunRecord
from undrift.metrics.quality import higher_is_better

ROUNDING = 1e-12  # a mean of equal numbers may differ from them by this much


@dataclass(frozen=True)
class CostToReach:
    """What a method had spent by the end of the round in which it reached a quality; None is what is not known.

    reached   False if it never did: then all that it spent, which was not enough; None if the method did not record the
              metric, or there is no quality to reach
    bytes     down + up over all clients
    seconds   of the machine that ran it; virtual: of the virtual clock
    """

    reached: bool | None = None
    rounds: int | None = None
    bytes: float | None = None
    seconds: float | None = None
    virtual: float | None = None


def first_round(rounds: np.ndarray, values: np.ndarray, quality: float, higher: bool) -> int | None:
    """The first round whose value is as good as a quality.

    >>> first_round(np.array([10, 20, 30]), np.array([0.2, 0.6, 0.5]), 0.5, higher=True)
    20
    """
    slack = ROUNDING * max(1.0, abs(quality))
    good = values >= quality - slack if higher else values <= quality + slack
    return int(rounds[good.argmax()]) if good.any() else None


def rounds_to_reach(run: RunRecord, metric: str, quality: float | None) -> int | None:
    """The first round in which one run alone reaches a quality."""
    higher = higher_is_better(metric)
    if quality is None or higher is None or metric not in run.metrics:
        return None
    rounds, values = run.round[run.evaluated], run.metrics[metric][run.evaluated]
    return first_round(rounds, values, quality, higher)


def cost_to_reach(method: Method, metric: str, quality: float | None) -> CostToReach:
    """What was spent up to and in the first round in which the mean over all seeds reaches a quality."""
    higher = higher_is_better(metric)
    if quality is None or higher is None or not any(metric in run.metrics for run in method.runs):
        return CostToReach()
    curve = mean_curve(method, metric)
    r = first_round(curve.round[: curve.common], curve.mean[: curve.common], quality, higher)
    if r is None:
        return replace(total_cost(method), reached=False)
    at = np.searchsorted(curve.round, r)
    spent = [finite_or_none(clock[at]) for clock in (curve.bytes, curve.seconds, curve.virtual)]
    return CostToReach(True, r, *spent)


def total_cost(method: Method) -> CostToReach:
    """What all recorded rounds cost, mean over seeds."""
    return CostToReach(
        rounds=method.common,
        bytes=mean_over_seeds(method, lambda run: run.bytes[-1]),
        seconds=mean_over_seeds(method, lambda run: run.seconds.sum()),
        virtual=mean_over_seeds(method, lambda run: run.virtual[-1]),
    )


def table4_cost(method: Method, cost: CostToReach, is_baseline: bool) -> CostToReach:
    """The cost of the baseline's quality as GHBM's Table 4 has it (appendix C.3): r, the rounds to reach it, T if never and
    for the baseline itself; s = r / T; s of what T rounds cost.  A run that ended early counts as if it had continued at the
    same cost per round."""
    if cost.reached is None:
        return cost
    T = method.planned
    r = cost.rounds if cost.reached and not is_baseline and cost.rounds is not None else T
    sent = mean_over_seeds(method, lambda run: run.bytes[-1] * r / run.recorded)
    return CostToReach(cost.reached, r, sent, mean_over_seeds(method, lambda run: _seconds_per_round(run) * r))


def _seconds_per_round(run: RunRecord) -> float:
    known = run.seconds[np.isfinite(run.seconds)]
    return float(known.mean()) if len(known) else math.nan
