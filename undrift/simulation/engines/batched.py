"""The cohort as one computation: vectors `[S, D]`, in chunks so that memory stays bounded."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from undrift.core.errors import MethodFailure
from undrift.core.records import check_records, map_tensors
from undrift.core.work import NoCommonRound, Refused, Runner, Work
from undrift.simulation.client_states import ClientStates

Local: TypeAlias = Callable[[Any, Any, Work], tuple[Any, Any]]
Result: TypeAlias = tuple[Sequence[int], Any, Any]


def batched(
    local: Local,
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
    weights: Sequence[float] | None = None,
) -> Iterator[Result]:
    """Visit clients `chunk` at a time."""
    yield from in_chunks(local, same(down), states, clients, lend, chunk)


def same(down: Any) -> Callable[[Sequence[int]], Any]:
    """One message for all clients, as a row for each."""
    return lambda clients: map_tensors(lambda t: t.expand(len(clients), *t.shape), down)


def in_chunks(
    local: Local,
    downs: Callable[[Sequence[int]], Any],
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
) -> Iterator[Result]:
    """Visit clients a chunk at a time, each with a message of its own."""
    # A batch of one goes through other kernels (matrix times vector) with other rounding.  So a lone client is
    # computed twice over, and a chunk of any size gives the same bits.
    for ids, here in chunks(clients, chunk, rows=lambda n: max(n, 2)):
        yield visited(local, downs(here), states.gather(here), lend(here, False), ids)


def chunks(
    clients: Sequence[int], chunk: int, rows: Callable[[int], int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Clients a chunk at a time, and whom the `rows(n)` rows for n of them are for: the first is repeated to fill up."""
    for first in range(0, len(clients), chunk):
        ids = clients[first : first + chunk]
        yield ids, [*ids, *[ids[0]] * (rows(len(ids)) - len(ids))]


def visited(
    local: Local,
    down: Any,
    client: Any,
    work: Work,
    ids: Sequence[int],
    runner: Runner | None = None,
) -> Result:
    """One visit of some clients at once, who have the first rows."""
    work.runner = runner
    try:
        up, client = local(down, client, work)
        if len(work.clients) > len(ids):
            up, client = (map_tensors(lambda t: t[: len(ids)], each) for each in (up, client))
        check_records(up, client)
    except (NoCommonRound, Refused):
        raise
    except Exception as error:
        who, hint = f"client {ids[0]}", ""
        if len(ids) > 1:
            who, hint = f"clients {_some(ids)}", " (engine='sequential' names the client)"
        where = f"{who}, round {_some(work.rounds or [work.t])}, stage local"
        raise MethodFailure(f"{where}: {type(error).__name__}: {error}{hint}") from error
    return ids, up, client


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
