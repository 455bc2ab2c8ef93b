"""The plots of a report: curves.png, and the data of the page's plots, which page.js draws.

A new axis is one entry in AXES: curves.png and the page have it wherever all methods have recorded it.  A new plot of the
page is one entry in CHARTS, a function of the same name in CHARTS of page.js, and a place in page.html:
<div data-chart="NAME" data-index="0">, where the index counts what the entry here returns.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from undrift.experiments.report.curves import Curve, mean_curve, thin_out
from undrift.experiments.report.format import format_target
from undrift.experiments.report.load import Records, RunRecord
from undrift.experiments.report.references import list_references
from undrift.experiments.report.stats import Summary, count_staleness
from undrift.experiments.report.text import spell
from undrift.experiments.report.theory import theory_charts
from undrift.metrics.quality import higher_is_better, is_share

# the colours of Okabe and Ito, which the colour-blind can tell apart; the baseline is grey
COLOURS = ("#4a525c", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
LOG_SCALE = 30  # metrics whose largest value is more than so many times the smallest
POINTS = 400  # of a curve; more cannot be seen
FEDERATIONS = 4
LABEL_ROWS, SIZE_BARS = 60, 24  # of the plots of a federation
STALENESS_BARS, TAIL = 21, 0.01  # the last bar may hold a tail of this share of the updates
UNITS = {
    "count": ((1.0, ""),),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
    "seconds": ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")),
}


@dataclass(frozen=True)
class Axis:
    """What a metric is plotted against: its label on the page, and in curves.png around the name of a unit."""

    name: str
    unit: Literal["count", "bytes", "seconds"]
    label: str
    png: str
    values: Callable[[Curve], np.ndarray]


AXES = (
    Axis("rounds", "count", "rounds", "rounds", lambda c: c.round),
    Axis("bytes", "bytes", "bytes, down + up over all clients", "{}, down + up", lambda c: c.bytes),
    Axis("uplink", "bytes", "bytes that clients sent", "{}, up", lambda c: c.bytes_up),
    Axis("seconds", "seconds", "seconds", "{}", lambda c: c.seconds),
    Axis("virtual", "seconds", "virtual time", "{}, virtual", lambda c: c.virtual),
)


class Style(NamedTuple):
    """Places in COLOURS and DASHES."""

    colour: int
    dash: int


def assign_styles(labels: Sequence[str], baseline: str) -> dict[str, Style]:
    """A colour for every method, the first one for a baseline that others are compared with; then dashes.

    >>> assign_styles(["fedavg", "ghbm"], "fedavg")
    {'fedavg': Style(colour=0, dash=0), 'ghbm': Style(colour=1, dash=0)}
    """
    others = [label for label in labels if label != baseline] or list(labels)
    cycle = len(COLOURS) - 1
    styles = {label: Style(1 + i % cycle, i // cycle % len(DASHES)) for i, label in enumerate(others)}
    return {label: styles.get(label, Style(0, 0)) for label in labels}


def list_axes(records: Records, curves: Iterable[Curve]) -> list[Axis]:
    """The axes that all curves have values for; uplink bytes alone where a codec makes them another story."""
    curves, coded = list(curves), any(run.experiment.settings.get("codec") for run in records.runs)
    known = [x for x in AXES if all(np.isfinite(x.values(curve)).any() for curve in curves)]
    return [x for x in known if coded or x.name != "uplink"]


def needs_log_scale(curves: Iterable[Curve], metric: str) -> bool:
    """Whether only a log scale shows all of a metric."""
    values = np.concatenate([curve.mean for curve in curves])
    values = values[np.isfinite(values)]
    if is_share(metric) or not len(values) or values.min() <= 0:
        return False
    return bool(values.max() > LOG_SCALE * values.min())


# curves.png


def plot_curves(s: Summary) -> bytes:
    """The report's metric against every axis, as a PNG: means over seeds, shaded from the lowest to the highest."""
    from matplotlib.figure import Figure  # here, because it is slow to import; not pyplot, whose state is the caller's

    curves = {method.label: mean_curve(method, s.metric) for method in s.records.methods}
    axes = list_axes(s.records, curves.values())
    figure = Figure(figsize=(4.1 * len(axes), 4.2), layout="constrained")
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        draw_panel(panel, s, curves, axis)
        panel.set_ylabel("")
    panels[0].set_ylabel(label_metric(s.metric))
    lines, labels = panels[0].get_legend_handles_labels()
    draw_legend(figure, dict(zip(labels, lines, strict=True)))
    return to_png(figure)


