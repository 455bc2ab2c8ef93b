"""The peers beside Undrift, the plain loop and the bare step, all measured in one run: `make bench-peers`.

Every row is a process of its own that holds a whole federation.  They take turns: one does rounds for a while, says how
long each took, and waits for its next turn, so that whatever else the machine does falls on all of them alike.  Starting,
compiling and the first rounds are not counted.  No row evaluates or records anything.

    python -m benchmarks.peers --only W1 W2 --peers fedjax pfl --turns 5
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import date
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.bench import RESULTS, show, summary
from benchmarks.peers import own
from benchmarks.peers.environments import PEERS, Unavailable, python
from benchmarks.peers.rows import Row
from benchmarks.peers.turns import Work
from benchmarks.workloads import WORKLOADS, Workload

Starts = dict[str, Callable[[Work], Row]]


def starts(w: Workload, peers: list[str]) -> Starts:
    """How to start every row of a workload, by name."""
    found: Starts = {name: lambda work, name=name: Row.of(work, "own", name) for name in own.ROWS}
    for peer in PEERS:
        if peer.name in peers and w.name in peer.workloads:
            found[peer.name] = lambda work, peer=peer: Row.of(
                work, peer.module, interpreter=python(peer)
            )
    return found


def measured(w: Workload, peers: list[str], threads: int, turns: int, seconds: float) -> Any:
    """Figures of every row of a workload that runs, and the reasons of those that do not."""
    work = Work(**asdict(w), threads=threads)
    times: dict[str, list[float]] = {}
    about: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        rows: dict[str, Row] = {}
        for name, start in starts(w, peers).items():
            try:
                rows[name] = stack.enter_context(start(work))
                about[name] = rows[name].ready()
                rows[name].rounds_for(seconds)  # warm
                times[name] = []
            except Unavailable as error:
                missing[name] = str(error)
                rows.pop(name, None)
        for _ in range(turns):
            for name in list(rows):
                try:
                    times[name] += rows[name].rounds_for(seconds)
                except Unavailable as error:
                    missing[name] = str(error)
                    del rows[name], times[name]
    figures = {name: summary(each) | about[name] for name, each in times.items()}
    return figures, missing


def overview(speeds: dict[str, Any], missing: dict[str, dict[str, str]]) -> None:
    table = Table(title="ms a round, median (times Undrift's)")
    table.add_column("")
    for w in speeds:
        table.add_column(w, justify="right")
    names = [*own.ROWS, *(peer.name for peer in PEERS)]
    for name in names:
        if not any(name in rows for rows in speeds.values()):
            continue
        cells = []
        for w, rows in speeds.items():
            if name in rows:
                ratio = rows[name]["median"] / rows["undrift"]["median"]
                cells.append(f"{rows[name]['median']:.2f} ({ratio:.2f})")
            else:
                cells.append("failed" if name in missing[w] else "-")
        table.add_row(name, *cells)
    Console(width=140).print(table)
    for w, reasons in missing.items():
        for name, reason in reasons.items():
            print(f"{name} on {w}: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--only", nargs="*", default=[w.name for w in WORKLOADS])
    parser.add_argument("--peers", nargs="*", choices=names, default=names)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="a turn, about")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that rows are ended, too
    # libraries that count cores by themselves (XLA, Ray) get the same number of them as torch gets threads
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.threads])
    speeds: dict[str, Any] = {}
    missing: dict[str, dict[str, str]] = {}
    for w in WORKLOADS:
        if w.name in asked.only:
            speeds[w.name], missing[w.name] = measured(
                w, asked.peers, asked.threads, asked.turns, asked.seconds
            )
            show(w.name, speeds[w.name])
    overview(speeds, missing)
    machine = {
        "processor": platform.machine(),
        "threads": asked.threads,
        "torch": torch.__version__,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{date.today()}-peers.json"
    found = {"machine": machine, "peers": speeds, "missing": missing}
    path.write_text(json.dumps(found, indent=1))
    print(f"written to {path.relative_to(RESULTS.parents[1])}")


if __name__ == "__main__":
    main()
