"""Engines: ways of visiting clients.  Each gives the same trajectory.

An engine is a function that takes one exchange to some clients and yields the results chunk by chunk, with a row a
client: `(clients, up, state)`.  An engine that is given the clients' weights may add up itself what they send, and then
yields `Added` for it.  What is done with results (checks, sums, bytes) is the same for all: see `exchange.py`.  Which
engine a run uses is a `Choice`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from undrift.core.work import Work
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines.batched import Local, Result, batched
from undrift.simulation.engines.choice import Choice, choose
from undrift.simulation.engines.compiled import Added, compiled, one_by_one
from undrift.simulation.engines.memory import keep_freed_memory
from undrift.simulation.engines.sequential import sequential, side_by_side

__all__ = ["Added", "Choice", "Engine", "Results", "choose", "engine_of"]

Results: TypeAlias = Iterator[Result]
Lend: TypeAlias = Callable[[Sequence[int], bool], Work]


class Engine(Protocol):
    """A way of visiting clients."""

    def __call__(
        self,
        local: Local,
        down: Any,
        states: ClientStates,
        clients: Sequence[int],
        lend: Lend,
        chunk: int,
        weights: Sequence[float] | None = None,
    ) -> Results: ...


def engine_of(choice: Choice, round: int) -> Engine:
    """The engine that a choice means in a round; on Ray, inside each worker."""
    keep_freed_memory()
    choice = choice.inner
    if choice.alone:
        if choice.compiles(round):
            return one_by_one(choice.workers)
        return sequential if choice.workers is None else side_by_side(choice.workers)
    return compiled if choice.compiles(round) else batched
