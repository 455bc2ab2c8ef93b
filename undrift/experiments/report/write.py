"""Make a report: read runs, summarise them, write the files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from undrift.core.errors import InvalidInput, setting
from undrift.experiments.report.html import render_report
from undrift.experiments.report.load import Records, load_runs
from undrift.experiments.report.plots import plot_curves
from undrift.experiments.report.stats import Summary, summarise_methods
from undrift.experiments.report.tables import rounds_csv, summary_csv
from undrift.experiments.report.text import write_answer, write_notes
from undrift.experiments.runs.files import write_aside


class Options(TypedDict, total=False):
    """What a report is about, see `summarise`."""

    target: float | None
    baseline: str | None
    metric: str | None
    last: int | None
    higher: bool | None


def summarise(paths: Sequence[Path], **options: Unpack[Options]) -> Summary:
    """Final quality and its cost for the runs in some directories, in numbers and sentences.

    baseline   what others are compared with; the experiment's if not given, else "fedavg", else the first method
    target     a quality whose cost is reported; the experiment's if not given
    metric     the accuracy if not given and recorded, else the loss
    last       how many evaluated rounds a final quality is the mean of; a tenth if not given, at most 100
    higher     whether more of the metric is better, where that is not known (`@ud.metric(name, higher=True)`)
    """
    return summarise_records(load_runs(paths), **options)


def summarise_records(records: Records, **options: Unpack[Options]) -> Summary:
    """The same of runs that have been read."""
    s = summarise_methods(records, **options)
    return replace(s, answer=write_answer(s), notes=write_notes(s))


def write_report(
    paths: Sequence[Path], out: Path, *, claims: Sequence[Mapping[str, str]] = (), **options: Unpack[Options]
) -> Path:
    """Write report.html, curves.png, summary.csv and rounds.csv into `out`; returns the path of the page.

    `paths` are runs or directories of runs.  `claims` are those of a recipe: claim, published, recorded, here, holds.
    """
    return write_files(summarise(paths, **options), out, claims)


def write_files(s: Summary, out: Path, claims: Sequence[Mapping[str, str]] = ()) -> Path:
    """The same from runs that have been summarised."""
    picture = plot_curves(s)
    files = {
        "curves.png": picture,
        "summary.csv": summary_csv(s).encode(),
        "rounds.csv": rounds_csv(s.records).encode(),
        "report.html": render_report(s, picture, claims).encode(),
    }
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_aside(Path(out) / name, content)
    except OSError as error:
        raise InvalidInput(
            f"the report cannot be written to {out} ({error.strerror}): choose another {setting('place', out=...)}"
        ) from error
    return Path(out) / "report.html"
