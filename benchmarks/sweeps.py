"""Twenty runs of W1 (5 step sizes x 4 seeds) as one computation, against one run and against one after another.

    python -m benchmarks.sweeps                     round by round, all rows in turn
    python -m benchmarks.sweeps --whole 500 2000    whole runs of so many rounds, each a process of its own

What counts are ratios of medians.  A whole run is one as users make it, engine "auto", evaluated every tenth round: its
seconds begin when data and model are there, and contain what is imported and compiled on the way.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F

import undrift as ud
from benchmarks.bench import interleaved
from benchmarks.tables import show, summary, written
from benchmarks.workloads import WORKLOADS
from undrift.simulation.batched_runs import Trial, rounds_together, run_together

LRS, SEEDS = (0.01, 0.02, 0.05, 0.1, 0.2), range(4)
SETTINGS: dict[str, Any] = {  # of rounds without an end and without evaluation
    "rounds": 10**6, "participation": ud.Uniform(WORKLOADS[0].cohort), "evaluate_every": 10**9,
}  # fmt: skip


def trials() -> list[Trial]:
    w = WORKLOADS[0]
    X, Y = w.data()
    problems = [
        ud.federate(
            (X, Y), (X[:10], Y[:10]), model=w.model(), loss=F.cross_entropy,
            clients=ud.IID(w.clients), seed=seed,
        )
        for seed in SEEDS
    ]  # fmt: skip
    return [
        Trial(ud.FedAvg(), problem, ud.Local(w.steps, batch=w.batch, lr=lr), seed)
        for seed, problem in zip(SEEDS, problems, strict=True)
        for lr in LRS
    ]


def rows_of(engine: str, each: list[Trial]) -> dict[str, Iterator[Any]]:
    common: dict[str, Any] = SETTINGS | {"engine": engine}

    def alone(trial: Trial) -> Iterator[Any]:
        return ud.rounds(trial.algorithm, trial.problem, local=trial.local, seed=trial.seed, **common)

    return {
        f"one run, {engine}": alone(each[0]),
        f"{len(each)} together, {engine}": rounds_together(each, **common),
        f"{len(each)} one after another, {engine}": zip(*map(alone, each), strict=True),
    }


def seconds_of(count: int, rounds: int) -> float:
    """How long the first so many trials take together, from their start to their end."""
    each = trials()[:count]
    settings: dict[str, Any] = {
        "rounds": rounds, "participation": ud.Uniform(WORKLOADS[0].cohort), "evaluate_every": 10,
    }  # fmt: skip
    began = perf_counter()
    if count > 1:
        run_together(each, **settings)
    else:
        (one,) = each
        ud.run(one.algorithm, one.problem, local=one.local, seed=one.seed, **settings)
    return perf_counter() - began


def whole(rounds: int, turns: int, threads: int) -> dict[str, dict[str, float]]:
    """Whole runs of so many rounds, in turns; the first of each, which may compile anew, is not counted."""
    counts = (1, len(LRS) * len(SEEDS))
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(turns + 1):
        for count in counts:
            asked = ("--trials", count, "--whole", rounds, "--threads", threads)
            command = [sys.executable, "-m", "benchmarks.sweeps", *map(str, asked)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[count].append(float(done.stdout))
    names = {1: "one run", counts[1]: f"{counts[1]} together"}
    return {names[count]: summary(each[1:]) for count, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--whole", type=int, nargs="+", help="whole runs of so many rounds")
    parser.add_argument("--turns", type=int, default=3, help="of whole runs")
    parser.add_argument("--trials", type=int, help=argparse.SUPPRESS)  # the process of a whole run
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.trials:
        return print(seconds_of(asked.trials, asked.whole[0]))
    found: dict[str, Any] = {}
    if asked.whole:
        for rounds in asked.whole:
            title = f"W1, whole runs of {rounds} rounds"
            found[title] = whole(rounds, asked.turns, asked.threads)
            show(title, found[title], unit="ms")
    else:
        each = trials()
        for engine in ("batched", "compiled"):
            times = interleaved(rows_of(engine, each), asked.repetitions, asked.seconds)
            title = f"W1, {asked.threads} threads, {engine}"
            found[title] = {name: summary(t) for name, t in times.items()}
            show(title, found[title])
    print("written to", written("sweeps-whole" if asked.whole else "sweeps", asked.threads, found))


if __name__ == "__main__":
    main()
