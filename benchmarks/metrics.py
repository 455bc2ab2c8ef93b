"""What metrics of the theory cost on W2, recorded every ten rounds: `python -m benchmarks.metrics`.

Runs with and without alternate, in one process and with the same engine; CPU seconds are compared, which other work on
the machine disturbs less than the clock.
"""

import argparse
import statistics
from time import process_time
from typing import Any

import undrift as ud
from benchmarks.workloads import WORKLOADS

SETS = (("drift", "chi2", "tau_eff"), ("dissimilarity",), ("tau_error:10",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    workload = next(each for each in WORKLOADS if each.name == "W2")
    problem = workload.problem()
    settings: dict[str, Any] = workload.settings() | {"evaluate_every": 10}

    def seconds(metrics: tuple[str, ...]) -> float:
        began = process_time()
        ud.run(ud.FedAvg(), problem, rounds=asked.rounds, engine="compiled", metrics=metrics, **settings)
        return process_time() - began

    for metrics in SETS:
        for warm_up in ((), metrics):  # compiles, and fills caches
            seconds(warm_up)
        ratios = []
        for _ in range(asked.repeats):
            plain = seconds(())
            ratios.append(seconds(metrics) / plain)
        cost = 100 * (statistics.median(ratios) - 1)
        print(
            f"{', '.join(metrics)}: {cost:+.1f} % (from {100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f})"
        )


if __name__ == "__main__":
    main()
