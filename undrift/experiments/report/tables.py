"""The tables of a report: on the page, in the terminal, in summary.csv and rounds.csv.

A new column is one entry in `list_columns`: its group, which says where and when it is shown, its name in summary.csv and
on the page, how it is computed from a row, and how it is formatted.
"""

import csv
import io
import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from rich.table import Table
from rich.text import Text

from undrift.experiments.report.costs import CostToReach
from undrift.experiments.report.format import (
    UNKNOWN,
    format_bytes,
    format_change,
    format_count,
    format_metric,
    format_rough_change,
    format_seconds,
    format_target,
    plural,
    printable,
)
from undrift.experiments.report.load import VIRTUAL, Records
from undrift.experiments.report.references import list_references
from undrift.experiments.report.stats import MethodSummary, Summary, bytes_per_visit, local_steps
from undrift.experiments.report.text import format_final, remarks_on_seeds, spell, write_remarks, write_span

AGAINST = "against baseline"
NARROWEST = 9  # column of a terminal's table that its heading is wrapped for
SECONDS = 5.0  # of shorter times no percentages are shown: starting and compiling are most of them


@dataclass(frozen=True)
class Column:
    """One column of the tables.

    name       the heading in summary.csv; heading: that on the page, "" if it is not there
    value      computed from a row: what summary.csv holds and the page sorts by
    write      the value for people; write_row: the same from a row, where the value does not say it all
    cost       what the value is a part of: where the quality was never reached it is a bound, "> x", and no number
    detail     small print below it
    bar        whether the page draws a bar of the value's size
    descending whether more is better, so that the best comes first
    group      the heading above neighbouring columns of the page; table: the table that they are in
    show       whether the report has the column; on_page: whether its page has it, too
    """

    name: str
    heading: str
    value: Callable[[MethodSummary], float | str | None]
    write: Callable[[Any], str] = str
    write_row: Callable[[MethodSummary], str] | None = None
    cost: Callable[[MethodSummary], CostToReach] | None = None
    detail: Callable[[MethodSummary], str] = lambda row: ""
    bar: bool = False
    descending: bool = False
    group: str = ""
    table: Literal["results", "time"] = "results"
    show: bool = True
    on_page: bool = True

    def text(self, row: MethodSummary) -> str:
        """The cell for people."""
        value = self.value(row)
        if self.write_row is not None:
            return self.write_row(row)
        if value is None:
            return UNKNOWN
        written = value if isinstance(value, str) else self.write(value)
        return f"> {written.removeprefix('±')}" if self.is_bound(row) else written

    def is_bound(self, row: MethodSummary) -> bool:
        """Whether the quality was never reached, so that the value was not enough."""
        return self.cost is not None and self.cost(row).reached is False

    def known(self, row: MethodSummary) -> float | str | None:
        """The value, unless it is a bound."""
        return None if self.is_bound(row) else self.value(row)

    def number(self, row: MethodSummary) -> float | None:
        """The cell as a finite number, if it is one."""
        value = self.known(row)
        return value if isinstance(value, int | float) and math.isfinite(value) else None


