"""Undrift against a plain PyTorch loop and the limits of the machine: `make bench`.

Speeds are those of processes that take turns (peers/measuring.py); methods and sizes are compared round by round in one
process.  Either way whatever else the machine does falls on all rows alike, and what counts are ratios of medians.
Results are written to benchmarks/results/ as JSON.
"""

import argparse
import resource
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import undrift as ud
from benchmarks.peers.measuring import measured
from benchmarks.peers.own import undrift
from benchmarks.tables import show, summary, written
from benchmarks.workloads import WORKLOADS
from undrift.simulation.engines import EngineChoice

METHODS = ("scaffold", "scaffold-m", "fedhbm", "fedavg-m-vr", "scaffold-m-vr")
Rounds = Iterator[Any]


def interleaved(rows: dict[str, Rounds], repetitions: int, seconds: float) -> dict[str, list[float]]:
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


def speeds(names: list[str], threads: int, turns: int, seconds: float) -> dict[str, Any]:
    """Undrift beside the plain loop and the limits, each a process of its own."""
    found: dict[str, Any] = {}
    for w in WORKLOADS:
        if w.name in names:
            found[w.name], missing = measured(w, [], threads, turns, seconds)
            if missing:
                raise RuntimeError(f"{w.name}: {missing}")
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
            engine=EngineChoice("compiled", S), evaluate_every=10**9,
        )  # fmt: skip

    groups: dict[str, dict[str, Callable[[], Rounds]]] = {
        "population": {f"N = {N:,}": lambda N=N: rounds_of(N, 10, 64, 2) for N in (10**3, 10**4, 10**5, 10**6)},
        "cohort": {f"S = {S}": lambda S=S: rounds_of(1000, S, 784, 60) for S in (10, 30, 100)},
        "model": {f"D = {10 * d + 10:,}": lambda d=d: rounds_of(200, 10, d, 60) for d in (60, 784, 7840)},
    }
    for name, group in groups.items():
        times = interleaved({row: make() for row, make in group.items()}, repetitions, seconds)
        found[name] = {row: summary(each) for row, each in times.items()}
        show(name, found[name], next(iter(group)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[w.name for w in WORKLOADS])
    parser.add_argument("--parts", nargs="*", default=["speeds", "methods", "scaling"])
    parser.add_argument("--turns", type=int, default=5, help="of every row, in speeds")
    parser.add_argument("--repetitions", type=int, default=40, help="rounds, in other parts")
    parser.add_argument("--seconds", type=float, default=40.0, help="for every table, about")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found: dict[str, Any] = {}
    if "speeds" in asked.parts:
        a_turn = asked.seconds / asked.turns / 4
        found["speeds"] = speeds(asked.only, asked.threads, asked.turns, a_turn)
    if "methods" in asked.parts:
        found["methods"] = methods(asked.only, asked.repetitions, asked.seconds)
    if "scaling" in asked.parts:
        found["scaling"] = scaling(asked.repetitions, asked.seconds)
    found["peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    path = written("-".join(asked.parts), asked.threads, found)
    print(f"written to {path}; peak memory {found['peak memory, MiB']:.0f} MiB")


if __name__ == "__main__":
    main()
