"""The table for a terminal, and CSV files."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from undrift.experiments.report.figures import Reach
from undrift.experiments.report.load import Records
from undrift.experiments.report.summary import Row, Summary
from undrift.experiments.report.timing import VIRTUAL
from undrift.experiments.report.words import NEVER, goal, in_bytes, in_percent, number, quality_of


def rich_table(s: Summary) -> Table:
    """Method, quality, and the price of the target (of the baseline's quality if there is none)."""
    to_target = s.target is not None
    quality = f"{s.baseline}'s {number(s.quality, s.figure)}"
    what = f"target {goal(s.target, s.figure)}" if to_target else quality
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in (
        f"final {s.figure}",
        f"rounds to {what}",
        "bytes to it",
        f"against {s.baseline}",
    ):
        table.add_column(Text(heading), justify="right")
    table.add_column("")
    for row in s.rows:
        table.add_row(*map(Text, _cells(s, row)), style="bold" if row.best else None)
    return table


def _cells(s: Summary, row: Row) -> list[str]:
    quality = quality_of(s, row)
    if row.lacking:
        rounds, price, part = "–", "–", "–"
    elif s.target is not None:
        there = row.reach
        rounds = NEVER if there is None or there.rounds is None else str(there.rounds)
        price, part = in_bytes(there.bytes if there else None), in_percent(row.reach_change)
    elif row.cost is not None:
        rounds = str(row.cost.rounds) if row.cost.reached else f"{NEVER} ({row.cost.rounds})"
        price, part = in_bytes(row.cost.bytes), in_percent(row.bytes_change)
    else:
        rounds, price, part = "–", "–", "–"
    marks = ["best"] * row.best + ["baseline"] * row.baseline + list(row.remarks)
    return [row.label, quality, rounds, price, part, ", ".join(marks)]


def summary_csv(s: Summary) -> str:
    """The table, a line a method: bytes are down + up over all clients, changes are parts of the baseline's cost."""
    return _csv(_plain(s, row) for row in s.rows)


def _plain(s: Summary, row: Row) -> dict[str, Any]:
    cost, reach = row.cost, row.reach
    line: dict[str, Any] = {
        "method": row.label,
        "seeds": len(row.seeds),
        "figure": s.figure,
        "final_mean": row.mean,
        "final_std": row.std,
        "last_rounds": s.last,
        "best": row.best,
        "baseline": row.baseline,
        "rounds_planned": row.planned,
        "rounds_recorded": row.recorded,
        "total_bytes": row.total_bytes,
        "total_seconds": row.total_seconds,
        "baseline_quality": s.quality,
        "reached": cost.reached if cost else None,
        "rounds_to_baseline": cost.rounds if cost else None,
        "bytes_to_baseline": cost.bytes if cost else None,
        "bytes_change": row.bytes_change,
        "seconds_to_baseline": cost.seconds if cost else None,
        "seconds_change": row.seconds_change,
    }
    if s.timed:
        line |= {
            "total_virtual_seconds": row.total_virtual,
            "virtual_seconds_to_baseline": cost.virtual if cost else None,
            "virtual_seconds_change": row.virtual_change,
        }
    if s.target is not None:
        never = None if reach is None else NEVER
        reach = reach or Reach()
        line |= {
            "target": s.target,
            "rounds_to_target": never if reach.rounds is None else reach.rounds,
            "bytes_to_target": reach.bytes,
            "seconds_to_target": reach.seconds,
            "virtual_seconds_to_target": reach.virtual,
        }
    return line | {"remarks": "; ".join(row.remarks)}


def rounds_csv(records: Records) -> str:
    """Every recorded round of every run; a figure is empty where it was not evaluated or not finite."""
    return _csv(_rounds(records))


def _rounds(records: Records) -> Iterable[dict[str, Any]]:
    timed = any(np.isfinite(run.virtual).all() for run in records.runs)
    for run in records.runs:
        for i, r in enumerate(run.round):
            line: dict[str, Any] = {"label": run.label, "seed": run.seed, "round": int(r)}
            for name in records.metrics:
                line[name] = float(run.metrics[name][i]) if name in run.metrics else None
            line |= {"bytes_down": int(run.bytes_down[i]), "bytes_up": int(run.bytes_up[i])}
            line |= {"seconds": float(run.seconds[i]), "cumulative_bytes": int(run.bytes[i])}
            if timed:
                line[VIRTUAL] = float(run.virtual[i])
                line["staleness_mean"] = run.timing and float(run.timing.staleness[i])
            yield line


def _csv(lines: Iterable[Mapping[str, Any]]) -> str:
    lines = list(lines)
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: _cell(value) for key, value in line.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Nothing for what is not known; what a spreadsheet would take for a formula is quoted."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value
