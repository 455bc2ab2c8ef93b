"""What virtual time costs: arrivals a minute, next to the batched engine's visits; and whether the population matters.

    python benchmarks/events.py

Settings are measured in turn, several times, in one process, and in processor time: a busy machine slows all alike.
The model is tiny (10 numbers, 2 steps), so that what is measured is the engine.  Memory is that of a process of its own.
"""

import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import undrift as ud
from undrift.core.rng import Key, Purpose, stream

fork = multiprocessing.get_context("fork")

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


class Described:
    """Any number of clients in no space: f_i(y) = |y - e_i|^2 / 2 with e_i drawn by client."""

    def __init__(self, N: int, D: int = 1000):
        self.N, self.x0 = N, torch.zeros(D)
        self.weights = np.broadcast_to(1 / N, N)

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: Any) -> Any:
        D = len(self.x0)
        rows = [stream(Purpose.DATA, Key(0, 0), i).standard_normal(D) for i in clients]
        return torch.tensor(np.array(rows), dtype=self.x0.dtype)

    def draw_each(self, key: Key, rounds: Any, *others: Any) -> Any:
        return self.draw(key, *others)

    def grad(self, y: torch.Tensor, minibatches: torch.Tensor, k: int) -> torch.Tensor:
        return y - (minibatches if y.dim() == 2 else minibatches[0])

    def full_grad(self, y: torch.Tensor, clients: Sequence[int]) -> torch.Tensor:
        return self.grad(y, self.draw(Key(0, 0), clients, [], None), 0)

    def evaluate(self, x: torch.Tensor) -> dict[str, float]:
        return {}


def growth(N: int, at_work: int, method: Any, rounds: int) -> float:
    """Megabytes that a run takes at its peak, in a process of its own: all of them, Python's and torch's (Linux)."""

    def measured(found: Any) -> None:
        run(Described(N), at_work, method, 1)  # what is loaded once is not the run's
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = resident("VmRSS")
        run(Described(N), at_work, method, rounds)
        found.send(resident("VmHWM") - before)

    def run(on: Any, at_work: int, method: Any, rounds: int) -> None:
        ud.run(method, on, rounds=rounds, participation=ud.Uniform(10), local=ud.Local(steps=2, lr=0.1),
               population=POPULATION, server=ud.Buffer(10, concurrency=at_work), evaluate_every=rounds)  # fmt: skip

    ours, theirs = fork.Pipe()
    child = fork.Process(target=measured, args=(theirs,))
    child.start()
    found = ours.recv()
    child.join()
    return found / 1e3


def resident(what: str) -> int:
    """Kilobytes of this process: VmRSS, now; VmHWM, at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1])


def memory() -> None:
    """What a run takes, for small and large populations."""
    print("megabytes that a run of 1000-number models takes at its peak:")
    for what, method, at_work, rounds in (
        ("FedAvg, 10 at work", ud.FedAvg(), 10, 200),
        ("FedAvg, 1000 at work", ud.FedAvg(), 1000, 200),
        ("SCAFFOLD, 10 at work", ud.Scaffold(), 10, 200),
        ("SCAFFOLD, 10 at work, 5 times the rounds", ud.Scaffold(), 10, 1000),
    ):
        few_mb, many_mb = (growth(N, at_work, method, rounds) for N in (2000, 1_000_000))
        print(f"{what:45} {few_mb:8.1f} of 2,000 clients {many_mb:8.1f} of 1,000,000")


def main() -> None:
    torch.set_num_threads(1)
    memory()  # first: memory that was freed is taken again unseen
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


if __name__ == "__main__":
    main()
