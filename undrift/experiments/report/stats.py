"""The numbers of a report, each defined here once, as functions of the recorded rounds.

final quality      of a run: the mean of a metric over its last evaluated rounds; of a method: mean and std over seeds
rounds to reach X  the first evaluated round in which the mean over all seeds is as good as X
cost to reach X    what was spent by the end of that round
cost by share      of the baseline's final quality, by the three steps of appendix C.3 of the GHBM paper
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from undrift.experiments.report.load import Method, RunRecord
from undrift.metrics.quality import higher_is_better, usual_last

ROUNDING = 1e-12  # a mean of equal numbers may differ from them by this much


def finite(value: float) -> float | None:
    """The number, None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def mean_over_seeds(method: Method, value: Callable[[RunRecord], float]) -> float | None:
    """The mean of a number over a method's runs, None if one of them is not finite."""
    return finite(sum(float(value(run)) for run in method.runs) / len(method.runs))


def bytes_per_visit(method: Method) -> tuple[float, float]:
    """What one client receives and sends in one round, on average."""
    visits = max(1, sum(run.visits for run in method.runs))
    down = sum(float(run.bytes_down.sum()) for run in method.runs)
    return down / visits, sum(float(run.bytes_up.sum()) for run in method.runs) / visits


def count_staleness(method: Method) -> np.ndarray:
    """How many updates, of all seeds, had a staleness of 0, 1, 2, ..."""
    counts = np.zeros(max((len(each.counts) for each in method.timings), default=0), dtype=int)
    for each in method.timings:
        counts[: len(each.counts)] += each.counts
    return counts


def mean_timing(method: Method) -> dict[str, float]:
    """Totals of runs in virtual time, mean over seeds, and staleness; empty if not all runs have recorded them."""
    runs, counts = method.timings, count_staleness(method)
    if not runs:
        return {}
    mean = {name: sum(run.totals[name] for run in runs) / len(runs) for name in runs[0].totals}
    return mean | {
        "staleness": float(counts @ np.arange(len(counts)) / max(counts.sum(), 1)),
        "max_staleness": max(len(counts) - 1, 0),
        "share_lost": mean["lost"] / max(mean["updates"] + mean["lost"], 1),
        "wait": mean["waited_seconds"] / max(mean["updates"], 1),  # of an update
    }


# final quality


def default_last(runs: Sequence[RunRecord]) -> int:
    """How many evaluated rounds a final quality is the mean of, by the shortest run."""
    return usual_last(min(run.planned // run.every for run in runs))


def final_quality(run: RunRecord, metric: str, last: int) -> float:
    """The mean of a metric over the last evaluated rounds; NaN if one of them is not finite."""
    if metric not in run.metrics or not run.evaluated.any():
        return math.nan
    return float(run.metrics[metric][run.evaluated][-last:].mean())


# curves


@dataclass(frozen=True)
class Curve:
    """A metric of a method over its evaluated rounds: mean, lowest and highest of the seeds that have the round.

    bytes, seconds, virtual   by the end of the round, mean over seeds; NaN where not known
    common                    how many points all seeds have; later means are those of the seeds that are left
    """

    round: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bytes: np.ndarray
    seconds: np.ndarray
    virtual: np.ndarray
    common: int


def mean_curve(method: Method, metric: str) -> Curve:
    """Average a method's runs round by round; a mean is NaN if one of the runs is not finite there."""
    runs = method.runs
    values = [run.metrics.get(metric, run.seconds) for run in runs]
    metrics = _stack(values, [run.evaluated & (metric in run.metrics) for run in runs])
    at = np.unique(np.concatenate([np.flatnonzero(run.evaluated) for run in runs]))
    return Curve(
        round=at + 1,
        mean=metrics.mean(0).filled(np.nan)[at],
        low=metrics.min(0).filled(np.nan)[at],
        high=metrics.max(0).filled(np.nan)[at],
        bytes=_mean_clock([run.bytes_down + run.bytes_up for run in runs])[at],
        seconds=_mean_clock([run.seconds for run in runs])[at],
        virtual=_mean_clock([np.diff(run.virtual, prepend=0.0) for run in runs])[at],
        common=int((at < method.common).sum()),
    )


def _mean_clock(increments: Sequence[np.ndarray]) -> np.ndarray:
    """A cumulative count: each round adds the mean over the runs that have it, so that it never runs backwards."""
    known = [np.isfinite(each) for each in increments]
    return np.cumsum(_stack(increments, known).mean(0).filled(np.nan))


def _stack(arrays: Sequence[np.ndarray], known: Sequence[np.ndarray]) -> np.ma.MaskedArray:
    """One row per run, masked where a run has nothing."""
    stacked = np.ma.masked_all((len(arrays), max(map(len, arrays))))
    for row, array, mask in zip(stacked, arrays, known, strict=True):
        row[: len(array)] = np.ma.array(array, mask=~mask)
    return stacked


# the cost of reaching a quality


@dataclass(frozen=True)
class Cost:
    """What a method spent to reach a quality; None is what is not known, or was never reached.

    reached   None if the method did not record the metric, or there is no quality to reach
    share     rounds / planned rounds
    bytes     down + up over all clients
    seconds   of the machine that ran it; virtual: of the virtual clock
    """

    reached: bool | None = None
    rounds: int | None = None
    share: float | None = None
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
    if quality is None or metric not in run.metrics:
        return None
    rounds, values = run.round[run.evaluated], run.metrics[metric][run.evaluated]
    return first_round(rounds, values, quality, higher_is_better(metric))


def cost_to_reach(method: Method, metric: str, quality: float | None) -> Cost:
    """What was spent up to the first round in which the mean over all seeds reaches a quality."""
    if quality is None or not any(metric in run.metrics for run in method.runs):
        return Cost()
    curve, higher = mean_curve(method, metric), higher_is_better(metric)
    r = first_round(curve.round[: curve.common], curve.mean[: curve.common], quality, higher)
    if r is None:
        return Cost(reached=False)
    at = np.searchsorted(curve.round, r)
    spent = [finite(clock[at]) for clock in (curve.bytes, curve.seconds, curve.virtual)]
    return Cost(True, r, r / method.planned, *spent)


def cost_by_share(method: Method, metric: str, quality: float | None) -> Cost:
    """The cost of the baseline's quality by C.3: r, the rounds to reach it (all T if never); s = r / T; s of what T rounds
    cost.  A run that ended early counts as if it had continued at the same cost per round.  The virtual clock is read, not
    shared out."""
    cost, T = cost_to_reach(method, metric, quality), method.planned
    if cost.reached is None:
        return cost
    share = 1.0 if cost.share is None else cost.share
    total_bytes = mean_over_seeds(method, lambda run: run.bytes[-1] * T / run.recorded)
    total_seconds = mean_over_seeds(method, lambda run: _seconds_per_round(run) * T)
    return replace(
        cost,
        rounds=T if cost.rounds is None else cost.rounds,
        share=share,
        bytes=None if total_bytes is None else total_bytes * share,
        seconds=None if total_seconds is None else total_seconds * share,
    )


def relative_change(cost: float | None, baseline: float | None) -> float | None:
    """A cost relative to the baseline's: -0.25 is a quarter less.

    >>> relative_change(75.0, 100.0)
    -0.25
    """
    return None if cost is None or not baseline else cost / baseline - 1


def _seconds_per_round(run: RunRecord) -> float:
    known = run.seconds[np.isfinite(run.seconds)]
    return float(known.mean()) if len(known) else math.nan
