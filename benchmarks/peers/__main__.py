"""The peers beside Undrift, the plain loop and the bare step, all measured in one run: `make bench-peers`.

How rows take turns is told in measuring.py.

    python -m benchmarks.peers --only W1 W2 --peers fedjax pfl --turns 5
"""

import argparse
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.peers import own
from benchmarks.peers.environments import PEERS
from benchmarks.peers.measuring import AGAIN, measured
from benchmarks.tables import show, written
from benchmarks.workloads import VIRTUAL, WORKLOADS


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
    parser.add_argument("--only", nargs="*", default=[w.name for w in (*WORKLOADS, VIRTUAL)])
    parser.add_argument("--peers", nargs="*", choices=names, default=names)
    parser.add_argument("--evaluated", type=int, default=0, help="test samples, after every round of the rows that can")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="a turn, about")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that rows are ended, too
    # libraries that count cores by themselves (XLA, Ray) get the same number of them as torch gets threads
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.threads])
    speeds: dict[str, Any] = {}
    missing: dict[str, dict[str, str]] = {}
    for w in (*WORKLOADS, VIRTUAL):
        if w.name in asked.only:
            w = replace(w, evaluated=asked.evaluated)
            speeds[w.name], missing[w.name] = measured(w, asked.peers, asked.threads, asked.turns, asked.seconds)
            show(w.name, speeds[w.name])
            # after every workload, since all of them together take long
            kind = "evaluated" if asked.evaluated else "peers"
            path = written(kind, asked.threads, {kind: speeds, "missing": missing})
            print(f"written to {path}", flush=True)
    overview(speeds, missing)


if __name__ == "__main__":
    main()
