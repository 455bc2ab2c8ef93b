"""The cohort as one computation: vectors `[S, D]`, in chunks so that memory stays bounded."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from undrift.core.errors import MethodFailure
from undrift.core.records import check_records, fits, map_tensors
from undrift.core.work import NoCommonRound
from undrift.simulation.aggregation import ClientResults
from undrift.simulation.engines.request import Request, ResultStream
from undrift.simulation.engines.sequential import visit_one


def batched(request: Request) -> ResultStream:
    """Visit clients `chunk` at a time."""
    # A batch of one goes through other kernels (matrix times vector) with other rounding.  So a lone client is
    # computed twice over, and a chunk of any size gives the same bits.
    clients = request.participants.clients
    for ids, rows in chunks(clients, request.chunk, rows=lambda n: max(n, 2)):
        result = visit_chunk(request, ids, rows, request.states.gather(rows))
        if request.exchange.wire is None and not fits(result.up, result.state, len(ids), request.problem.x0):
            for i in ids:  # one client's wrong shape is not that of the others: each is asked on its own
                yield visit_one(request, i, request.states.gather([i]), request.problem)
        else:
            yield result


def chunks(
    clients: Sequence[int], chunk: int, rows: Callable[[int], int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Clients a chunk at a time, and whose the `rows(n)` rows for n of them are: the first is repeated to fill up."""
    for first in range(0, len(clients), chunk):
        ids = clients[first : first + chunk]
        yield ids, [*ids, *[ids[0]] * (rows(len(ids)) - len(ids))]


def visit_chunk(request: Request, ids: Sequence[int], rows: Sequence[int], state: Any) -> ClientResults:
    """One visit of several clients at once; `ids` have the first of the rows."""
    work = request.work(rows, False)
    try:
        up, state = request.exchange.visit(request.down_rows(rows), state, work)
        if len(rows) > len(ids):
            up, state = (map_tensors(lambda t: t[: len(ids)], each) for each in (up, state))
        check_records(up, state)
    except NoCommonRound:
        raise
    except Exception as error:
        who, hint = f"client {ids[0]}", ""
        if len(ids) > 1:
            who, hint = f"clients {_some(sorted({*ids}))}", " (engine='sequential' names the client)"
        where = f"{who}, round {_some(work.rounds or [request.key.round])}, stage local"
        raise MethodFailure(f"{where}: {type(error).__name__}: {error}{hint}") from error
    return ClientResults(ids, up, state, observed=work.observed(len(ids)))


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
