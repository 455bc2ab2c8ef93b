"""The curves as a PNG."""

import io
from typing import Any

import numpy as np

from undrift.experiments.report.figures import Curve, curve
from undrift.experiments.report.load import Records
from undrift.experiments.report.style import BASELINE, COLOURS, DASHES, looks
from undrift.experiments.report.summary import Summary
from undrift.experiments.report.words import goal, is_share

BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
SECONDS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
ENOUGH = 30  # times: figures that span more are drawn on a log scale


def png(records: Records, s: Summary, dpi: int = 110) -> bytes:
    """The report's figure against rounds, bytes and seconds: means over seeds, from least to greatest shaded."""
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,
    )  # here, because it is slow to import
    from matplotlib.figure import Figure  # not pyplot, whose state is the caller's

    curves = {method.label: curve(method, s.figure) for method in records.methods}
    axes_shown = ["round", "bytes", "seconds"]
    if not any(each.seconds_known for each in curves.values()):
        axes_shown.remove("seconds")
    if all(each.virtual is not None for each in curves.values()):
        axes_shown.append("virtual")
    figure = Figure(figsize=(4.1 * len(axes_shown), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(axes_shown), sharey=True, squeeze=False)[0]
    look = looks(list(curves), s.baseline)
    for panel, axis in zip(panels, axes_shown, strict=True):
        scale, unit = _unit(axis, curves)
        for label, each in curves.items():
            _line(panel, _along(each, axis) / scale, each, look[label], label, is_share(s.figure))
        _dressed(panel, s, unit)
    panels[0].set_ylabel(s.figure.replace("_", " ") + (" (%)" if is_share(s.figure) else ""))
    if spans_much(list(curves.values()), s.figure):
        panels[0].set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(6, len(labels)), frameon=False
    )
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi, facecolor="white")
    return _small(out)


def _small(picture: io.BytesIO) -> bytes:
    """With a palette: a third of the bytes, and lines look the same."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(128).save(out, format="png", optimize=True)
    return out.getvalue()


def spans_much(curves: list[Curve], figure: str) -> bool:
    """Whether only a log scale shows all of a figure."""
    values = np.concatenate([each.mean for each in curves])
    values = values[np.isfinite(values)]
    if is_share(figure) or not len(values) or values.min() <= 0:
        return False
    return bool(values.max() > ENOUGH * values.min())


def _along(c: Curve, axis: str) -> np.ndarray:
    along = getattr(c, axis)
    return np.full(len(c.round), np.nan) if along is None else along


def _unit(axis: str, curves: dict[str, Curve]) -> tuple[float, str]:
    if axis == "round":
        return 1.0, "rounds"
    ends = np.concatenate([_along(each, axis) for each in curves.values()])
    largest = np.nanmax(ends) if np.isfinite(ends).any() else 1.0
    units = BYTES if axis == "bytes" else SECONDS
    scale, unit = next((pair for pair in units if largest >= 2 * pair[0]), units[-1])
    return scale, {"bytes": f"{unit}, down + up", "virtual": f"{unit}, virtual"}.get(axis, unit)


def _line(
    panel: Any, x: np.ndarray, c: Curve, look: tuple[int, int], label: str, share: bool
) -> None:
    colour = BASELINE if look[0] == 0 else COLOURS[look[0] - 1]
    dash = [float(part) for part in DASHES[look[1]].split()]
    style: Any = (0, tuple(dash)) if dash else "solid"
    times = 100 if share else 1
    panel.fill_between(x, times * c.low, times * c.high, color=colour, alpha=0.15, linewidth=0)
    drawn: Any = {"color": colour, "linestyle": style, "linewidth": 1.8}
    drawn |= {"marker": "o"} if len(c.round) == 1 else {}
    shown = label if not label.startswith("_") else f" {label}"  # matplotlib hides such labels
    shown = shown.replace("$", r"\$")
    panel.plot(x[: c.common], times * c.mean[: c.common], label=shown, **drawn)
    rest = slice(max(0, c.common - 1), None)  # fainter where some seeds have ended
    if c.common < len(x):
        panel.plot(x[rest], times * c.mean[rest], alpha=0.4, **drawn)


def _dressed(panel: Any, s: Summary, unit: str) -> None:
    panel.set_xlabel(unit)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e3e6ea", linewidth=0.7)
    panel.set_axisbelow(True)
    times = 100 if is_share(s.figure) else 1
    if s.target is not None:
        panel.axhline(times * s.target, color="#5b6470", linewidth=1, linestyle=(0, (4, 3)))
        where = (0.995, times * s.target)
        panel.annotate(
            f"target {goal(s.target, s.figure)}",
            where,
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color="#5b6470",
        )