def list_columns(s: Summary) -> list[Column]:
    """The columns that a report has, in their order."""
    quality = f"to {s.baseline}'s {format_metric(s.quality, s.metric)}"
    target = "" if s.target is None else f"to the target {format_target(s.target, s.metric)}"
    about, total = partial(Column), partial(Column, group="all rounds")
    base = partial(Column, group=quality, on_page=s.compared, cost=lambda row: row.to_baseline)
    table4 = partial(Column, group="GHBM's Table 4", on_page=s.compared, cost=lambda row: row.table4)
    goal = partial(Column, group=target, show=s.target is not None, cost=lambda row: row.to_target)
    time = partial(Column, group="virtual time", table="time", show=s.timed)
    base_time = partial(time, on_page=s.compared, cost=lambda row: row.to_baseline)

    def delta(cost: Callable[[MethodSummary], float | None]) -> Callable[[MethodSummary], float | None]:
        return lambda row: s.change(row, cost)

    def seconds_delta(cost: Callable[[MethodSummary], float | None]) -> Callable[[MethodSummary], float | None]:
        long_enough = lambda row: (cost(row) or 0.0) >= SECONDS and (cost(s.base) or 0.0) >= SECONDS
        return lambda row: s.change(row, cost) if long_enough(row) and not s.same_as_baseline(row) else None

    def target_delta(row: MethodSummary) -> float | None:
        """Nothing, where the baseline itself never got there."""
        return s.change(row, lambda row: row.to_target.bytes) if s.base.to_target.reached else None

    def timed(
        name: str,
        heading: str,
        write: Callable[[float], str],
        detail: Callable[[Mapping[str, float]], str] = lambda timing: "",
    ) -> Column:
        value, below = lambda row: row.timing.get(name), lambda row: detail(row.timing)
        return time(name, heading, value, write, detail=below, group="updates and participation")

    columns = [
        about("method", "", lambda row: row.label),
        about("seeds", "", lambda row: len(row.seeds)),
        about("metric", "", lambda row: s.metric),
        about(
            "final_mean",
            f"final {spell(s.metric)}",
            lambda row: row.mean,
            write_row=lambda row: format_final(s, row),
            detail=lambda row: plural(len(row.seeds), "seed"),
            descending=bool(s.higher),
        ),
        about("final_std", "", lambda row: row.std),
        about("last_rounds", "", lambda row: s.last),
        about(
            "local_steps",
            "local steps",
            _local_steps,
            format_count,
            write_row=_write_local_steps,
            on_page=any(_local_steps(row) is not None for row in s.rows),
        ),
        about("best", "", lambda row: row is s.best),
        about("baseline", "", lambda row: row is s.base),
        about("rounds_planned", "", lambda row: row.method.planned),
        about("rounds_recorded", "", lambda row: row.method.common),
        about("baseline_quality", "", lambda row: s.quality),
        about("reached", "", lambda row: row.to_baseline.reached),
        base(
            "rounds_to_baseline", "rounds", lambda row: row.to_baseline.rounds, format_count, detail=_write_seed_rounds
        ),
        base("bytes_to_baseline", "bytes", lambda row: row.to_baseline.bytes, format_bytes, bar=True),
        base("bytes_change", AGAINST, delta(lambda row: row.to_baseline.bytes), format_change),
        base("seconds_to_baseline", "seconds", lambda row: row.to_baseline.seconds, format_seconds),
        base("seconds_change", AGAINST, seconds_delta(lambda row: row.to_baseline.seconds), format_rough_change),
        table4("table4_bytes_change", "bytes", delta(lambda row: row.table4.bytes), format_change),
        table4("table4_seconds_change", "seconds", seconds_delta(lambda row: row.table4.seconds), format_rough_change),
        about("target", "", lambda row: s.target, show=s.target is not None),
        goal("rounds_to_target", "rounds", lambda row: row.to_target.rounds, format_count),
        goal("bytes_to_target", "bytes", lambda row: row.to_target.bytes, format_bytes),
        goal("target_bytes_change", "", target_delta, format_change),
        goal("seconds_to_target", "seconds", lambda row: row.to_target.seconds, format_seconds),
        goal(
            "virtual_seconds_to_target",
            "virtual time",
            lambda row: row.to_target.virtual,
            format_seconds,
            show=s.target is not None and s.timed,
        ),
        total("total_bytes", "bytes", lambda row: row.total.bytes, format_bytes),
        total("total_seconds", "seconds", lambda row: row.total.seconds, format_seconds),
        total(
            "bytes_per_visit",
            "down + up per visit",
            lambda row: sum(bytes_per_visit(row.method)),
            write_row=lambda row: " + ".join(map(format_bytes, bytes_per_visit(row.method))),
        ),
        time("total_virtual_seconds", "all rounds", lambda row: row.total.virtual, format_seconds),
        base_time(
            "virtual_seconds_to_baseline", "to baseline's quality", lambda row: row.to_baseline.virtual, format_seconds
        ),
        base_time("virtual_seconds_change", AGAINST, delta(lambda row: row.to_baseline.virtual), format_change),
        timed("staleness", "staleness", "{:.2f}".format, lambda t: f"at most {t['max_staleness']:.0f}"),
        timed("updates", "used", format_count, lambda t: f"of {format_count(t['clients'])} clients"),
        timed("lost", "lost", format_count, lambda t: f"{100 * t['share_lost']:.1f} %"),
        timed("waited_seconds", "waited", format_seconds, lambda t: f"{format_seconds(t['wait'])} each"),
        timed("wasted_seconds", "wasted", format_seconds),
        timed("tau_eff", "steps", "{:.2f}".format),
        timed("chi2", "χ²", _write_chi2, lambda t: f"steps: {_write_chi2(t['chi2_steps'])}"),
        about("remarks", "", lambda row: "; ".join(write_remarks(s, row))),
    ]
    return [column for column in columns if column.show]


def _write_chi2(chi2: float) -> str:
    return "∞" if math.isinf(chi2) else format_metric(chi2)


