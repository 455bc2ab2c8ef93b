"""Figures of a measurement, as a table and as a file."""

import json
import platform
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def summary(times: list[float]) -> dict[str, float]:
    ms = sorted(1e3 * t for t in times)
    low, high = ms[len(ms) // 4], ms[3 * len(ms) // 4]
    return {
        "median": statistics.median(ms),
        "quarter": low,
        "three quarters": high,
        "least": ms[0],
        "rounds": len(ms),
    }


def show(
    title: str,
    rows: dict[str, dict[str, float]],
    first: str | None = None,
    unit: str = "ms a round",
) -> None:
    table = Table(title=title)
    for column in ("", unit, "quartiles", "least", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    first = first or next(iter(rows))
    for name, row in rows.items():
        spread = f"{row['quarter']:.2f} to {row['three quarters']:.2f}"
        ratio = row["median"] / rows[first]["median"]
        table.add_row(name, f"{row['median']:.2f}", spread, f"{row['least']:.2f}", f"{ratio:.2f}")
    Console(width=100).print(table)


def written(name: str, threads: int, found: dict[str, Any]) -> Path:
    """Write figures to benchmarks/results/, with what they were measured on."""
    machine = {
        "processor": platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{date.today()}-{name}.json"
    path.write_text(json.dumps({"machine": machine} | found, indent=1))
    return path.relative_to(RESULTS.parents[1])
