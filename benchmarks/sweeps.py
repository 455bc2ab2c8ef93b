"""Twenty runs of W1 (5 step sizes x 4 seeds) as one computation, against one run and against one after another.

    python -m benchmarks.sweeps --threads 1

Rounds of all rows are interleaved; what counts are ratios of medians.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

import undrift as ud
from benchmarks.bench import interleaved, show, summary
from benchmarks.workloads import WORKLOADS
from undrift.together import Trial, rounds_together

LRS, SEEDS = (0.01, 0.02, 0.05, 0.1, 0.2), range(4)


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
    common: dict[str, Any] = {
        "rounds": 10**6, "participation": ud.Uniform(WORKLOADS[0].cohort), "evaluate_every": 10**9, "engine": engine,
    }  # fmt: skip

    def alone(trial: Trial) -> Iterator[Any]:
        return ud.rounds(
            trial.algorithm, trial.problem, local=trial.local, seed=trial.seed, **common
        )

    return {
        f"one run, {engine}": alone(each[0]),
        f"{len(each)} together, {engine}": rounds_together(each, **common),
        f"{len(each)} one after another, {engine}": zip(*map(alone, each), strict=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40.0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    each = trials()
    for engine in ("batched", "compiled"):
        times = interleaved(rows_of(engine, each), asked.repetitions, asked.seconds)
        show(f"W1, {asked.threads} threads", {name: summary(t) for name, t in times.items()})


if __name__ == "__main__":
    main()