def _local_steps(row: MethodSummary) -> float | None:
    steps = local_steps(row.method.runs[0])
    return None if steps is None else steps[1]


def _write_local_steps(row: MethodSummary) -> str:
    steps = local_steps(row.method.runs[0])
    return UNKNOWN if steps is None else write_span(steps)


def _write_seed_rounds(row: MethodSummary) -> str:
    """When single seeds reached the baseline's quality."""
    reached = [r for r in row.seed_rounds if r is not None]
    if len(row.seeds) < 2 or row.to_baseline.reached is None:
        return ""
    if len(reached) < len(row.seeds):
        return f"{len(reached)} of {len(row.seeds)} seeds"
    first, last = min(reached), max(reached)
    return f"all seeds {first:,}" if first == last else f"seeds {first:,}–{last:,}"


# the terminal, and the CSV files


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), *, wrap_first: bool = False
) -> Table:
    """A table; columns in `right` are aligned there, and what is in them and in the first is kept on one line.

    Their headings are not, to be no wider than the cells: that leaves the others some room on a terminal of 80 columns.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=any(headings))
    wrapped: list[list[str]] = []
    for number, heading in enumerate(headings):
        words = [*heading.split(), *(row[number] for row in cells), " " * NARROWEST]
        wrapped.append(textwrap.wrap(heading, max(map(len, words))) if heading in right else [heading])
    for number, (heading, lines) in enumerate(zip(headings, wrapped, strict=True)):
        above = "\n" * (max(map(len, wrapped)) - len(lines))
        justify, whole = ("right", True) if heading in right else ("left", number == 0 and not wrap_first)
        table.add_column(above + "\n".join(lines), justify=justify, no_wrap=whole, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def terminal_table(s: Summary) -> Table:
    """Final quality, and the cost of the target, or of the baseline's quality if there is none."""
    columns = {column.name: column for column in list_columns(s)}
    shown = {"final_mean": columns["final_mean"].heading}
    to, compared = "baseline" if s.target is None else "target", s.compared and s.higher is not None
    if compared or s.target is not None:
        rounds = columns[f"rounds_to_{to}"]
        shown |= {rounds.name: f"rounds {rounds.group}", f"bytes_to_{to}": "bytes to it"}
    else:
        shown["total_bytes"] = "bytes"
    if compared:
        shown["bytes_change" if to == "baseline" else "target_bytes_change"] = f"against {s.baseline}"
    rows, styles = [], []
    for row in s.rows:
        marks = [*s.marks(row), *remarks_on_seeds(s, row)]
        rows.append([row.label, *(columns[name].text(row) for name in shown), ", ".join(marks)])
        styles.append("bold" if row is s.best else None)
    for reference in list_references(s):  # which send nothing, so that they have no cost to show
        rows.append([reference.label, reference.text(s.metric), *[""] * (len(shown) - 1), reference.about])
        styles.append("dim")
    table = make_table(["method", *shown.values(), ""], rows, right=list(shown.values()), wrap_first=True)
    for made, style in zip(table.rows, styles, strict=True):
        made.style = style
    return table


def summary_csv(s: Summary) -> str:
    """The results, one line per method; changes are relative to the baseline."""
    columns = list_columns(s)
    return _to_csv({column.name: column.known(row) for column in columns} for row in s.rows)


def rounds_csv(records: Records) -> str:
    """Every recorded round of every run; a metric is empty where it was not evaluated or not finite."""
    return _to_csv(_list_rounds(records))


def _list_rounds(records: Records) -> Iterator[dict[str, Any]]:
    timed = any(np.isfinite(run.virtual).any() for run in records.runs)
    for run in records.runs:
        nothing = np.full(len(run.round), np.nan)
        columns = {name: run.metrics.get(name, nothing) for name in records.metrics}
        columns |= {"bytes_down": run.bytes_down, "bytes_up": run.bytes_up}
        columns |= {"seconds": run.seconds, "cumulative_bytes": run.bytes}
        if timed:
            staleness = run.timing.staleness if run.timing else nothing
            columns |= {VIRTUAL: run.virtual, "staleness_mean": staleness}
        for i, r in enumerate(run.round):
            numbers = {name: values[i].item() for name, values in columns.items()}
            yield {"label": run.label, "seed": run.seed, "round": int(r), **numbers}


def _to_csv(lines: Iterable[Mapping[str, Any]]) -> str:
    lines, out = list(lines), io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _csv_cell(value) for name, value in line.items()})
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    """Empty for what is not known; what a spreadsheet would take for a formula is quoted."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if formula else value
