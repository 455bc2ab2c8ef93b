"""Engines: ways of visiting clients.  Each gives the same trajectory.

An engine is a function that takes one exchange to some clients and yields the results chunk by chunk, always with a row a
client: `(clients, up, state)`.  What is done with them (checks, sums, bytes) is the same for all: see `exchange.py`.
Which one a run uses is a `Choice`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from undrift.engines.batched import batched
from undrift.engines.choice import Choice, choose
from undrift.engines.compiled import compiled
from undrift.engines.memory import keep_freed_memory
from undrift.engines.sequential import sequential, side_by_side
from undrift.states import ClientStates
from undrift.work import Work

__all__ = ["Choice", "Engine", "Results", "choose", "engine_of"]

Local: TypeAlias = Callable[[Any, Any, Work], tuple[Any, Any]]
Results: TypeAlias = Iterator[tuple[Sequence[int], Any, Any]]
Lend: TypeAlias = Callable[[Sequence[int], bool], Work]
Engine: TypeAlias = Callable[[Local, Any, ClientStates, Sequence[int], Lend, int], Results]


def engine_of(choice: Choice, round: int) -> Engine:
    """The engine that a choice means in a round; on Ray, inside each worker."""
    keep_freed_memory()
    choice = choice.inner
    if choice.engine == "sequential":
        return sequential if choice.workers is None else side_by_side(choice.workers)
    return compiled if choice.engine == "compiled" and round >= choice.since else batched
