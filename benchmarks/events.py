"""What virtual time costs: arrivals a minute, next to the batched engine's visits; and whether the population matters.

    python benchmarks/events.py

Settings are measured in turn, several times, in one process, and in processor time: a busy machine slows all alike.
The model is tiny (10 numbers, 2 steps), so that what is measured is the engine.
"""

import time
import tracemalloc
from collections.abc import Callable

import torch

import undrift as ud

VISITS, REPEATS = 3000, 5
POPULATION = ud.Population(
    pace=ud.LogNormal(0.1, sigma=0.5),
    link=ud.Link(latency=0.05, down=1e6, up=1e6),
    dropout=ud.Dropout(before=0.02, after=0.02),
    jitter=0.2,
)


def problem(N: int) -> ud.Quadratic:
    random = torch.Generator().manual_seed(0)
    return ud.Quadratic(torch.eye(10).expand(N, 10, 10), torch.randn(N, 10, generator=random))


def visits(on: ud.Quadratic, size: int, timed: bool, at_work: int | None = None) -> int:
    """Carry out about VISITS visits, `size` to an update; how many they were."""
    run = ud.run(
        ud.FedAvg(),
        on,
        rounds=VISITS // size,
        participation=ud.Uniform(size),
        local=ud.Local(steps=2, lr=0.1),
        engine="events" if timed else "batched",
        population=POPULATION if timed else None,
        server=ud.Buffer(size, concurrency=at_work or 4 * size) if timed else None,
        evaluate_every=VISITS,
    )
    return sum(len(r.clients) for r in run.history)


def a_minute(settings: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Visits in a minute of processor time, for every setting: the best of several turns."""
    best = dict.fromkeys(settings, 0.0)
    for _ in range(REPEATS):
        for name, go in settings.items():
            began = time.process_time()
            count = go()
            best[name] = max(best[name], 60 * count / (time.process_time() - began))
    return best


def peak(on: ud.Quadratic) -> float:
    """Megabytes that a run of the engine takes besides the problem."""
    tracemalloc.start()
    visits(on, 50, timed=True)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found / 1e6


def main() -> None:
    torch.set_num_threads(1)
    few, many = problem(1000), problem(1_000_000)
    settings: dict[str, Callable[[], int]] = {}
    for size in (1, 5, 50):
        settings[f"batched, cohorts of {size}"] = lambda size=size: visits(few, size, False)
        settings[f"events, a buffer of {size}"] = lambda size=size: visits(few, size, True)
    settings["events, a buffer of 1, 20 at work"] = lambda: visits(few, 1, True, 20)
    settings["events, a buffer of 50, 1,000,000 clients"] = lambda: visits(many, 50, True)
    rates = a_minute(settings)
    for name, rate in rates.items():
        print(f"{name:45} {rate:12,.0f} visits a minute")
    for size in (1, 5, 50):
        ratio = rates[f"batched, cohorts of {size}"] / rates[f"events, a buffer of {size}"]
        print(f"virtual time costs a factor of {ratio:.1f} with a buffer of {size}")
    print(
        f"Python memory of a run: {peak(few):.1f} MB for 1,000 clients, {peak(many):.1f} MB for 1,000,000"
    )


if __name__ == "__main__":
    main()
