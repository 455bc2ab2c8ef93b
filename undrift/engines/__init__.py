"""Engines: ways of visiting clients.  Each gives the same trajectory.

An engine is a function that takes one exchange to some clients and yields the results chunk by chunk, always with a row a
client: `(clients, up, state)`.  What is done with them (checks, sums, bytes) is the same for all: see `exchange.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from undrift.engines.batched import batched
from undrift.engines.compiled import compiled
from undrift.engines.sequential import sequential
from undrift.states import ClientStates
from undrift.work import Work

Local: TypeAlias = Callable[[Any, Any, Work], tuple[Any, Any]]
Results: TypeAlias = Iterator[tuple[Sequence[int], Any, Any]]
Lend: TypeAlias = Callable[[Sequence[int], bool], Work]
Engine: TypeAlias = Callable[[Local, Any, ClientStates, Sequence[int], Lend, int], Results]

ENGINES: dict[str, Engine] = {"sequential": sequential, "batched": batched, "compiled": compiled}
