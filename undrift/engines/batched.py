"""The cohort as one computation: vectors `[S, D]`, in chunks so that memory stays bounded."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from undrift.core import check_records, map_tensors
from undrift.errors import MethodFailure
from undrift.states import ClientStates
from undrift.work import Work


def batched(
    local: Callable[[Any, Any, Work], tuple[Any, Any]],
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
) -> Iterator[tuple[Sequence[int], Any, Any]]:
    """Visit clients `chunk` at a time."""
    for first in range(0, len(clients), chunk):
        ids = clients[first : first + chunk]
        # A batch of one goes through other kernels (matrix times vector) with other rounding.  So a lone client is
        # computed twice over, and a chunk of any size gives the same bits.
        alone = len(ids) == 1
        here = [*ids, *ids] if alone else ids
        work = lend(here, False)
        try:
            rows = map_tensors(lambda t: t.expand(len(here), *t.shape), down)  # noqa: B023 (used at once)
            up, client = local(rows, states.gather(here), work)
            if alone:
                up, client = (map_tensors(lambda t: t[:1], record) for record in (up, client))
            check_records(up, client)
        except Exception as error:
            where = f"clients {_some(ids)}, round {work.t}, stage local"
            raise MethodFailure(
                f"{where}: {type(error).__name__}: {error} (engine='sequential' names the client)"
            ) from error
        yield ids, up, client


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
