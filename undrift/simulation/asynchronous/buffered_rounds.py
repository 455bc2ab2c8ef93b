"""A server step whenever a buffer is full, while other clients keep working (ud.Buffer).

The loop is the same in virtual time and on real nodes; who works and when answers come is up to an `AsyncTransport`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from undrift.core.algorithm import Algorithm, DiscountsStaleness
from undrift.core.rng import Key
from undrift.simulation.aggregation import PartialAggregate, Traffic, reply_of, step_server
from undrift.simulation.driver import PlayedRound
from undrift.simulation.participants import Participants
from undrift.simulation.participation import Draw
from undrift.simulation.transport import RunPlan, Transport


@dataclass(frozen=True)
class Updates:
    """The updates that a server step uses: whose, and what they add up to."""

    participants: Participants
    part: PartialAggregate


class AsyncTransport(Transport, Protocol):
    """Clients that work while the server steps.  Between two steps, states and messages in flight are its own business."""

    def initialise(self, server: Any) -> PlayedRound | None:
        """The initialisation round with everyone, if the method has one and it has not taken place."""
        ...

    def receive(self, t: int) -> Traffic:
        """Take in all that has returned by now; what it cost beside the updates that will be used."""
        ...

    def is_full(self) -> bool:
        """Whether the server can step."""
        ...

    def dispatch(self, server: Any, t: int) -> int:
        """Send clients out where there is room; the bytes that were sent."""
        ...

    def wait(self, server: Any, t: int) -> int:
        """Let time pass until something may have returned; the bytes that were sent meanwhile."""
        ...

    def take(self, t: int) -> Updates:
        """The updates of the next step; their clients' new states are staged."""
        ...


def play_buffered_round(plan: RunPlan, transport: AsyncTransport, server: Any, t: int) -> PlayedRound:
    """One step of the server.

    At one instant, first all that has returned is taken in, then the server steps as often as it can, then clients are
    sent out.  So without delays a round is one cohort on one model, as in the other engines.
    """
    first = transport.initialise(server)
    server = server if first is None else first.server
    sent, extra = 0, Traffic()
    while True:
        extra += transport.receive(t)
        if transport.is_full():
            break
        sent += transport.dispatch(server, t)
        sent += transport.wait(server, t)
    updates = transport.take(t)
    (exchange,) = plan.exchanges(t)
    participants, key = updates.participants, Key(plan.seed, t)
    whole = plan.observing is not None and plan.observing.everyone(t)
    everyone = transport.of_everyone(exchange, server, key) if whole else None
    reply = reply_of(updates.part, participants, plan.problem, plan.solver(t), key)
    server = step_server(exchange, server, reply, t)
    traffic = (Traffic() if first is None else first.traffic) + Traffic(bytes_down=sent)
    traffic = traffic + extra + reply.traffic
    exchanges = 1 if first is None else first.exchanges + 1
    draw = Draw(tuple(participants.clients))
    return PlayedRound(server, draw, traffic, exchanges, reply.cohort, reply.local, everyone)


def discounts(algorithm: Algorithm, clients: list[int], staleness: list[int]) -> dict[int, float]:
    """The factor of every update, for methods in which stale ones count less."""
    if not isinstance(algorithm, DiscountsStaleness):
        return {}
    factors = algorithm.discount(torch.tensor(staleness, dtype=torch.float64))
    return dict(zip(clients, factors.tolist(), strict=True))
