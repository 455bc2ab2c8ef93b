"""curves.png, and what all plots have in common: the style of every method, and the axes a metric is plotted against.

A new axis is one entry in AXES: curves.png and the page have it wherever all methods have recorded it.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from undrift.experiments.report.format import format_target, is_share
from undrift.experiments.report.stats import Curve, mean_curve
from undrift.experiments.report.summary import Summary
from undrift.experiments.report.text import spell

# the colours of Okabe and Ito, which the colour-blind can tell apart; the baseline is grey
COLOURS = ("#4a525c", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
LOG_SCALE = 30  # metrics whose largest value is more than so many times the smallest
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
    styles = {
        label: Style(1 + i % cycle, i // cycle % len(DASHES)) for i, label in enumerate(others)
    }
    return {label: styles.get(label, Style(0, 0)) for label in labels}


def list_axes(curves: Iterable[Curve]) -> list[Axis]:
    """The axes that all curves have values for."""
    curves = list(curves)
    return [x for x in AXES if all(np.isfinite(x.values(curve)).any() for curve in curves)]


def needs_log_scale(curves: Iterable[Curve], metric: str) -> bool:
    """Whether only a log scale shows all of a metric."""
    values = np.concatenate([curve.mean for curve in curves])
    values = values[np.isfinite(values)]
    if is_share(metric) or not len(values) or values.min() <= 0:
        return False
    return bool(values.max() > LOG_SCALE * values.min())


def plot_curves(s: Summary, dpi: int = 110) -> bytes:
    """The report's metric against every axis, as a PNG: means over seeds, shaded from the lowest to the highest."""
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,  # here, because it is slow to import
    )
    from matplotlib.figure import Figure  # not pyplot, whose state is the caller's
    from PIL import Image

    curves = {method.label: mean_curve(method, s.metric) for method in s.records.methods}
    styles, axes = assign_styles(list(curves), s.baseline), list_axes(curves.values())
    figure = Figure(figsize=(4.1 * len(axes), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        largest = max(np.nanmax(axis.values(curve)) for curve in curves.values())
        size, unit = next(
            (each for each in UNITS[axis.unit] if largest >= 2 * each[0]), UNITS[axis.unit][-1]
        )
        for label, curve in curves.items():
            _plot_curve(panel, axis.values(curve) / size, curve, styles[label], label, s.metric)
        panel.set_xlabel(axis.png.format(unit))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#e3e6ea", linewidth=0.7)
        panel.set_axisbelow(True)
        if s.target is not None:
            _mark_target(panel, s.target, s.metric)
    panels[0].set_ylabel(spell(s.metric) + (" (%)" if is_share(s.metric) else ""))
    if needs_log_scale(curves.values(), s.metric):
        panels[0].set_yscale("log")
    lines, labels = panels[0].get_legend_handles_labels()
    columns = min(6, len(labels))
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False)
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=dpi, facecolor="white")
    palette = Image.open(full).convert("RGB").quantize(128)  # a third of the bytes
    palette.save(small, format="png", optimize=True)
    return small.getvalue()


def _plot_curve(
    panel: Any, x: np.ndarray, curve: Curve, style: Style, label: str, metric: str
) -> None:
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
