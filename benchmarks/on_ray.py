"""What Ray costs: rounds with workers on Ray against the same number of workers in one process, in turn.

    python -m benchmarks.on_ray [--rounds 20] [--workers 2] [--workload W4]

Both compute one client after another, each worker on a core of its own; W4 is LeNet, 10 of 100 clients a round.  FedAvg's
clients remember nothing, so a cohort is cut into equal parts; SCAFFOLD's belong to workers, one of which is given more of
a small cohort than the other: that, and not Ray, is most of what it costs ("the larger part" says how much).
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from typing import Any

import torch

import undrift as ud
from benchmarks.bench import interleaved
from benchmarks.workloads import WORKLOADS, Workload
from undrift.simulation.engines import EngineChoice


def row(w: Workload, problem: Any, method: str, choice: EngineChoice) -> Iterator[Any]:
    return ud.rounds(ud.method(method), problem, rounds=10**6, engine=choice, **w.settings())


def larger_part(w: Workload, problem: Any, workers: int, rounds: int) -> float:
    """The mean over rounds of the largest part of a cohort, relative to an equal one, if clients belong to workers."""
    found = []
    for t in range(3, rounds + 3):  # those that are measured
        cohort = ud.Uniform(w.cohort).draw(0, t, problem.weights).clients
        largest = max(sum(i % workers == k for i in cohort) for k in range(workers))
        found.append(largest * workers / w.cohort)
    return statistics.mean(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--workload", default="W4")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "scaffold"])
    told = parser.parse_args()
    os.environ["RAY_worker_niceness"] = "0"  # Ray's processes step back behind others: not here
    (w,) = [w for w in WORKLOADS if w.name == told.workload]
    problem, workers = w.problem(), told.workers
    torch.set_num_threads(workers)
    here = EngineChoice("sequential", workers=workers)
    away = EngineChoice("ray", workers=workers, shards=workers, inside="sequential")
    for method in told.methods:
        rows = {"here": row(w, problem, method, here), "ray": row(w, problem, method, away)}
        times = interleaved(rows, told.rounds, seconds=10**6)
        for each in rows.values():
            each.close()  # pyright: ignore[reportAttributeAccessIssue]
        ratios = sorted(b / a for a, b in zip(times["here"], times["ray"], strict=True))
        medians = {name: statistics.median(found) for name, found in times.items()}
        print(
            f"{w.name}, {method}, {workers} workers, {told.rounds} rounds in turn: "
            f"{1e3 * medians['here']:.0f} ms in one process, {1e3 * medians['ray']:.0f} ms on Ray; ratio of medians "
            f"{medians['ray'] / medians['here']:.3f}, of rounds {statistics.median(ratios):.3f} "
            f"({ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f})",
            end="",
        )
        stateful = ud.method(method).client(problem.x0) is not None
        share = larger_part(w, problem, workers, told.rounds)
        print(f"; the larger part {share:.2f}" if stateful else "", flush=True)


if __name__ == "__main__":
    main()
