"""Answers that have come, as the code of a simulation takes them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from undrift.core import map_tensors
from undrift.exchange import Party
from undrift.flower.messages import Held
from undrift.participation import Draw


def handed_out(good: Mapping[int, Any], held: Held | Mapping[int, Held]) -> Any:
    """An engine that hands out answers that are there, and with each the stamp of the state that its client has now."""

    def engine(
        local: Any, down: Any, states: Any, clients: Sequence[int], lend: Any, chunk: int
    ) -> Iterator[tuple[Sequence[int], Any, Any]]:
        for i in clients:
            mine = held if isinstance(held, Held) else held[i]
            yield [i], map_tensors(row, good[i]), map_tensors(row, mine)

    return engine


def among(party: Party, clients: Any) -> Party:
    """The part of a party that is among these clients."""
    here = set(clients)
    rows = [j for j, i in enumerate(party.clients) if i in here]
    return replace(
        party,
        clients=[party.clients[j] for j in rows],
        weights=[party.weights[j] for j in rows],
        steps=[party.steps[j] for j in rows],
        share=[party.share[j] for j in rows],
    )


def only(draw: Draw, clients: Any) -> Draw:
    """The part of a draw that is among these clients."""
    here = set(clients)
    rows = [j for j, i in enumerate(draw.clients) if i in here]
    counts = None if draw.counts is None else tuple(draw.counts[j] for j in rows)
    return Draw(tuple(draw.clients[j] for j in rows), counts)


def row(t: Tensor) -> Tensor:
    """One client's tensor as a table of one row."""
    return t.unsqueeze(0)
