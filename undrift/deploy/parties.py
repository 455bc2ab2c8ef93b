"""Answers that have come, as the code of a simulation takes them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from undrift.core.algorithm import Exchange
from undrift.core.records import map_tensors
from undrift.deploy.messages import Held
from undrift.simulation.aggregation import Outcome, Party, collected, stepped
from undrift.simulation.client_states import ClientStates
from undrift.simulation.participation import Draw
from undrift.simulation.transport import Plan


def stepped_on(
    good: Mapping[int, Any],
    held: Mapping[int, Held],
    exchange: Exchange,
    server: Any,
    states: ClientStates,
    party: Party,
    plan: Plan,
    t: int,
) -> Outcome:
    """The server's step on answers that have come, by the code of a simulation.

    The new "state" of a client is here the stamp of the one that it has now.
    """
    party = among(party, good)
    rows = (([i], map_tensors(row, good[i]), map_tensors(row, held[i])) for i in party.clients)
    part = collected(rows, states, party, plan.problem, t)
    return stepped(exchange.update, server, [part], party, plan.problem, plan.local.solver(t), t)


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
        staleness=None if party.staleness is None else [party.staleness[j] for j in rows],
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
