"""What clients remember: one row a client, made when its state is first written."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from undrift.core import rebuild, tensors
from undrift.errors import MethodFailure


class ClientStates:
    """The states of all clients that have been seen, as one growing table a field.

    Row 0 is what a client that has not been seen starts with.
    """

    def __init__(self, initial: Any):
        self._initial = initial
        self._tables = [t.unsqueeze(0).clone() for t in tensors(initial)]
        self._rows: dict[int, int] = {}
        self.round = 0  # the last round written in full

    def __len__(self) -> int:
        return len(self._rows)

    def check(self, states: Any, where: str) -> None:
        """Raise MethodFailure unless these are states of the kind that clients start with."""
        found, expected = len(tensors(states)), len(self._tables)
        if type(states) is not type(self._initial) or found != expected:
            raise MethodFailure(
                f"{where}: local() returned {type(states).__name__} with {found} tensors as the client's state, "
                f"client() makes {type(self._initial).__name__} with {expected}: they must be alike"
            )

    def gather(self, clients: Sequence[int]) -> Any:
        """The states of these clients, one row each."""
        rows = torch.tensor([self._rows.get(i, 0) for i in clients])
        return rebuild(self._initial, iter([t[rows.to(t.device)] for t in self._tables]))

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Remember these states, one row a client."""
        if not self._tables or len(clients) == 0:
            return
        for i in clients:
            self._rows.setdefault(i, len(self._rows) + 1)
        needed = len(self._rows) + 1
        rows = torch.tensor([self._rows[i] for i in clients])
        for f, new in enumerate(tensors(states)):
            table = self._tables[f]
            if len(table) < needed:
                self._tables[f] = table = _grown(table, needed)
            table[rows.to(table.device)] = new

    def copy(self, after_round: int | None = None) -> "ClientStates":
        """A copy that later writes do not touch."""
        if after_round is not None and after_round != self.round:
            raise RuntimeError(
                f"a snapshot of round {after_round} was asked for in round {self.round + 1}: "
                "take it before the next round"
            )
        other = ClientStates(self._initial)
        other.round = self.round
        other._tables = [t[: len(self._rows) + 1].clone() for t in self._tables]
        other._rows = dict(self._rows)
        return other


def _grown(table: Tensor, needed: int) -> Tensor:
    """The same table with room for more rows; doubling keeps the cost of growth in proportion."""
    larger = table.new_empty((max(needed, 2 * len(table)), *table.shape[1:]))
    larger[: len(table)] = table
    return larger
