"""How an exchange reaches clients: in this process, on a cluster (ray/), in virtual time (asynchronous/), on nodes (deploy/)."""

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from undrift.core.algorithm import Algorithm, Exchange, Wire, exchanges_of
from undrift.core.observe import Observe, Observing
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.core.work import Solver
from undrift.local import Local
from undrift.problems import Problem
from undrift.simulation.aggregation import PartialAggregate, Reply, Traffic, aggregate, reply_of, send
from undrift.simulation.client_states import ClientStates, StagedStates
from undrift.simulation.engines import EngineChoice, Request, engine_of
from undrift.simulation.participants import Participants, participants_of
from undrift.simulation.participation import Draw, Participation
from undrift.simulation.privacy import PrivateRelease
from undrift.simulation.results import Round, State


@dataclass(frozen=True)
class RunPlan:
    """What stays the same during a run."""

    algorithm: Algorithm
    problem: Problem
    participation: Participation
    local: Local
    choice: EngineChoice
    seed: int
    largest_weight: float
    wire: Wire | None = None
    observing: Observing | None = None  # what metrics need to see of local loops
    privacy: PrivateRelease | None = None

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        """The exchanges of round t, with what happens to messages on the wire."""
        found = exchanges_of(self.algorithm, t)
        if self.wire is None:
            return found
        return tuple(replace(exchange, wire=self.wire) for exchange in found)

    def exchanges_in_round(self, t: int) -> list[tuple[int, int, Exchange]]:
        """(round, number in the round, exchange) of round t; the initialisation round, 0, belongs to round 1."""
        rounds = (0, t) if t == 1 else (t,)
        return [(s, number, e) for s in rounds for number, e in enumerate(self.exchanges(s))]

    def first_client(self, x: Tensor) -> Any:
        """The state of a client that has not been visited yet."""
        own = self.algorithm.client(x)
        return own if self.wire is None else self.wire.client(own)

    def solver(self, t: int) -> Solver:
        return self.local.solver(t)

    def draw(self, t: int) -> Draw:
        """The cohort of round t."""
        return self.participation.draw(self.seed, t, self.problem.weights)

    def participants(self, exchange: Exchange, draw: Draw, key: Key) -> Participants:
        """Who of a cohort takes part in an exchange."""
        return participants_of(exchange, draw, self.problem, self.local, self.largest_weight, key)

    def observe(self, exchange: Exchange, t: int) -> Observe | None:
        """What is to be seen of the local loops of an exchange."""
        if self.observing is None or exchange.to != "cohort":
            return None
        return self.observing.of_round(t)

    def request(
        self, exchange: Exchange, down: Any, states: ClientStates, participants: Participants, key: Key, **more: Any
    ) -> Request:
        """What an engine is asked."""
        solver, chunk = self.solver(key.round), self.choice.inner.chunk
        more = {"observe": self.observe(exchange, key.round)} | more
        return Request(
            self.algorithm, exchange, down, states, participants, self.problem, solver, key, chunk, **more
        )  # fmt: skip


class Transport(Protocol):
    """Where clients are, and their states.

    New states are staged until the server has accepted an exchange; if the round fails later they are rolled back.
    """

    def cohort(self, t: int) -> Draw:
        """The clients that round t is sent to."""
        ...

    def exchange(self, exchange: Exchange, server: Any, draw: Draw, key: Key) -> Reply:
        """One exchange with the cohort, or whom it is for; new states are staged."""
        ...

    def of_everyone(self, exchange: Exchange, server: Any, key: Key) -> Tensor | None:
        """The mean pseudo-gradient that this exchange would have with all clients; nothing comes of it."""
        ...

    def apply(self) -> None:
        """Let the next exchange of the round see the staged states."""
        ...

    def commit(self, t: int) -> None:
        """Round t is over: its states are final."""
        ...

    def rollback(self) -> None:
        """The round has failed: states are what they were before it."""
        ...

    def complete(self, r: Round) -> Round:
        """The round with what only the transport knows of it."""
        return r

    def close(self) -> None:
        """There will be no more rounds."""


class RoundRestart(Exception):
    """The round must begin again, from a state that is recovered after the rollback."""

    def recover(self, state: State) -> State:
        raise NotImplementedError


NOBODY = Reply(None, None, Traffic())  # nobody came, or nobody whose weight is not zero


class SynchronousTransport(Transport, Protocol):
    """A transport in which the server waits for all of a cohort; `visit` says how clients are reached."""

    plan: RunPlan

    def visit(
        self, exchange: Exchange, down: Any, participants: Participants, key: Key, keep: bool = True
    ) -> PartialAggregate:
        """What these clients answer, added up; their new states are staged if they are to be kept."""
        ...

    def cohort(self, t: int) -> Draw:
        return self.plan.draw(t)

    def exchange(self, exchange: Exchange, server: Any, draw: Draw, key: Key) -> Reply:
        plan = self.plan
        participants = plan.participants(exchange, draw, key)
        if not participants.have_weight:
            return NOBODY
        down = send(exchange, server, key.round)
        part = self.visit(exchange, down, participants, key)
        reply = reply_of(part, participants, plan.problem, plan.solver(key.round), key)
        return with_bytes_down(reply, down, len(participants.clients))

    @torch.no_grad()
    def of_everyone(self, exchange: Exchange, server: Any, key: Key) -> Tensor | None:
        down, whole = send(exchange, server, key.round), everyone(self.plan, exchange, key)
        part = self.visit(exchange, down, whole, key, keep=False)
        return None if part.local.delta is None else part.local.delta / part.weight


class InProcess(SynchronousTransport):
    """Clients that are visited in this process."""

    def __init__(self, plan: RunPlan, clients: ClientStates):
        self.plan, self.clients, self.staged = plan, clients, StagedStates(clients)

    def visit(
        self, exchange: Exchange, down: Any, participants: Participants, key: Key, keep: bool = True
    ) -> PartialAggregate:
        part = visit_clients(self.plan, exchange, down, self.clients, participants, key)
        if keep:
            self.staged.stage(part.states)
        return part

    def apply(self) -> None:
        self.staged.apply()

    def commit(self, t: int) -> None:
        self.staged.commit()
        self.clients.round = t

    def rollback(self) -> None:
        self.staged.rollback()


def visit_clients(
    plan: RunPlan, exchange: Exchange, down: Any, states: ClientStates, participants: Participants, key: Key
) -> PartialAggregate:
    """Visit clients in this process, and add up what they answer."""
    engine = engine_of(plan.choice, max(key.round, 1))  # the initialisation round belongs to round 1
    with closing(engine(plan.request(exchange, down, states, participants, key))) as results:  # also if it fails
        return aggregate(results, exchange, states, participants, plan.problem, key.round)


def everyone(plan: RunPlan, exchange: Exchange, key: Key) -> Participants:
    """All clients, for an exchange that is the cohort's."""
    return plan.participants(replace(exchange, to="everyone"), Draw(()), key)


def with_bytes_down(reply: Reply, down: Any, clients: int) -> Reply:
    """The same reply with the bytes of a message to so many clients counted."""
    traffic = Traffic(bytes_down=nbytes(down) * clients) + reply.traffic
    return replace(reply, traffic=traffic)
