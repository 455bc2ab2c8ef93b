"""The cohort as one computation: vectors `[S, D]`, in chunks so that memory stays bounded."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from undrift.core import check_records, map_tensors
from undrift.errors import MethodFailure
from undrift.states import ClientStates
from undrift.work import NoCommonRound, Runner, Work


def batched(
    local: Callable[[Any, Any, Work], tuple[Any, Any]],
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
) -> Iterator[tuple[Sequence[int], Any, Any]]:
    """Visit clients `chunk` at a time."""
    # A batch of one goes through other kernels (matrix times vector) with other rounding.  So a lone client is
    # computed twice over, and a chunk of any size gives the same bits.
    yield from in_chunks(local, same(down), states, clients, lend, chunk, rows=at_least_two)


def at_least_two(n: int) -> int:
    return max(n, 2)


def same(down: Any) -> Callable[[Sequence[int]], Any]:
    """One message for all clients, as a row for each."""
    return lambda clients: map_tensors(lambda t: t.expand(len(clients), *t.shape), down)


def in_chunks(
    local: Callable[[Any, Any, Work], tuple[Any, Any]],
    downs: Callable[[Sequence[int]], Any],
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
    rows: Callable[[int], int],
    runner: Runner | None = None,
) -> Iterator[tuple[Sequence[int], Any, Any]]:
    """Visit clients a chunk at a time, as `rows(n)` rows for n of them: the first is repeated to fill up."""
    for first in range(0, len(clients), chunk):
        ids = clients[first : first + chunk]
        count = len(ids)
        here = [*ids, *[ids[0]] * (rows(count) - count)]
        work = lend(here, False)
        work.runner = runner
        try:
            up, client = local(downs(here), states.gather(here), work)
            if len(here) > count:
                up, client = (map_tensors(lambda t: t[:count], each) for each in (up, client))  # noqa: B023
            check_records(up, client)
        except NoCommonRound:
            raise
        except Exception as error:
            where = f"clients {_some(ids)}, round {_some(work.rounds or [work.t])}, stage local"
            raise MethodFailure(
                f"{where}: {type(error).__name__}: {error} (engine='sequential' names the client)"
            ) from error
        yield ids, up, client


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
