"""From recorded runs to the table: who is the baseline, who is best, what the others cost against it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.report.figures import (
    alone,
    change,
    cost,
    default_last,
    final,
    reach,
)
from undrift.experiments.report.load import Method, Records, load_runs
from undrift.experiments.report.summary import Row, Summary
from undrift.experiments.report.words import answer, notes
from undrift.metrics.quality import higher_is_better, spread


def summary(
    paths: Sequence[Path],
    *,
    target: float | None = None,
    baseline: str | None = None,
    figure: str | None = None,
    last: int | None = None,
) -> Summary:
    """Final quality and its price for the runs in some directories.

    The baseline is the experiment's, else "fedavg", else the first method; the target is the experiment's unless
    given; the figure is the accuracy if there is one, else the loss.
    """
    return summarised(load_runs(paths), target=target, baseline=baseline, figure=figure, last=last)


def summarised(
    records: Records,
    *,
    target: float | None,
    baseline: str | None,
    figure: str | None,
    last: int | None,
) -> Summary:
    """The same from runs that have been read."""
    if figure is None:
        figure = records.metrics[0]
    elif figure not in records.metrics:
        raise unknown("figure", figure, records.metrics)
    if last is not None and last < 1:
        raise InvalidInput(f"last is a number of rounds from 1, got {last}")
    if target is not None and not math.isfinite(target):
        raise InvalidInput(f"target is a number, got {target}")
    base = _baseline(records, baseline)
    last = default_last(records.runs) if last is None else last
    target = _target(records) if target is None else target
    higher = higher_is_better(figure)
    quality = _row(base, figure, last).mean
    quality = quality if math.isfinite(quality) else None
    rows = [
        _priced(_row(method, figure, last), method, figure, higher, quality, target)
        for method in records.methods
    ]
    rows = _against([replace(row, baseline=row.label == base.label) for row in rows])
    best = _best(rows, higher)
    rows = tuple(replace(row, best=row is best) for row in rows)
    made = Summary(figure, higher, last, base.label, quality, target, rows)
    return replace(made, answer=answer(made), notes=notes(records, made))


def _baseline(records: Records, asked: str | None) -> Method:
    labels = {method.label: method for method in records.methods}
    if asked is not None:
        if asked not in labels:
            raise unknown("baseline", asked, labels)
        return labels[asked]
    named = [
        method
        for method in records.methods
        if method.runs[0].experiment.settings.get("baseline") == method.runs[0].method
    ]
    usual = [method for method in records.methods if method.runs[0].method == "fedavg"]
    return (*named, *usual, *records.methods)[0]


def _target(records: Records) -> float | None:
    targets = [source.settings.get("target") for source in records.experiments]
    return next((float(target) for target in targets if target is not None), None)


def _row(method: Method, figure: str, last: int) -> Row:
    runs = method.runs
    finals = tuple(final(run, figure, last) for run in runs)
    visits = sum(run.visits for run in runs)
    seconds = [float(run.seconds.sum()) for run in runs]
    return Row(
        label=method.label,
        seeds=tuple(run.seed for run in runs),
        finals=finals,
        mean=sum(finals) / len(finals),
        std=spread(finals),
        planned=method.planned,
        recorded=method.common,
        ended_well=method.ended_well,
        total_bytes=sum(float(run.bytes[-1]) for run in runs) / len(runs),
        total_seconds=sum(seconds) / len(runs) if math.isfinite(sum(seconds)) else None,
        visit_down=sum(float(run.bytes_down.sum()) for run in runs) / visits if visits else None,
        visit_up=sum(float(run.bytes_up.sum()) for run in runs) / visits if visits else None,
        total_virtual=_virtual(method),
        lacking=not any(figure in run.metrics for run in runs),
        left_out=sum(run.left_out for run in runs),
        remarks=_remarks(method, finals, figure),
    )


def _virtual(method: Method) -> float | None:
    ends = [float(run.virtual[-1]) for run in method.runs if np.isfinite(run.virtual).all()]
    return sum(ends) / len(ends) if len(ends) == len(method.runs) else None


def _remarks(method: Method, finals: Sequence[float], figure: str) -> tuple[str, ...]:
    said = []
    for run, quality in zip(method.runs, finals, strict=True):
        if run.stopped is not None:
            said.append(f"seed {run.seed} stopped after round {run.recorded} of {run.planned}")
        elif not run.finished:
            said.append(f"seed {run.seed} has {run.recorded} of {run.planned} rounds so far")
        elif figure not in run.metrics:
            said.append(f"seed {run.seed} did not record {figure}")
        elif not math.isfinite(quality):
            said.append(f"seed {run.seed} is not finite at the end")
    return tuple(said)


def _priced(
    row: Row,
    method: Method,
    figure: str,
    higher: bool,
    quality: float | None,
    target: float | None,
) -> Row:
    if row.lacking:  # not "never": nobody knows
        return row
    if quality is not None:
        by_seed = tuple(alone(run, figure, quality, higher) for run in method.runs)
        row = replace(row, cost=cost(method, figure, quality, higher), by_seed=by_seed)
    if target is not None:
        row = replace(row, reach=reach(method, figure, target, higher))
    return row


def _against(rows: Sequence[Row]) -> list[Row]:
    """Rows with their prices compared to the baseline's."""
    base = next(row for row in rows if row.baseline)
    compared = []
    for row in rows:
        if row.cost is not None and base.cost is not None:
            row = replace(
                row,
                bytes_change=change(row.cost.bytes, base.cost.bytes),
                seconds_change=change(row.cost.seconds, base.cost.seconds),
                virtual_change=change(row.cost.virtual, base.cost.virtual),
            )
        if row.reach is not None and base.reach is not None:
            row = replace(row, reach_change=change(row.reach.bytes, base.reach.bytes))
        compared.append(row)
    return compared


def _best(rows: Sequence[Row], higher: bool) -> Row | None:
    """The best final quality, of methods whose runs have all come to their end where there are such."""
    finite = [row for row in rows if math.isfinite(row.mean)]
    candidates = [row for row in finite if row.ended_well] or finite
    if not candidates or len(rows) == 1:
        return None
    return (max if higher else min)(candidates, key=lambda row: row.mean)
