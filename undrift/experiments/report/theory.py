"""The pictures of the metrics of the theory: one for each that was recorded, with a sentence on what it means."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undrift.experiments.report.curves import mean_curve, thin_out
from undrift.experiments.report.load import Method, Records
from undrift.metrics.quality import usual_last

ABOUT = {
    "drift": "How far local models walk from the server's before they are averaged: the mean of |y − x|² over clients and steps.",
    "momentum_error": "How far the server's direction g is from the gradient it stands for: |g − ∇f(x)|².",
    "control_error": "How far clients' control variates are from their gradients now: the mean over all clients of |cᵢ − ∇fᵢ(x)|².",
    "dissimilarity": "How much clients' gradients differ at the same model: Σ pᵢ |∇fᵢ(x) − ∇f(x)|².",
    "chi2": "How far the weights w that unequal numbers of steps imply are from those meant: Σ (pᵢ − wᵢ)² / wᵢ; 0 is what is meant.",
    "tau_eff": "The mean number of local steps behind a server step, by weight.",
    "tau_error": "How far the mean of the last τ rounds' pseudo-gradients is from that of all clients, relative to its length, squared.",
}
POINTS = 200  # of a line; more cannot be seen in so small a picture
FEW_WINDOWS = 3  # from so many tau on, errors are drawn against tau
AGAINST_TAU = "tau_error by tau"


def theory_charts(records: Records, styles: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A small picture for each metric against rounds; the errors of many windows against tau."""
    windows = [name for name in records.metrics if name.startswith("tau_error:")]
    names = [name for name in records.metrics if name.partition(":")[0] in ABOUT]
    if len(windows) >= FEW_WINDOWS:
        names = [name for name in names if name not in windows]
    charts = [_chart(name, "rounds", [_curve(m, name) for m in records.methods], records, styles) for name in names]
    if len(windows) >= FEW_WINDOWS:
        lines = [_by_tau(method, windows) for method in records.methods]
        charts.append(_chart(AGAINST_TAU, "τ, rounds", lines, records, styles))
    return [chart for chart in charts if chart["lines"]]


def _chart(
    name: str, against: str, lines: Sequence[tuple[Any, Any]], records: Records, styles: Mapping[str, Any]
) -> dict[str, Any]:
    shown = [(m.label, xs, ys) for m, (xs, ys) in zip(records.methods, lines, strict=True) if len(xs)]
    return {
        "name": name,
        "about": ABOUT[name.partition(":")[0].partition(" ")[0]],
        "against": against,
        "log": all((ys > 0).all() for *_, ys in shown),
        "lines": [{"label": label, "x": xs, "y": ys, **styles[label]._asdict()} for label, xs, ys in shown],
    }


def _curve(method: Method, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and means over seeds, where it was recorded."""
    curve = mean_curve(method, name)
    known = np.flatnonzero(np.isfinite(curve.mean))
    some = known[thin_out(len(known), POINTS)]
    return curve.round[some], curve.mean[some]


def _by_tau(method: Method, windows: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """tau, and the mean error of the last rounds."""
    found = []
    for name in windows:
        _, values = _curve(method, name)
        if len(values):
            found.append((int(name.partition(":")[2]), float(values[-usual_last(len(values)) :].mean())))
    taus, errors = zip(*sorted(found), strict=True) if found else ((), ())
    return np.array(taus), np.array(errors)
