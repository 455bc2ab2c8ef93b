"""The reference: one client after another, vectors `[D]`, nothing clever; errors name the client."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from undrift.core import map_tensors
from undrift.errors import MethodFailure
from undrift.states import ClientStates
from undrift.work import Work


def sequential(
    local: Callable[[Any, Any, Work], tuple[Any, Any]],
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
) -> Iterator[tuple[Sequence[int], Any, Any]]:
    """Visit clients one at a time."""
    for i in clients:
        work = lend([i], True)
        client = map_tensors(lambda t: t[0], states.gather([i]))
        try:
            up, client = local(down, client, work)
            up, client = map_tensors(_row, up), map_tensors(_row, client)
        except Exception as error:
            where = f"client {i}, round {work.t}, stage local"
            raise MethodFailure(f"{where}: {type(error).__name__}: {error}") from error
        yield [i], up, client


def _row(t: Any) -> Any:
    return t.unsqueeze(0)
