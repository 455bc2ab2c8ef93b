"""Pictures of recipes: curves, a panel a run where there are several; without curves, claims, cells of a table against ours."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from undrift.experiments.recipes.claims import Claim
from undrift.experiments.recipes.recipe import Recipe
from undrift.experiments.recipes.results import RecordedClaim, Results
from undrift.experiments.report.curves import mean_curve
from undrift.experiments.report.load import Records
from undrift.experiments.report.plots import assign_styles, draw_frame, draw_legend, label_metric, plot_curve, to_png
from undrift.metrics.quality import usual_first

COLOURS = {"yes": "tab:green", "in the mean": "tab:orange", "no": "tab:red"}
PANELS_ABREAST = 3
SMALLEST = 1e-17  # of a logarithmic axis: what is smaller, and zero, is there


def plot_runs(runs: Mapping[str, Records]) -> bytes:
    """A PNG: a panel a run, its methods against rounds; a method has the same colour in all of them."""
    from matplotlib.figure import Figure  # here, because it is slow to import

    metric = usual_first(name for records in runs.values() for name in records.metrics)[0]
    methods = {
        name: [method for method in records.methods if any(metric in run.metrics for run in method.runs)]
        for name, records in runs.items()
    }
    styles = assign_styles(list(dict.fromkeys(method.label for each in methods.values() for method in each)), "fedavg")
    rows = math.ceil(len(runs) / PANELS_ABREAST)
    columns = math.ceil(len(runs) / rows)
    figure = Figure(figsize=(4.1 * columns, 3.2 * rows + 0.8), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    shown: dict[str, Any] = {}
    for panel, (name, found) in zip(panels, methods.items(), strict=False):
        for method in found:
            curve = mean_curve(method, metric)
            plot_curve(panel, curve.round, curve, styles[method.label], method.label, metric)
        panel.set(title=name, xlabel="rounds", ylabel=label_metric(metric))
        draw_frame(panel)
        shown |= {label: line for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    for panel in panels[len(runs) :]:
        panel.set_visible(False)
    draw_legend(figure, shown)
    return to_png(figure)


def plot_claims(recipe: Recipe, results: Results) -> bytes:
    """A PNG: numbers by seed in the colour of the verdict, beside what was published or the bound."""
    from matplotlib.figure import Figure  # here, because it is slow to import

    known = [
        (claim, recorded) for claim in recipe.claim if (recorded := results.of(claim)) and recorded.mean is not None
    ]
    cells = [pair for pair in known if pair[0].cell and pair[0].equals is not None]
    figure = Figure(figsize=(6, 6) if cells else (9, 1 + 0.45 * len(known)), layout="constrained")
    (_plot_cells if cells else _plot_rows)(figure.subplots(), cells or known)
    return to_png(figure)


def _plot_cells(panel: Any, cells: list[tuple[Claim, RecordedClaim]]) -> None:
    for claim, recorded in cells:
        spreads = {"xerr": claim.spread, "yerr": recorded.std}
        panel.errorbar(claim.equals, recorded.mean, **spreads, fmt="o", color=COLOURS[recorded.holds], alpha=0.6)
    panel.axline((cells[0][0].equals, cells[0][0].equals), slope=1, color="0.6", linewidth=1, zorder=0)
    panel.set(xlabel="published", ylabel="ours, mean and standard deviation over seeds")


def _plot_rows(panel: Any, known: list[tuple[Claim, RecordedClaim]]) -> None:
    numbers = [[value for value in recorded.by_seed if value is not None] for _, recorded in known]
    sizes = [max(abs(value), SMALLEST) for values in numbers for value in values]
    log = max(sizes, default=1) > 1e3 * min(sizes, default=1)
    shown = (lambda value: max(abs(value), SMALLEST)) if log else float
    for row, ((claim, recorded), values) in enumerate(zip(known, numbers, strict=True)):
        panel.plot([*map(shown, values)], [row] * len(values), "o", color=COLOURS[recorded.holds], alpha=0.6)
        bound = next((each for each in (claim.above, claim.below, claim.equals) if each is not None), 0.0)
        if bound or not log:
            panel.plot(shown(bound), row, "|", color="black", markersize=14)
    panel.set_yticks(range(len(known)), [textwrap.fill(claim.claim, 64) for claim, _ in known], fontsize=8)
    panel.set(xscale="log" if log else "linear", xlabel="what was measured, a dot a seed; the bar is the bound")
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.4)
