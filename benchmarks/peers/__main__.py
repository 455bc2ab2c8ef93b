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
AGAIN = "undrift, beside the restless"


def starts(w: Workload, peers: list[str], restless: bool) -> Starts:
    """How to start the peers of a workload, by name."""
    return {
        peer.name: lambda work, peer=peer: Row.of(
            work, f"run_{peer.module}", interpreter=python(peer)
        )
        for peer in PEERS
        if peer.name in peers and w.name in peer.workloads and peer.restless == restless
    }


def check_work(work: Work, samples: int) -> None:
    """All rows train on as many samples a round, but for W4, where an epoch of 8 batches has 500 in place of 512."""
    asked = work.cohort * work.steps * work.batch
    if samples not in (asked, work.cohort * work.samples):
        raise Unavailable(f"trained on {samples} samples in its first round, not on {asked}")


class Measurement:
    """Figures of every row of a workload that runs, and the reasons of those that do not."""

    def __init__(self, work: Work, turns: int, seconds: float):
        self.work, self.turns, self.seconds = work, turns, seconds
        self.about: dict[str, dict[str, Any]] = {}
        self.times: dict[str, list[float]] = {}
        self.missing: dict[str, str] = {}

    def started(self, starts: Starts, stack: ExitStack) -> dict[str, Row]:
        """Rows that are ready and warm, one after another."""
        rows: dict[str, Row] = {}
        for name, start in starts.items():
            try:
                rows[name] = stack.enter_context(start(self.work))
                self.about[name] = rows[name].ready()
                check_work(self.work, self.about[name]["samples"])
                rows[name].warm(self.seconds)
            except Unavailable as error:
                self._lost(name, rows, error)
        return rows

    def take_turns(self, rows: dict[str, Row]) -> None:
        for _ in range(self.turns):
            for name, row in list(rows.items()):
                try:
                    self.times.setdefault(name, []).extend(row.rounds_for(self.seconds))
                except Unavailable as error:
                    self._lost(name, rows, error)

    def _lost(self, name: str, rows: dict[str, Row], error: Unavailable) -> None:
        self.missing[name] = str(error)
        self.times.pop(name, None)
        if name in rows:  # it was installed, at least
            rows.pop(name).end()  # now, since what it may still do would disturb the others

    def figures(self) -> dict[str, Any]:
        return {name: summary(each) | self.about[name] for name, each in self.times.items()}


def measured(w: Workload, peers: list[str], threads: int, turns: int, seconds: float) -> Any:
    found = Measurement(Work(**asdict(w), threads=threads), turns, seconds)
    ours: Starts = {name: lambda work, name=name: Row.of(work, "own", name) for name in own.ROWS}
    with ExitStack() as stack:
        rows = found.started(ours | starts(w, peers, restless=False), stack)
        found.take_turns(rows)
        # those that poll all the time come last, so as to disturb nobody but Undrift, which is measured again
        late = found.started(starts(w, peers, restless=True), stack)
        if late and "undrift" in rows:
            found.about[AGAIN] = found.about["undrift"]
            found.take_turns({AGAIN: rows["undrift"]} | late)
    return found.figures(), found.missing


def overview(speeds: dict[str, Any], missing: dict[str, dict[str, str]]) -> None:
    table = Table(title="ms a round, median (times Undrift's)")
    table.add_column("")
    for w in speeds:
        table.add_column(w, justify="right")
    names = [*own.ROWS, AGAIN, *(peer.name for peer in PEERS)]
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
    Console(width=150).print(table)
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
