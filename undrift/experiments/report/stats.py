"""The numbers of a report, each defined here once, as functions of the recorded rounds.

final quality   of a run: the mean of a metric over its last evaluated rounds; of a method: mean and std over seeds
local steps     of a client in a round: the least, the median and the most
costs           in costs.py
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput, setting, unknown
from undrift.experiments.report.costs import CostToReach, cost_to_reach, rounds_to_reach, table4_cost, total_cost
from undrift.experiments.report.curves import mean_over_seeds
from undrift.experiments.report.load import Method, Records, RunRecord
from undrift.metrics.quality import as_target, higher_is_better, is_share, say_which_is_better, spread, usual_last

log = logging.getLogger("undrift")


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


def final_rounds(run: RunRecord, last: int | None) -> int:
    """How many evaluated rounds the final quality of a run is the mean of; nothing but the run decides it."""
    evaluated = run.planned // run.every
    return usual_last(evaluated) if last is None else max(1, min(last, evaluated))


def final_quality(run: RunRecord, metric: str, last: int | None) -> float:
    """The mean of a metric over the last evaluated rounds; NaN if one of them is not finite."""
    if metric not in run.metrics or not run.evaluated.any():
        return math.nan
    return float(run.metrics[metric][run.evaluated][-final_rounds(run, last) :].mean())


def local_steps(run: RunRecord) -> tuple[float, float, float] | None:
    """The least, the median and the most local steps of a client in a round; None where that was not recorded."""
    steps, epochs, batch = (run.local.get(key) for key in ("steps", "epochs", "batch"))
    if isinstance(steps, Mapping) and "geometric" in steps:
        return 1, 1 / steps["geometric"], math.inf  # the mean, of a draw without end
    if steps is not None:
        return _span(steps)
    sizes = np.array(run.federation.get("sizes") or [])
    if not len(sizes) or batch is None:
        return None
    passes = _span(1 if epochs is None else epochs)
    each = np.ones(len(sizes)) if batch == "all" else np.ceil(sizes / batch)
    return float(passes[0] * each.min()), float(passes[1] * np.median(each)), float(passes[2] * each.max())


def _span(counts: Any) -> tuple[float, float, float]:
    """Of a number, a list, or a draw from low to high."""
    if isinstance(counts, Mapping):
        counts = [counts["low"], counts["high"]]
    values = counts if isinstance(counts, list) else [counts]
    return float(min(values)), float(np.median(values)), float(max(values))


def same_curve(a: Method, b: Method) -> bool:
    """Whether two methods have recorded the same metrics to the last digit, seed by seed."""
    return len(a.runs) == len(b.runs) and all(
        x.seed == y.seed
        and x.metrics.keys() == y.metrics.keys()
        and all(np.array_equal(x.metrics[name], y.metrics[name], equal_nan=True) for name in x.metrics)
        for x, y in zip(a.runs, b.runs, strict=True)
    )


# the summary: one row per method


@dataclass(frozen=True, eq=False)
class MethodSummary:
    """A method: how good it became, and what that cost.

    finals        the final quality of each seed; mean and std over seeds, NaN if not finite, std None for a single seed
    total         the cost of all rounds; to_baseline, to_target: of the baseline's final quality and of the target
    table4        that of the baseline's final quality as GHBM's Table 4 has it
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
    table4: CostToReach
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
    last      the number of evaluated rounds that a final quality is the mean of; None: a tenth of each run's own
    answer    sentences, the first one is the headline; notes: what to bear in mind when reading them
    """

    records: Records
    metric: str
    last: int | None
    baseline: str
    quality: float | None
    target: float | None
    rows: tuple[MethodSummary, ...]
    answer: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def higher(self) -> bool | None:
        """Whether more is better, None where nobody has said it."""
        return higher_is_better(self.metric)

    @property
    def timed(self) -> bool:
        """Whether there is a virtual clock."""
        return any(row.total.virtual is not None for row in self.rows)

    @property
    def compared(self) -> bool:
        """Whether there are methods to compare with the baseline: on the same data, for nothing else can be ranked."""
        return len(self.rows) > 1 and len(self.records.data) == 1

    @cached_property
    def best(self) -> MethodSummary | None:
        """The best final quality, of methods whose runs have all finished if there are such."""
        rows = [row for row in self.rows if math.isfinite(row.mean)]
        rows = [row for row in rows if row.method.ended_well] or rows
        pick = max if self.higher else min
        ranked = rows and self.compared and self.higher is not None
        return pick(rows, key=lambda row: row.mean) if ranked else None

    def same_as_baseline(self, row: MethodSummary) -> bool:
        """Whether another method has the baseline's curve to the last digit."""
        return row is not self.base and same_curve(row.method, self.base.method)

    @property
    def base(self) -> MethodSummary:
        return self.row(self.baseline)

    def row(self, label: str) -> MethodSummary:
        return next(row for row in self.rows if row.label == label)

    def marks(self, row: MethodSummary) -> list[str]:
        """Whether a method is the best, or what the others are compared with."""
        return ["best"] * (row is self.best) + ["baseline"] * (self.compared and row is self.base)

    def change(self, row: MethodSummary, cost: Callable[[MethodSummary], float | None]) -> float | None:
        """A cost of a method relative to that of the baseline: -0.25 is a quarter less."""
        spent, base = cost(row), cost(self.base)
        return None if spent is None or not base or not self.compared else spent / base - 1


