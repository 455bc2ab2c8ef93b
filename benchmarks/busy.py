"""What a busy core costs: rounds alone, and beside a process that takes one core, in turns.

python -m benchmarks.busy --tries 20
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from time import perf_counter, sleep
from typing import Any

import undrift as ud  # isort: skip (before torch: how OpenMP's threads wait is settled when that is loaded)
import torch

from benchmarks.tables import written
from benchmarks.workloads import WORKLOADS, Workload
from undrift.simulation.engines.choice import EngineChoice


@contextmanager
def busy_core() -> Iterator[None]:
    """A process beside this one that computes all the time."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def compare(workload: Workload, tries: int, seconds: float) -> dict[str, Any]:
    """Mean ms of a round, alone and beside a busy core, try by try."""
    engine = EngineChoice("compiled", chunk=workload.cohort)
    method = ud.method(workload.method)
    rounds = ud.rounds(method, workload.problem(), rounds=10**9, engine=engine, **workload.settings())
    next(rounds)
    began = perf_counter()
    for _ in islice(rounds, 20):
        pass
    count = max(5, round(20 * seconds / (perf_counter() - began)))

    def turn() -> float:
        start = perf_counter()
        for _ in islice(rounds, count):
            pass
        return 1e3 * (perf_counter() - start) / count

    alone, beside = [], []
    for _ in range(tries):
        alone.append(turn())
        with busy_core():
            beside.append(turn())
    ratios = [b / a for a, b in zip(alone, beside, strict=True)]
    found = {"alone": statistics.median(alone), "busy": statistics.median(beside), "ratio": statistics.median(ratios)}
    return found | {"worst ratio": max(ratios), "tries": tries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--only", nargs="*", default=["W1", "W2"])
    parser.add_argument("--write", action="store_true", help="write the result to benchmarks/results/")
    given = parser.parse_args()
    found = {w.name: compare(w, given.tries, given.seconds) for w in WORKLOADS if w.name in given.only}
    for name, row in found.items():
        print(name, ", ".join(f"{key} {value:.3g}" for key, value in row.items()))
    if given.write:
        spin = os.environ.get("GOMP_SPINCOUNT", "default")
        print(written("busy", torch.get_num_threads(), {"busy": {spin: found}}))


if __name__ == "__main__":
    main()
