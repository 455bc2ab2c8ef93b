"""The numbers of a report, each defined here once, as functions of the recorded rounds.

final quality      of a run: the mean of a metric over its last evaluated rounds; of a method: mean and std over seeds
rounds to reach X  the first evaluated round in which the mean over all seeds is as good as X
cost to reach X    what was spent by the end of that round
cost by share      of the baseline's final quality, by the three steps of appendix C.3 of the GHBM paper
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.report.load import Method, Records, RunRecord
from undrift.metrics.quality import higher_is_better, spread, usual_last

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


def default_last(runs: Sequence[RunRecord]) -> int:
    """How many evaluated rounds a final quality is the mean of, by the shortest run."""
    return usual_last(min(run.planned // run.every for run in runs))


def final_quality(run: RunRecord, metric: str, last: int) -> float:
    """The mean of a metric over the last evaluated rounds; NaN if one of them is not finite."""
    if metric not in run.metrics or not run.evaluated.any():
        return math.nan
    return float(run.metrics[metric][run.evaluated][-last:].mean())


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
    known = [run.evaluated & (metric in run.metrics) for run in runs]
    metrics = _stack([run.metrics.get(metric, run.evaluated) for run in runs], known)
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
class CostToReach:
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


def cost_to_reach(method: Method, metric: str, quality: float | None) -> CostToReach:
    """What was spent up to the first round in which the mean over all seeds reaches a quality."""
    if quality is None or not any(metric in run.metrics for run in method.runs):
        return CostToReach()
    curve, higher = mean_curve(method, metric), higher_is_better(metric)
    r = first_round(curve.round[: curve.common], curve.mean[: curve.common], quality, higher)
    if r is None:
        return CostToReach(reached=False)
    at = np.searchsorted(curve.round, r)
    spent = [finite(clock[at]) for clock in (curve.bytes, curve.seconds, curve.virtual)]
    return CostToReach(True, r, r / method.planned, *spent)


def total_cost(method: Method) -> CostToReach:
    """What all recorded rounds cost, mean over seeds."""
    return CostToReach(
        rounds=method.common,
        bytes=mean_over_seeds(method, lambda run: run.bytes[-1]),
        seconds=mean_over_seeds(method, lambda run: run.seconds.sum()),
        virtual=mean_over_seeds(method, lambda run: run.virtual[-1]),
    )


def cost_by_share(method: Method, metric: str, quality: float | None) -> CostToReach:
    """The cost of the baseline's quality by C.3: r, the rounds to reach it (all T if never); s = r / T; s of what T rounds
    cost.  A run that ended early counts as if it had continued at the same cost per round.  The virtual clock is read, not
    shared out."""
    cost, T = cost_to_reach(method, metric, quality), method.planned
    if cost.reached is None:
        return cost
    share = cost.share if cost.share is not None else 1.0
    sent = mean_over_seeds(method, lambda run: run.bytes[-1] * T / run.recorded * share)
    seconds = mean_over_seeds(method, lambda run: _seconds_per_round(run) * T * share)
    return replace(cost, rounds=cost.rounds or T, share=share, bytes=sent, seconds=seconds)


def _seconds_per_round(run: RunRecord) -> float:
    known = run.seconds[np.isfinite(run.seconds)]
    return float(known.mean()) if len(known) else math.nan


# the summary: one row per method


@dataclass(frozen=True, eq=False)
class MethodSummary:
    """A method: how good it became, and what that cost.

    finals        the final quality of each seed; mean and std over seeds, NaN if not finite, std None for a single seed
    total         the cost of all rounds; to_baseline: of the baseline's final quality, by C.3; to_target: of the target
    seed_rounds   the rounds in which each seed alone reached the baseline's quality, None for never
    timing        by name, for runs in virtual time
    """

    method: Method
    has_metric: bool
    finals: tuple[float, ...]
    mean: float
    std: float | None
    total: CostToReach
    to_baseline: CostToReach
    to_target: CostToReach
    seed_rounds: tuple[int | None, ...]
    timing: Mapping[str, float]

    @property
    def label(self) -> str:
        return self.method.label

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.method.runs)


@dataclass(frozen=True, eq=False)
class Summary:
    """The results, method by method.

    quality   the baseline's final quality, None if it is not finite
    last      the number of evaluated rounds (at most) that a final quality is the mean of
    answer    sentences, the first one is the headline; notes: what to bear in mind when reading them
    """

    records: Records
    metric: str
    last: int
    baseline: str
    quality: float | None
    target: float | None
    rows: tuple[MethodSummary, ...]
    answer: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def higher(self) -> bool:
        return higher_is_better(self.metric)

    @property
    def timed(self) -> bool:
        """Whether there is a virtual clock."""
        return any(row.total.virtual is not None for row in self.rows)

    @property
    def compared(self) -> bool:
        """Whether there are methods to compare with the baseline."""
        return len(self.rows) > 1

    @cached_property
    def best(self) -> MethodSummary | None:
        """The best final quality, of methods whose runs have all finished if there are such."""
        rows = [row for row in self.rows if math.isfinite(row.mean)]
        rows = [row for row in rows if row.method.ended_well] or rows
        pick = max if self.higher else min
        return pick(rows, key=lambda row: row.mean) if rows and self.compared else None

    @property
    def base(self) -> MethodSummary:
        return self.row(self.baseline)

    def row(self, label: str) -> MethodSummary:
        return next(row for row in self.rows if row.label == label)

    def marks(self, row: MethodSummary) -> list[str]:
        """Whether a method is the best, or what the others are compared with."""
        return ["best"] * (row is self.best) + ["baseline"] * (self.compared and row is self.base)

    def change(
        self, row: MethodSummary, cost: Callable[[MethodSummary], float | None]
    ) -> float | None:
        """A cost of a method relative to that of the baseline: -0.25 is a quarter less."""
        spent, base = cost(row), cost(self.base)
        return None if spent is None or not base else spent / base - 1


def summarise_methods(
    records: Records,
    *,
    target: float | None = None,
    baseline: str | None = None,
    metric: str | None = None,
    last: int | None = None,
) -> Summary:
    """Final quality and its cost for every method; the options are those of `summarise`."""
    metric = records.metrics[0] if metric is None else metric
    if metric not in records.metrics:
        raise unknown("metric", metric, records.metrics)
    if last is not None and last < 1:
        raise InvalidInput(f"last is a number of rounds from 1, got {last}")
    if target is not None and not math.isfinite(target):
        raise InvalidInput(f"target is a number, got {target}")
    base = _find_baseline(records, baseline)
    last = default_last(records.runs) if last is None else last
    targets = [target, *(each.settings.get("target") for each in records.experiments)]
    target = next((float(each) for each in targets if each is not None), None)
    quality = mean_over_seeds(base, lambda run: final_quality(run, metric, last))
    rows = [_summarise_method(each, metric, last, quality, target) for each in records.methods]
    return Summary(records, metric, last, base.label, quality, target, tuple(rows))


def _find_baseline(records: Records, label: str | None) -> Method:
    methods = {method.label: method for method in records.methods}
    if label is not None:
        if label not in methods:
            raise unknown("baseline", label, methods)
        return methods[label]
    firsts = [(method, method.runs[0]) for method in records.methods]
    named = [m for m, run in firsts if run.experiment.settings.get("baseline") == run.method]
    usual = [m for m, run in firsts if run.method == "fedavg"]
    return (*named, *usual, *records.methods)[0]


def _summarise_method(
    method: Method, metric: str, last: int, quality: float | None, target: float | None
) -> MethodSummary:
    finals = tuple(final_quality(run, metric, last) for run in method.runs)
    return MethodSummary(
        method=method,
        has_metric=any(metric in run.metrics for run in method.runs),
        finals=finals,
        mean=sum(finals) / len(finals),
        std=spread(finals),
        total=total_cost(method),
        to_baseline=cost_by_share(method, metric, quality),
        to_target=cost_to_reach(method, metric, target),
        seed_rounds=tuple(rounds_to_reach(run, metric, quality) for run in method.runs),
        timing=mean_timing(method),
    )
