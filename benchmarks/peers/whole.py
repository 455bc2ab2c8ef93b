"""What `python -m benchmarks.whole` gives a peer's script: the federation of every seed, and how many rounds.

Only numpy and the standard library, since it runs in every peer's environment.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

COHORT, BATCH, LR = 10, 32, 0.05


@dataclass(frozen=True)
class Federation:
    """Inputs `[n, 784]` and labels of each client, and of the test set."""

    seed: int
    X: list[Any]
    Y: list[Any]
    test_X: Any
    test_Y: Any


def rounds() -> int:
    return int(os.environ["UNDRIFT_WHOLE_ROUNDS"])


def federations() -> Iterator[Federation]:
    """Of every seed, one after another."""
    for seed in range(len(_files())):
        yield federation(seed)


def federation(seed: int) -> Federation:
    """Of one seed."""
    data = np.load(_files()[seed])
    mine = [data["index"][a : a + n] for a, n in zip(data["starts"], data["sizes"], strict=True)]
    X, Y = data["X"], data["Y"]
    return Federation(seed, [X[i] for i in mine], [Y[i] for i in mine], data["test_X"], data["test_Y"])


def _files() -> list[str]:
    return os.environ["UNDRIFT_WHOLE_FILE"].split(os.pathsep)