def summarise_methods(
    records: Records,
    *,
    target: float | None = None,
    baseline: str | None = None,
    metric: str | None = None,
    last: int | None = None,
    higher: bool | None = None,
) -> Summary:
    """Final quality and its cost for every method; the options are those of `summarise`."""
    metric = records.metrics[0] if metric is None else metric
    if metric not in records.metrics:
        raise unknown(setting("metric", metric=...), metric, records.metrics)
    if higher is not None:
        say_which_is_better({metric: higher})
    if last is not None and last < 1:
        raise InvalidInput(f"last is a number of rounds from 1, got {last}")
    base = _find_baseline(records, baseline)
    if target is None:
        given = [each.settings["target"] for each in records.experiments if "target" in each.settings]
        target = next((float(each) for each in given if as_target(each, metric) is not None), None)
        if given and target is None:
            log.warning("the target %g cannot be a value of %s: its cost is not told", given[0], metric)
    else:
        check_target(target, metric)
    target = None if target is None else as_target(target, metric)
    quality = mean_over_seeds(base, lambda run: final_quality(run, metric, last))
    rows = [_summarise_method(each, metric, last, base, quality, target) for each in records.methods]
    lasts = {final_rounds(run, last) for run in records.runs}
    return Summary(records, metric, lasts.pop() if len(lasts) == 1 else None, base.label, quality, target, tuple(rows))


def check_target(target: float | None, metric: str) -> None:
    """Refuse a target that a metric cannot have."""
    if target is not None and as_target(target, metric) is None:
        allowed = f"a share such as 0.9 or percent such as 90 of {metric}" if is_share(metric) else "a number"
        raise InvalidInput(f"{setting('target', target=...)} is {allowed}, got {target:g}")


def _find_baseline(records: Records, label: str | None) -> Method:
    methods = {method.label: method for method in records.methods}
    if label is not None:
        if label not in methods:
            raise unknown(setting("baseline", baseline=...), label, methods)
        return methods[label]
    firsts = [(method, method.runs[0]) for method in records.methods]
    named = [m for m, run in firsts if run.experiment.settings.get("baseline") == run.method]
    usual = [m for m, run in firsts if run.method == "fedavg"]
    return (*named, *usual, *records.methods)[0]


def _summarise_method(
    method: Method, metric: str, last: int | None, base: Method, quality: float | None, target: float | None
) -> MethodSummary:
    to_baseline = cost_to_reach(method, metric, quality)
    finals = tuple(final_quality(run, metric, last) for run in method.runs)
    return MethodSummary(
        method=method,
        has_metric=any(metric in run.metrics for run in method.runs),
        finals=finals,
        mean=sum(finals) / len(finals),
        std=spread(finals),
        total=total_cost(method),
        to_baseline=to_baseline,
        table4=table4_cost(method, to_baseline, is_baseline=method is base),
        to_target=cost_to_reach(method, metric, target),
        seed_rounds=tuple(rounds_to_reach(run, metric, quality) for run in method.runs),
        timing=mean_timing(method),
    )
