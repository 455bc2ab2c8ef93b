"""The data of the page's plots, which page.js draws.

A new plot is one entry in CHARTS, a function of the same name in CHARTS of page.js, and a place in page.html:
<div data-chart="NAME" data-index="0">, where the index counts what the entry here has returned.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from undrift.experiments.report.format import is_share
from undrift.experiments.report.load import Records, RunRecord
from undrift.experiments.report.plots import (
    DASHES,
    Style,
    assign_styles,
    list_axes,
    needs_log_scale,
)
from undrift.experiments.report.stats import count_staleness, mean_curve
from undrift.experiments.report.summary import Summary
from undrift.metrics.quality import higher_is_better

POINTS = 400  # of a curve; more cannot be seen
FEDERATIONS = 4
LABEL_ROWS, SIZE_BARS = 60, 24  # of the plots of a federation
STALENESS_BARS, TAIL = 21, 0.01  # the last bar may hold a tail of this share of the updates
VISIT = ("client", "version", "steps", "fate", "dispatched", "begins", "ends", "returns", "used")


def chart_data(s: Summary) -> dict[str, Any]:
    """Everything that page.js draws."""
    records = s.records
    curves = {m.label: {x: mean_curve(m, x) for x in records.metrics} for m in records.methods}
    styles = assign_styles(list(curves), s.baseline)
    axes = list_axes(each[s.metric] for each in curves.values())
    methods = []
    for method in records.methods:
        curve = curves[method.label][s.metric]
        count = len(curve.round)
        some = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
        values = {
            name: {"mean": each.mean[some], "low": each.low[some], "high": each.high[some]}
            for name, each in curves[method.label].items()
        }
        common = int((curve.round[some] <= method.common).sum())
        methods.append(
            {"label": method.label, "seeds": len(method.runs), "common": common, "metrics": values}
            | styles[method.label]._asdict()
            | {axis.name: axis.values(curve)[some] for axis in axes}
        )
    return {
        "metric": s.metric,
        "baseline": s.baseline,
        "quality": s.quality,
        "target": s.target,
        "dashes": DASHES,
        "axes": [{"name": x.name, "label": x.label, "unit": x.unit} for x in axes],
        "metrics": [
            {
                "name": name,
                "share": is_share(name),
                "higher": higher_is_better(name),
                "log": needs_log_scale([each[name] for each in curves.values()], name),
            }
            for name in records.metrics
        ],
        "methods": methods,
        "charts": {name: draw(records, styles) for name, draw in CHARTS.items()},
    }


# federations


def list_federations(records: Records) -> list[RunRecord]:
    """A run for every way in which data were partitioned: the first one."""
    firsts: dict[str, RunRecord] = {}
    for run in records.runs:
        if run.federation:
            settings = run.experiment.settings
            firsts.setdefault(repr([settings.get(key) for key in ("data", "clients")]), run)
    return list(firsts.values())[:FEDERATIONS]


def _heat_map(run: RunRecord) -> dict[str, Any] | None:
    """Labels of clients in percent, neighbouring labels added up where there are too many."""
    if not run.federation["label_shares"]:
        return None
    shares = np.array(run.federation["label_shares"], dtype=float)
    together = -(-shares.shape[1] // LABEL_ROWS)
    added = np.add.reduceat(shares, np.arange(0, shares.shape[1], together), axis=1)
    return {"shares": np.rint(100 * added).astype(int), "together": together}


def _size_histogram(run: RunRecord) -> dict[str, Any] | None:
    """Of the clients' sizes; None if all are the same."""
    sizes = run.federation["sizes"]
    low, high = min(sizes), max(sizes)
    counts, edges = np.histogram(sizes, min(SIZE_BARS, high - low + 1), (low, high))
    return {"counts": counts, "edges": edges} if low < high else None


# virtual time


def _timelines(records: Records, styles: Mapping[str, Style]) -> list[dict[str, Any]]:
    """Who did what when, in the first run of every method."""
    runs = [method.runs[0] for method in records.methods if method.timings]
    timelines = [(run, run.timing.timeline) for run in runs if run.timing and run.timing.timeline]
    return [
        {
            "label": run.label,
            "seed": run.seed,
            "until": each.until,
            "clients": each.clients,
            "others": each.others,
            "steps": each.steps,
            "visits": [{name: visit[name] for name in VISIT} for visit in each.visits],
        }
        for run, each in timelines
    ]


def _staleness(records: Records, styles: Mapping[str, Style]) -> list[dict[str, Any]]:
    """Shares of updates by staleness, with the same bins for all methods; none if all updates were fresh."""
    counts = {m.label: count_staleness(m) for m in records.methods if m.timings}
    if not any(len(each) > 1 for each in counts.values()):
        return []
    edges, tail = choose_bins(list(counts.values()))
    ends = [*edges[1:], None]
    return [
        {
            "label": label,
            "colour": styles[label].colour,
            "edges": edges,
            "tail": tail,
            "shares": [
                each[a:b].sum() / max(each.sum(), 1) for a, b in zip(edges, ends, strict=True)
            ],
        }
        for label, each in counts.items()
    ]


def choose_bins(counts: Sequence[np.ndarray]) -> tuple[list[int], bool]:
    """Where bins begin, and whether the last one holds a tail: nearly all updates lie before it.

    >>> choose_bins([np.array([5, 3, 2])]), choose_bins([np.array([990] + [0] * 40 + [1])])
    (([0, 1, 2], False), ([0, 1], True))
    """
    near = 1
    for each in counts:
        total = np.cumsum(each)
        if len(each) and total[-1]:
            near = max(near, int(np.argmax(total >= (1 - TAIL) * total[-1])) + 1)
    widths = (w * 10**e for e in range(9) for w in (1, 2, 5))
    width = next(width for width in widths if near <= width * (STALENESS_BARS - 1))
    edges = list(range(0, near, width))
    end = edges[-1] + width
    return (edges, False) if end >= max(map(len, counts)) else ([*edges, end], True)


CHARTS: Mapping[str, Callable[[Records, Mapping[str, Style]], Sequence[Any]]] = {
    "heat": lambda records, styles: [_heat_map(run) for run in list_federations(records)],
    "sizes": lambda records, styles: [_size_histogram(run) for run in list_federations(records)],
    "gantt": _timelines,
    "staleness": _staleness,
}
