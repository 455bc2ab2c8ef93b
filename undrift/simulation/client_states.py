"""Client states between visits: one row per client, made when its state is first written."""

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, MethodFailure
from undrift.core.records import rebuild, tensors

States: TypeAlias = list[tuple[Sequence[int], Any]]  # of some clients, chunk by chunk


def half_of_memory() -> int:
    """What client states may take before they move to a file."""
    return psutil.virtual_memory().total // 2


class ClientStates:
    """The states of all clients that have been seen, as one growing table a field.

    Row 0 is what a client that has not been seen starts with.  Tables that would take more than `budget` bytes lie in
    a file without a name in `folder` (the system's for temporary files by default), mapped into memory: the file is
    gone when the process is.

    Where other processes hold the newest states, `refresh` writes them here; it is called before anything is read.
    """

    def __init__(self, initial: Any, budget: int | None = None, folder: Path | None = None):
        self._initial = initial
        self._budget = half_of_memory() if budget is None else budget
        self._folder = folder
        self._tables = [t.unsqueeze(0).clone() for t in tensors(initial)]
        self._rows: dict[int, int] = {}
        self._changed: set[int] = set()
        self.round = 0  # the last round written in full
        self.refresh: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self.seen())

    @property
    def initial(self) -> Any:
        """What a client that has not been seen starts with."""
        return self._initial

    @property
    def mapped(self) -> bool:
        """Whether the states have outgrown their budget and lie in a file."""
        return bool(self._tables) and self._bytes(len(self._tables[0])) > self._budget

    @property
    def row_bytes(self) -> int:
        """What one client takes."""
        return self._bytes(1)

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
        if not self._tables:
            return self._initial
        rows = self._rows_of(clients)
        each = [t.index_select(0, rows.to(t.device)) for t in self._tables]
        return rebuild(self._initial, iter(each))

    def gather_into(self, room: Sequence[Tensor], clients: Sequence[int]) -> None:
        """Copy the states of these clients, one row each, to the host: a tensor a field, in the order of `tensors`."""
        rows = self._rows_of(clients)
        for table, place in zip(self._tables, room, strict=True):
            if table.device == place.device:
                torch.index_select(table, 0, rows, out=place)
            else:
                place.copy_(table[rows.to(table.device)])

    def _rows_of(self, clients: Sequence[int]) -> Tensor:
        self._refreshed()
        return torch.tensor([self._rows.get(i, 0) for i in clients], dtype=torch.int64)

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store these states, one row per client."""
        if not self._tables or len(clients) == 0:
            return
        for i in clients:
            self._rows.setdefault(i, len(self._rows) + 1)
        self._changed.update(clients)
        self._make_room(len(self._rows) + 1)
        rows = torch.tensor([self._rows[i] for i in clients])
        for table, new in zip(self._tables, tensors(states), strict=True):
            table[rows.to(table.device)] = new

    def scatter_all(self, states: States) -> None:
        """Store the states of several groups of clients."""
        for clients, each in states:
            self.scatter(clients, each)

    def changed(self) -> list[int]:
        """The clients written since this was last asked, in ascending order."""
        self._refreshed()
        clients = sorted(self._changed)
        self._changed = set()
        return clients

    def seen(self) -> list[int]:
        """The clients that have a row of their own, in the order of rows."""
        self._refreshed()
        return list(self._rows)

    def copy(self, after_round: int | None = None) -> "ClientStates":
        """A copy that later writes do not touch."""
        if after_round is not None and after_round != self.round:
            raise RuntimeError(
                f"a snapshot of round {after_round} was asked for in round {self.round + 1}: "
                "take it before the next round"
            )
        self._refreshed()
        other = ClientStates(self._initial, self._budget, self._folder)
        other.round, other._rows = self.round, dict(self._rows)
        other._changed = set(self._changed)
        other._make_room(len(self._rows) + 1)
        for table, own in zip(other._tables, self._tables, strict=True):
            table[: len(self._rows) + 1] = own[: len(self._rows) + 1]
        return other

    def _refreshed(self) -> None:
        if self.refresh is not None:
            self.refresh()

    def _bytes(self, rows: int) -> int:
        return rows * sum(t[0].numel() * t.element_size() for t in self._tables)

    def _make_room(self, needed: int) -> None:
        if not self._tables or len(self._tables[0]) >= needed:
            return
        rows = max(needed, 2 * len(self._tables[0]))  # doubling: growth costs in proportion
        mapped = self._bytes(rows) > self._budget
        for f, table in enumerate(self._tables):
            shape = (rows, *table.shape[1:])
            larger = _mapped(shape, table, self._folder) if mapped else table.new_empty(shape)
            larger[: len(table)] = table
            self._tables[f] = larger


class StagedStates:
    """The states that a round makes, exchange by exchange: committed as a whole or not at all."""

    def __init__(self, clients: ClientStates):
        self.clients = clients
        self.new: States = []  # of the last exchange, not written yet
        self.old: States = []  # what earlier exchanges of the round wrote over

    def stage(self, states: States) -> None:
        """The states that an exchange has led to."""
        self.new = states

    def apply(self) -> None:
        """Let the next exchange of the round see them."""
        self.old += [(who, self.clients.gather(who)) for who, _ in self.new]
        self.clients.scatter_all(self.new)
        self.new = []

    def commit(self) -> None:
        """The round has happened."""
        self.clients.scatter_all(self.new)
        self.new, self.old = [], []

    def rollback(self) -> None:
        """The round has not happened."""
        self.clients.scatter_all(self.old[::-1])
        self.new, self.old = [], []


def _take_room(file: int, size: int, folder: Path | None) -> None:
    """Make a file this large: a full disk is an error now, no crash later."""
    if "posix_fallocate" in vars(os):
        return os.posix_fallocate(file, 0, size)
    if shutil.disk_usage(folder or tempfile.gettempdir()).free < size:  # macOS and Windows only tell
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(file, size)


def _mapped(shape: tuple[int, ...], like: Tensor, folder: Path | None) -> Tensor:
    """An empty tensor in a file without a name."""
    if like.device.type != "cpu":
        return like.new_empty(shape)  # a device has no files; its own allocator says what it lacks
    size = max(1, torch.Size(shape).numel() * like.element_size())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _take_room(file.fileno(), size, folder)
            return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=like.dtype).view(shape)
    except OSError as error:
        raise InvalidInput(
            f"client states need {size / 2**30:.1f} GiB on disk in {folder or tempfile.gettempdir()}, "
            f"which failed ({error.strerror}): make room, or choose a place with more"
        ) from error
