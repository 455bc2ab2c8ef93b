"""undrift report and verify."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Unpack

import typer

from undrift.cli import options as o
from undrift.cli.terminal import make_console
from undrift.core.errors import InvalidInput, speaking
from undrift.experiments.report import Options, summarise, terminal_table, write_files
from undrift.experiments.report.format import printable
from undrift.experiments.runs.directory import free_path
from undrift.experiments.runs.verify import Finding


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or directories of them")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; the directory itself by default, runs/report of several"),
    ] = None,
    target: o.Target = None,
    baseline: o.Baseline = None,
    metric: Annotated[
        str | None, typer.Option("--metric", "--figure", help="accuracy, loss or another that was recorded")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Rounds whose mean is the final quality")] = None,
    higher: Annotated[
        bool | None,
        typer.Option("--higher/--lower", help="Whether more of the metric is better, where it is not known"),
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Write report.html, curves.png, summary.csv and rounds.csv of runs, and print the table.

    Example: undrift report runs/compare-digits --target 0.9
    """
    place = out or (runs[0] if len(runs) == 1 else free_path(Path("runs") / "report"))
    with speaking(o.as_flags):
        report_on(runs, place, quiet, target=target, baseline=baseline, metric=metric, last=last, higher=higher)


def report_on(runs: Sequence[Path], out: Path, quiet: bool = False, **options: Unpack[Options]) -> None:
    """Write the report of some runs, and print its table unless it is to be quiet."""
    summary = summarise(runs, **options)
    page = write_files(summary, out)
    if not quiet:
        make_console().print(terminal_table(summary))
        for sentence in (*summary.answer, *summary.notes):
            print(sentence)
        print(f"report: {page}")


def verify(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, states of nodes, or directories of them")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only say what is damaged")] = False,
) -> None:
    """Say of every file of some runs, and of nodes' states, whether it is what was written; if one is not the exit code is 1.

    Example: undrift verify runs/compare-digits
    """
    sound, damaged = 0, 0
    for path in runs:
        for finding in _findings(path):
            sound, damaged = sound + finding.sound, damaged + (not finding.sound)
            if not (quiet and finding.sound):
                word = "sound  " if finding.sound else "damaged"
                print(printable(f"{word}  {finding.path}" + (f"  ({finding.said})" if finding.said else "")))
    if not quiet or damaged:
        print(f"{sound} files sound, {damaged} damaged")
    if damaged:
        raise typer.Exit(1)


def _findings(path: Path) -> Iterator[Finding]:
    from undrift.deploy.state_store import verify_states  # slow to import
    from undrift.experiments.verify import verify

    states = verify_states(path)
    yield from states
    try:
        yield from verify(path)
    except InvalidInput:  # no run
        if not states:
            raise
