"""undrift report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from undrift.cli import options as o
from undrift.cli.tables import make_console

if TYPE_CHECKING:
    from undrift.experiments.report import Options


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or directories of them")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; the first directory by default")
    ] = None,
    target: o.Target = None,
    baseline: o.Baseline = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", "--figure", help="accuracy, loss or another that was recorded"),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, help="Rounds whose mean is the final quality")
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Write report.html, curves.png, summary.csv and rounds.csv of runs, and print the table.

    Example: undrift report runs/compare-digits --target 0.9
    """
    place = out or runs[0]
    report_on(runs, place, quiet, target=target, baseline=baseline, metric=metric, last=last)


def report_on(
    runs: Sequence[Path], out: Path, quiet: bool = False, **options: Unpack["Options"]
) -> None:
    """Write the report of some runs, and print its table unless it is to be quiet."""
    from undrift.experiments.report import summarise, terminal_table, write_files  # slow to import

    summary = summarise(runs, **options)
    page = write_files(summary, out)
    if not quiet:
        make_console().print(terminal_table(summary))
        print(f"report: {page}")
