"""The rows that are not peers, measured in the same way: Undrift, the plain loop, the bare step."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import bench, plain
from benchmarks.peers.turns import Gate, work
from benchmarks.workloads import WORKLOADS, Workload

ROWS: dict[str, Callable[[Workload], Iterator[Any]]] = {
    "undrift": lambda w: bench.undrift(w, w.problem()),
    "plain loop": plain.plain,
    "bare step": plain.bare,
}


def main() -> None:
    asked = work()
    torch.set_num_threads(asked.threads)
    w = next(each for each in WORKLOADS if each.name == asked.name)
    gate = Gate("undrift", lambda: w.cohort * w.steps * w.batch)
    for _ in ROWS[sys.argv[1]](w):
        if not gate():
            break


if __name__ == "__main__":
    main()
