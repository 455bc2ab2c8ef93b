"""Undrift against a plain PyTorch loop and the limits of the machine: `make bench`.

Rounds of all rows of a workload are interleaved, so that whatever else the machine does falls on all of them alike; what
counts are ratios of medians.  Results are written to benchmarks/results/ as JSON.
"""

import argparse
import json
import platform
import resource
import statistics
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

import undrift as ud
from benchmarks.plain import bare, plain, products
from benchmarks.workloads import WORKLOADS, Workload
from undrift.engines import Choice

RESULTS = Path(__file__).parent / "results"
METHODS = ("scaffold", "scaffold-m", "fedhbm", "fedavg-m-vr", "scaffold-m-vr")
Rounds = Iterator[Any]


def undrift(w: Workload, problem: Any, method: str | None = None, rounds: int = 10**6) -> Rounds:
    """Rounds of a long run, whose engine `auto` picks as it would for 100,000 rounds."""
    settings = w.settings()
    engine: Any = "auto"
    if torch.get_num_threads() and w.name in ("W1", "W2", "W5"):
        engine = Choice("compiled", w.cohort)
    return ud.rounds(
        ud.method(method or w.method), problem, rounds=rounds, engine=engine, **settings
    )


def interleaved(
    rows: dict[str, Rounds], repetitions: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds a round of every row, one round each in turn, until there are enough."""
    for rounds in rows.values():  # compiled, allocated, warm
        next(rounds)
        next(rounds)
    found: dict[str, list[float]] = {name: [] for name in rows}
    end = perf_counter() + seconds
    for done in range(repetitions):
        if done >= 2 and perf_counter() > end:
            break
        for name, rounds in rows.items():
            began = perf_counter()
            next(rounds)
            found[name].append(perf_counter() - began)
    return found


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


def speeds(names: list[str], repetitions: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for w in WORKLOADS:
        if w.name not in names:
            continue
        rows: dict[str, Rounds] = {
            "undrift": undrift(w, w.problem()),
            "plain loop": plain(w),
            "bare step": bare(w),
        }
        if w.name in ("W1", "W2", "W5"):
            rows["matrix products"] = products(w)
        times = interleaved(rows, repetitions, seconds)
        found[w.name] = {name: summary(each) for name, each in times.items()}
        show(w.name, found[w.name])
    return found


def methods(names: list[str], repetitions: int, seconds: float) -> dict[str, Any]:
    """What other methods cost, against FedAvg."""
    found: dict[str, Any] = {}
    for w in WORKLOADS:
        if w.name in names and w.name in ("W2", "W4"):
            problem = w.problem()
            rows = {name: undrift(w, problem, name) for name in ("fedavg", *METHODS)}
            times = interleaved(rows, repetitions, seconds)
            found[w.name] = {name: summary(each) for name, each in times.items()}
            show(f"{w.name}, methods", found[w.name], "fedavg")
    return found


def scaling(repetitions: int, seconds: float) -> dict[str, Any]:
    """Cost against the population, the cohort and the model: SCAFFOLD on logistic regression."""
    found: dict[str, Any] = {}

    def rounds_of(N: int, S: int, inputs: int, samples: int) -> Rounds:
        X, Y = torch.rand(N * samples, inputs), torch.arange(N * samples) % 10
        problem = ud.federate(
            (X, Y),
            (X[:10], Y[:10]),
            model=ud.models.logistic(inputs, 10),
            loss=cross_entropy,
            clients=ud.IID(N),
        )
        local = ud.Local(steps=6, batch=min(10, samples), lr=0.05)
        return ud.rounds(
            ud.Scaffold(), problem, rounds=10**6, participation=ud.Uniform(S), local=local,
            engine=Choice("compiled", S), evaluate_every=10**9,
        )  # fmt: skip

    groups: dict[str, dict[str, Callable[[], Rounds]]] = {
        "population": {
            f"N = {N:,}": lambda N=N: rounds_of(N, 10, 64, 2) for N in (10**3, 10**4, 10**5, 10**6)
        },
        "cohort": {f"S = {S}": lambda S=S: rounds_of(1000, S, 784, 60) for S in (10, 30, 100)},
        "model": {
            f"D = {10 * d + 10:,}": lambda d=d: rounds_of(200, 10, d, 60) for d in (60, 784, 7840)
        },
    }
    for name, group in groups.items():
        times = interleaved({row: make() for row, make in group.items()}, repetitions, seconds)
        found[name] = {row: summary(each) for row, each in times.items()}
        show(name, found[name], next(iter(group)))
    return found


def show(title: str, rows: dict[str, dict[str, float]], first: str | None = None) -> None:
    table = Table(title=title)
    for column in ("", "ms a round", "quartiles", "least", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    first = first or next(iter(rows))
    for name, row in rows.items():
        spread = f"{row['quarter']:.2f} to {row['three quarters']:.2f}"
        ratio = row["median"] / rows[first]["median"]
        table.add_row(name, f"{row['median']:.2f}", spread, f"{row['least']:.2f}", f"{ratio:.2f}")
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[w.name for w in WORKLOADS])
    parser.add_argument("--parts", nargs="*", default=["speeds", "methods", "scaling"])
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40.0, help="for every table, about")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found: dict[str, Any] = {
        "machine": {
            "processor": platform.machine(),
            "threads": asked.threads,
            "torch": torch.__version__,
        }
    }
    if "speeds" in asked.parts:
        found["speeds"] = speeds(asked.only, asked.repetitions, asked.seconds)
    if "methods" in asked.parts:
        found["methods"] = methods(asked.only, asked.repetitions, asked.seconds)
    if "scaling" in asked.parts:
        found["scaling"] = scaling(asked.repetitions, asked.seconds)
    found["peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{date.today()}-{'-'.join(asked.parts)}.json"
    path.write_text(json.dumps(found, indent=1))
    print(f"written to {path}; peak memory {found['peak memory, MiB']:.0f} MiB")


if __name__ == "__main__":
    main()