def draw_legend(figure: Any, lines: Mapping[str, Any]) -> None:
    """What every line is, below the panels, in as many columns as fit."""
    widest = 0.6 + 0.085 * max(map(len, lines), default=0)  # inches
    columns = max(1, min(6, len(lines), int(figure.get_figwidth() / widest)))
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=columns, frameon=False)


def to_png(figure: Any) -> bytes:
    """A matplotlib figure as a PNG with a palette of 128 colours, a third of the size; rare colours are kept."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=110, facecolor="white")
    Image.open(full).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE).save(small, format="png", optimize=True)
    return small.getvalue()


def draw_panel(panel: Any, s: Summary, curves: Mapping[str, Curve], axis: Axis) -> None:
    """The curves of all methods against one axis, into matplotlib axes."""
    styles = assign_styles(list(curves), s.baseline)
    largest = max(np.nanmax(axis.values(curve)) for curve in curves.values())
    units = UNITS[axis.unit]
    size, unit = next((each for each in units if largest >= 2 * each[0]), units[-1])
    for label, curve in curves.items():
        plot_curve(panel, axis.values(curve) / size, curve, styles[label], label, s.metric)
    panel.set_xlabel(axis.png.format(unit))
    panel.set_ylabel(label_metric(s.metric))
    draw_frame(panel)
    if s.target is not None:
        _mark_target(panel, s.target, s.metric)
    for reference, dash in zip(list_references(s), ("--", "-.", ":"), strict=False):
        height = 100 * reference.mean if is_share(s.metric) else reference.mean
        panel.axhline(height, color="#5b6470", linewidth=1.2, linestyle=dash, label=f"{reference.label} (reference)")
    if needs_log_scale(curves.values(), s.metric):
        panel.set_yscale("log")


def draw_frame(panel: Any) -> None:
    """Two axes and a light grid behind the curves."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e3e6ea", linewidth=0.7)
    panel.set_axisbelow(True)


def label_metric(metric: str) -> str:
    """A metric as axes name it."""
    return spell(metric) + (" (%)" if is_share(metric) else "")


def plot_curve(panel: Any, x: np.ndarray, curve: Curve, style: Style, label: str, metric: str) -> None:
    """The mean of a curve, shaded from the lowest to the highest seed, into matplotlib axes."""
    scale = 100 if is_share(metric) else 1
    low, mean, high = scale * curve.low, scale * curve.mean, scale * curve.high
    colour, dash = COLOURS[style.colour], tuple(map(float, DASHES[style.dash].split()))
    line: Any = {"color": colour, "linestyle": (0, dash) if dash else "solid", "linewidth": 1.8}
    line |= {"marker": "o"} if len(x) == 1 else {}
    shown = f" {label}" if label.startswith("_") else label  # matplotlib hides such labels
    panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    panel.plot(x[: curve.common], mean[: curve.common], label=shown.replace("$", r"\$"), **line)
    if curve.common < len(x):  # fainter where some seeds have ended
        rest = slice(max(0, curve.common - 1), None)
        panel.plot(x[rest], mean[rest], alpha=0.4, **line)


def _mark_target(panel: Any, target: float, metric: str) -> None:
    height = 100 * target if is_share(metric) else target
    panel.axhline(height, color="#5b6470", linewidth=1, linestyle=(0, (4, 3)))
    place: Any = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    text = f"target {format_target(target, metric)}"
    panel.annotate(text, (0.995, height), fontsize=8, color="#5b6470", **place)


# the page


def chart_data(s: Summary) -> dict[str, Any]:
    """Everything that page.js draws."""
    records = s.records
    curves = {m.label: {x: mean_curve(m, x) for x in records.metrics} for m in records.methods}
    styles = assign_styles(list(curves), s.baseline)
    axes = list_axes(records, (each[s.metric] for each in curves.values()))
    methods = []
    for method in records.methods:
        curve = curves[method.label][s.metric]
        some = thin_out(len(curve.round), POINTS)
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
        "quality": s.quality if s.compared or len(s.rows) == 1 else None,
        "target": s.target,
        "references": [{"label": row.label, "value": row.mean} for row in list_references(s)],
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
    return [
        {"label": run.label, "seed": run.seed} | asdict(run.timing.timeline)
        for run in runs
        if run.timing and run.timing.timeline
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
            "shares": [each[a:b].sum() / max(each.sum(), 1) for a, b in zip(edges, ends, strict=True)],
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
    "theory": theory_charts,
}
