"""Records with a row for each run, or for each client of each run."""

from typing import Any

from torch import Tensor

from undrift.core.records import map_tensors, rebuild, tensors
from undrift.simulation.aggregation import is_finite

CLOSE = 1e-9  # relative: rows that are computed together equal rows alone


class Means:
    """The weighted means of what the clients of each run sent, added up chunk by chunk so that none is kept."""

    def __init__(self, seeds: int, width: int):
        self.shape = seeds, width
        self.totals: list[Tensor] = []
        self.record: Any = None

    def add(self, up: Any, seeds: slice) -> None:
        """Add what came of a chunk: a row for each run of some seeds."""
        whole = slice(0, self.shape[0])
        self.record = up
        if not self.totals and seeds == whole:
            self.totals = [x.view(*self.shape, -1) for x in tensors(up)]
            return
        self.totals = self.totals or [x.new_zeros(*self.shape, x.shape[1]) for x in tensors(up)]
        for x, total in zip(tensors(up), self.totals, strict=True):
            total[seeds] += x.view_as(total[seeds])

    def total(self) -> Any:
        """A record like those that came, a row a run."""
        return rebuild(self.record, iter([x.flatten(0, 1) for x in self.totals]))


def sum_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows by seed, client and run, added up over clients with their weights, `[seeds, clients]`."""
    seeds, clients = weights.shape
    each = rows.view(seeds, clients, -1)
    width = len(rows) // weights.numel()
    return (weights.unsqueeze(1).to(rows.dtype) @ each).view(seeds * width, -1)


def not_finite(numbers: Tensor) -> list[int]:
    """Which of them are not finite."""
    return [] if is_finite(numbers) else (~numbers.isfinite()).nonzero().flatten().tolist()


def divide(n: int, most: int) -> list[slice]:
    """Slices of at most so many, as equal as can be."""
    parts = -(-n // max(1, min(n, most)))
    size = -(-n // parts)
    return [slice(a, min(a + size, n)) for a in range(0, n, size)]


def row_of(record: Any, r: int) -> Any:
    """The record of one run, which later rounds do not touch."""
    return map_tensors(lambda x: x[r].clone(), record)


def close(a: Tensor, b: Tensor) -> bool:
    """Whether they are the same but for rounding."""
    return a.shape == b.shape and float((a - b).abs().max()) <= CLOSE * float(b.abs().max())
