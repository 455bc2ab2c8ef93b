"""undrift report."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli import options as o


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or directories of them")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; the first directory by default")
    ] = None,
    target: o.Target = None,
    baseline: o.Baseline = None,
    figure: Annotated[
        str | None, typer.Option("--figure", help="accuracy, loss or another that was recorded")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, help="Rounds whose mean is the final quality")
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Write report.html, curves.png, summary.csv and rounds.csv of runs, and print the table.

    Example: undrift report runs/compare-digits --target 0.9
    """
    from undrift.experiments.report import summary, write_report  # slow to import

    options = {"target": target, "baseline": baseline, "figure": figure, "last": last}
    page = write_report(runs, out or runs[0], **options)
    if not quiet:
        Console(width=None if sys.stdout.isatty() else 120).print(summary(runs, **options).table())
        print(f"report: {page}")
