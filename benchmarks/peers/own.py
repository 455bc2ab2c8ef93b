"""The rows that are not peers, measured in the same way: Undrift, the plain loop, the bare step."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import undrift as ud
from benchmarks import plain
from benchmarks.peers.turns import Gate, work
from benchmarks.workloads import DENSE, VIRTUAL, WORKLOADS, Workload
from undrift.simulation.engines import EngineChoice


def undrift(w: Workload, problem: Any, method: str | None = None, rounds: int = 10**6) -> Iterator[Any]:
    """Rounds of a run that is long enough to be compiled; what else suits it, `auto` picks."""
    settings = w.settings()
    engine: Any = "auto"
    if w.name == VIRTUAL.name:
        engine = "events"
    elif w.name in DENSE:
        engine = EngineChoice("compiled", w.cohort)
    return ud.rounds(ud.method(method or w.method), problem, rounds=rounds, engine=engine, **settings)


ROWS: dict[str, Callable[[Workload], Iterator[Any]]] = {
    "undrift": lambda w: undrift(w, w.problem()),
    "plain loop": plain.plain,
    "bare step": plain.bare,
    "matrix products": plain.products,
}


def rows_of(w: Workload) -> list[str]:
    """The rows of a workload; the matrix products are told apart for dense models only."""
    if w.name == VIRTUAL.name:
        return ["undrift"]  # the others wait for every client of a round
    if w.evaluated:
        return ["undrift", "plain loop"]  # the others are arithmetic of training
    return [name for name in ROWS if name != "matrix products" or w.name in DENSE]


def main() -> None:
    asked = work()
    torch.set_num_threads(asked.threads)
    w = next(replace(each, evaluated=asked.evaluated) for each in (*WORKLOADS, VIRTUAL) if each.name == asked.name)
    gate = Gate("undrift", lambda: w.cohort * w.steps * w.batch)
    for _ in ROWS[sys.argv[1]](w):
        if not gate():
            break


if __name__ == "__main__":
    main()
