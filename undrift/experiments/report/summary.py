"""The results of a report, one row per method: who is the baseline, who is best, what it cost to get there."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.report.load import Method, Records
from undrift.experiments.report.stats import (
    Cost,
    cost_by_share,
    cost_to_reach,
    default_last,
    final_quality,
    mean_over_seeds,
    mean_timing,
    relative_change,
    rounds_to_reach,
)
from undrift.metrics.quality import higher_is_better, spread


@dataclass(frozen=True, eq=False)
class Row:
    """A method: how good it became, and what that cost.

    finals        the final quality of each seed; mean and std over seeds, NaN if not finite, std None for a single seed
    to_baseline   the cost of the baseline's final quality, by C.3; to_target: the cost of the target
    seed_rounds   the rounds in which each seed alone reached the baseline's quality, None for never
    timing        by name, for runs in virtual time
    """

    method: Method
    has_metric: bool
    finals: tuple[float, ...]
    mean: float
    std: float | None
    total_bytes: float | None
    total_seconds: float | None
    total_virtual: float | None  # seconds of the virtual clock, where there is one
    to_baseline: Cost
    to_target: Cost
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
    rows: tuple[Row, ...]
    answer: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def higher(self) -> bool:
        return higher_is_better(self.metric)

    @property
    def timed(self) -> bool:
        """Whether there is a virtual clock."""
        return any(row.total_virtual is not None for row in self.rows)

    @property
    def compared(self) -> bool:
        """Whether there are methods to compare with the baseline."""
        return len(self.rows) > 1

    @cached_property
    def best(self) -> Row | None:
        """The best final quality, of methods whose runs have all finished if there are such."""
        rows = [row for row in self.rows if math.isfinite(row.mean)]
        rows = [row for row in rows if row.method.ended_well] or rows
        pick = max if self.higher else min
        return pick(rows, key=lambda row: row.mean) if rows and self.compared else None

    @property
    def base(self) -> Row:
        return self.row(self.baseline)

    def row(self, label: str) -> Row:
        return next(row for row in self.rows if row.label == label)

    def marks(self, row: Row) -> list[str]:
        """Whether a method is the best, or what the others are compared with."""
        return ["best"] * (row is self.best) + ["baseline"] * (self.compared and row is self.base)

    def change(self, row: Row, cost: Callable[[Row], float | None]) -> float | None:
        """A cost of a method relative to that of the baseline."""
        return relative_change(cost(row), cost(self.base))


def summarise_methods(
    records: Records,
    *,
    target: float | None = None,
    baseline: str | None = None,
    metric: str | None = None,
    last: int | None = None,
) -> Summary:
    """Final quality and its cost for every method.

    The baseline is the experiment's, else "fedavg", else the first method; the target is the experiment's unless given;
    the metric is the accuracy if there is one, else the loss; `last` is a tenth of the evaluated rounds, at most 100.
    """
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
) -> Row:
    finals = tuple(final_quality(run, metric, last) for run in method.runs)
    return Row(
        method=method,
        has_metric=any(metric in run.metrics for run in method.runs),
        finals=finals,
        mean=sum(finals) / len(finals),
        std=spread(finals),
        total_bytes=mean_over_seeds(method, lambda run: run.bytes[-1]),
        total_seconds=mean_over_seeds(method, lambda run: run.seconds.sum()),
        total_virtual=mean_over_seeds(method, lambda run: run.virtual[-1]),
        to_baseline=cost_by_share(method, metric, quality),
        to_target=cost_to_reach(method, metric, target),
        seed_rounds=tuple(rounds_to_reach(run, metric, quality) for run in method.runs),
        timing=mean_timing(method),
    )
