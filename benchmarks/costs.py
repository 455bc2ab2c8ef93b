"""What metrics of the theory, recorded every ten rounds, and AdamW on clients cost on W2.

`python -m benchmarks.costs` measures and records.  Each variant alternates with plain FedAvg, in one process and compiled;
CPU seconds of one thread are compared, which other work on the machine disturbs less than the clock.
"""

import argparse
from time import process_time
from typing import Any

import torch

import undrift as ud
from benchmarks.tables import written
from benchmarks.workloads import WORKLOADS

METRICS = (("drift", "chi2", "tau_eff"), ("dissimilarity",), ("tau_error:10",))
VARIANTS: dict[str, dict[str, Any]] = {
    ", ".join(f"`{name}`" for name in names): {"metrics": names} for names in METRICS
} | {'`optimiser="adamw"`': {"optimiser": "adamw"}}


def measure(rounds: int, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each variant over those of plain FedAvg, one ratio a repetition."""
    workload = next(each for each in WORKLOADS if each.name == "W2")
    problem, settings = workload.problem(), workload.settings() | {"evaluate_every": 10}

    def seconds(metrics: tuple[str, ...] = (), **local: Any) -> float:
        work = ud.Local(steps=workload.steps, batch=workload.batch, lr=workload.lr / (50 if local else 1), **local)
        began = process_time()
        run: dict[str, Any] = settings | {"local": work, "metrics": metrics, "rounds": rounds}
        ud.run(ud.FedAvg(), problem, engine="compiled", progress=False, **run)
        return process_time() - began

    found: dict[str, list[float]] = {}
    for name, variant in VARIANTS.items():
        for more in ({}, variant):
            seconds(**more)  # compiles, and fills caches
        found[name] = [seconds(**variant) / seconds() for _ in range(repeats)]
        print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other burn seconds, too
    ratios = measure(asked.rounds, asked.repeats)
    print(written("costs", torch.get_num_threads(), {"rounds": asked.rounds, "ratios": ratios}))


if __name__ == "__main__":
    main()
