"""What each kernel of the compiler brings: rounds with all of them, and with each switched off, in turn.

    python -m benchmarks.kernels [W1 W2 ... together]

A ratio above 1 is the time that a round takes longer without the kernel.  "together" are the twenty runs of
benchmarks/sweeps.py as one computation.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from time import perf_counter
from typing import Any

import torch

from benchmarks import sweeps
from benchmarks.peers.own import undrift
from benchmarks.tables import show, summary, written
from benchmarks.workloads import WORKLOADS
from undrift.compiler import kernels
from undrift.simulation.batched_runs import rounds_together

METHODS = {"W2": ("fedavg", "fedavg-m-vr"), "W5": ("scaffold",)}  # others: the workload's own
WARM_UP = 3  # rounds in which programs are built


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["W1", "W2", "W5", "W3", "W4", "together"])
    parser.add_argument("--rounds", type=int, default=60, help="of every row, at most")
    parser.add_argument("--seconds", type=float, default=60.0, help="for every workload")
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for w in WORKLOADS:
        if w.name in asked.names:
            for method in METHODS.get(w.name, (w.method,)):
                title = f"{w.name}, {method}"
                problem = w.problem()
                start = partial(undrift, w, problem, method)
                found[title] = compare(start, asked.rounds, asked.seconds)
                show(title, found[title])
    if "together" in asked.names:
        trials = sweeps.trials()
        start = partial(rounds_together, trials, **sweeps.SETTINGS, engine="compiled")
        title = f"W1, {len(trials)} runs together"
        found[title] = compare(start, asked.rounds, asked.seconds)
        show(title, found[title])
    print(written("kernels", torch.get_num_threads(), found))


def compare(start: Callable[[], Iterator[Any]], repetitions: int, seconds: float) -> dict[str, Any]:
    """Times of a round with all kernels, without each, and without any: a round of each in turn, in random order."""
    rows: dict[str, tuple[str, ...]] = {"all kernels": ()}
    rows |= {f"without {name}": (name,) for name in kernels.KERNELS}
    rows |= {"without any": ("all",)}
    playing = {name: start() for name in rows}
    times: dict[str, list[float]] = {name: [] for name in rows}
    end = perf_counter() + seconds
    for done in range(WARM_UP + repetitions):
        if done >= WARM_UP + 3 and perf_counter() > end:
            break
        order = list(rows.items())
        Random(done).shuffle(order)  # caches are warm with what was played before
        for name, off in order:
            took = play_one(playing[name], off)
            if done >= WARM_UP:
                times[name].append(took)
    return {name: summary(each) for name, each in times.items()}


def play_one(rounds: Iterator[Any], off: tuple[str, ...]) -> float:
    with kernels.without(*off):
        began = perf_counter()
        next(rounds)
        return perf_counter() - began


if __name__ == "__main__":
    main()
