"""Clients on their own nodes: what nodes add to a simulation's transport.

What is sent, who takes part, how answers are weighed and summed is the same code as in a simulation; here is what nodes
add to it: answers that never come, come late, come twice or are not to be trusted, and states that are lost.

The server remembers of every client only the stamp of its state, which is part of a checkpoint.  A request names that
stamp.  A client without that state says so, and then, depending on the method:

    states only of its own     it starts again, as a client that has not been visited
    `recount`                  the server keeps the sum of all states: all others send theirs, the sum is rebuilt from
                               them, the client starts again.  Sums are all the server sees, here too.
    full participation,        states of clients belong together, or nobody sends them: all start again, at the current
    or a private run           model
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from torch import Tensor

from undrift.core.algorithm import Cohort, Exchange, Recounts, Wire
from undrift.core.errors import Deserted, Stopped
from undrift.core.hyper import spec_of
from undrift.core.records import map_tensors, nbytes, tensors
from undrift.core.rng import Key
from undrift.deploy.checks import BadAnswer, read_answer, tells_of_a_loss
from undrift.deploy.faults import Faults
from undrift.deploy.fleet import Fleet
from undrift.deploy.messages import (
    NOT_VISITED,
    Envelope,
    Stamp,
    StateStamp,
    digest_of,
    mark_of,
    pack_tensors,
    stamps_of,
)
from undrift.deploy.problems import form_of_answer
from undrift.local.parameters import without_parameters
from undrift.privacy import PrivateWire
from undrift.simulation.aggregation import (
    ClientResults,
    PartialAggregate,
    Reply,
    Traffic,
    aggregate,
    reply_of,
    send,
    step_server,
)
from undrift.simulation.asynchronous.policies import Deadline, ServerPolicy
from undrift.simulation.client_states import ClientStates, StagedStates
from undrift.simulation.participants import Participants
from undrift.simulation.participation import Draw
from undrift.simulation.results import Round, State
from undrift.simulation.transport import NOBODY, RoundRestart, RunPlan, with_bytes_down

log = logging.getLogger("undrift")


class StatesLost(RoundRestart):
    """Clients have lost states that others' depend on."""

    def __init__(self, transport: "FlowerTransport", clients: Sequence[int], t: int):
        super().__init__()
        self.transport, self.clients, self.t = transport, clients, t

    def recover(self, state: State) -> State:
        return self.transport.recover(state, self.clients, self.t)


@dataclass
class Answers:
    """The answers to one exchange: good ones by client, and who gave none."""

    good: dict[int, Any] = field(default_factory=dict)
    stamps: dict[int, Stamp] = field(default_factory=dict)  # of the states that these leave on the nodes
    bad: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    bytes_up: int = 0  # of answers that are not used


class FlowerTransport:
    """The nodes of a fleet, as a run's transport.

    `oldest` gives the round of the oldest checkpoint that the run might be resumed from, None if that is its start.
    """

    def __init__(
        self,
        plan: RunPlan,
        fleet: Fleet,
        policy: ServerPolicy,
        faults: Faults,
        run: str,
        oldest: Callable[[], int | None],
    ):
        self.plan, self.fleet, self.policy, self.faults = plan, fleet, policy, faults
        self.run, self.oldest, self.spec = run, oldest, spec_of(plan.algorithm)
        self.extra = Traffic()  # of what is done besides a round's exchanges
        self.late: set[int] = set()  # in this round
        self._past: deque[tuple[int, dict[int, Stamp]]] = deque()  # stamps after some rounds

    def begin(self, clients: ClientStates) -> None:
        """Start from these stamps."""
        self.clients, self.staged = clients, StagedStates(clients)

    @property
    def everyone(self) -> bool:
        """Whether the method is defined for full participation only."""
        return self.spec.everyone

    @property
    def entangled(self) -> bool:
        """Whether a client cannot start again on its own."""
        return self.everyone or isinstance(self.plan.algorithm, Recounts)

    @property
    def has_states(self) -> bool:
        return bool(tensors(self.plan.first_client(self.plan.problem.x0)))

    # what a run asks of a transport

    def cohort(self, t: int) -> Draw:
        self.note_stamps()
        draw = self.plan.draw(t)
        here = draw.only([i for i in draw.clients if not self.faults.shut_out(i)])
        if draw.clients and not here.clients:
            if all(self.faults.shut_out(i) for i in range(self.plan.problem.N)):
                raise Deserted(f"round {t}: all clients are shut out", t, None)
            log.warning("round %d: all of its cohort are shut out", t)
        return here

    def exchange(self, exchange: Exchange, server: Any, draw: Draw, key: Key) -> Reply:
        t, plan = key.round, self.plan
        participants = self._present(plan.participants(exchange, draw, key))
        if not participants.have_weight:
            return NOBODY
        down = send(exchange, server, t)
        answers = self._gather(exchange, down, participants, key)
        extra = Traffic(bytes_up=answers.bytes_up, left_out=tuple(answers.bad))
        lost = (*answers.bad, *answers.late) if exchange.to == "cohort" else ()
        if len(answers.good) < self._minimum(exchange):
            log.warning("round %d: too few answers, the model stays as it is", t)
            reply = Reply(None, None, extra, lost)
            return with_bytes_down(reply, down, len(participants.clients))
        present = participants.only(answers.good)
        part = self.aggregate(answers.good, answers.stamps, exchange, present, t)
        self.staged.stage(part.states)
        reply = reply_of(part, present, plan.problem, plan.solver(t), key)
        if exchange.to == "everyone" and len(answers.good) < plan.problem.N:
            if isinstance(plan.algorithm, Recounts):  # the server's sum is of those who answered
                reply = replace(reply, amend=lambda server: self.recount(server, t))
        reply = replace(reply, traffic=extra + reply.traffic, lost=lost)
        return with_bytes_down(reply, down, len(participants.clients))

    def of_everyone(self, exchange: Exchange, server: Any, key: Key) -> None:
        raise RuntimeError("local models stay on their nodes")

    def apply(self) -> None:
        self.staged.apply()

    def commit(self, t: int) -> None:
        self.staged.commit()
        self.clients.round = t

    def rollback(self) -> None:
        self.staged.rollback()
        self.late = set()

    def complete(self, r: Round) -> Round:
        traffic, self.extra = self.extra, Traffic()
        down, up = r.bytes_down + traffic.bytes_down, r.bytes_up + traffic.bytes_up
        clients = tuple(i for i in r.clients if i not in self.late)
        self.late = set()
        return replace(r, clients=clients, bytes_down=down, bytes_up=up)

    def close(self) -> None:
        pass

    # asking

    def aggregate(
        self,
        ups: Mapping[int, Any],
        stamps: Mapping[int, Stamp],
        exchange: Exchange,
        participants: Participants,
        t: int,
        discount: Mapping[int, float] | None = None,
    ) -> PartialAggregate:
        """What came, added up as in a simulation; the new "state" of a client is the stamp of the one that it has now."""
        problem = self.plan.problem
        rows = (
            ClientResults([i], map_tensors(as_row, ups[i]), map_tensors(as_row, StateStamp.of(stamps[i], problem.x0)))
            for i in participants.clients
        )
        return aggregate(rows, exchange, self.clients, participants, problem, t, discount)

    def _present(self, participants: Participants) -> Participants:
        return participants.only([i for i in participants.clients if not self.faults.shut_out(i)])

    def _minimum(self, exchange: Exchange) -> int:
        if isinstance(self.policy, Deadline) and exchange.to == "cohort":
            return max(1, self.policy.minimum)
        return 1

    def _gather(self, exchange: Exchange, down: Any, participants: Participants, key: Key) -> Answers:
        """Ask the clients of an exchange for their work."""
        t = key.round
        requests = {
            i: self.request(down, i, steps, key)
            for i, steps in zip(participants.clients, participants.steps, strict=True)
        }
        patience = float("inf") if exchange.to == "everyone" else self._patience
        form, least = self.form(exchange, down, t), self._minimum(exchange)
        found, lost = self.collect(requests, form, t, patience, least)
        if lost:
            raise StatesLost(self, lost, t)
        for i in found.late:
            self.faults.note(t, i, "late")
        self.late.update(found.late)
        if self.everyone and (found.bad or found.late):
            names = ", ".join(self.fleet.names[i] for i in [*found.bad, *found.late])
            raise Stopped(
                f"round {t}: {self.spec.name} is defined for full participation, and there is no usable answer of "
                f"{names} (see {self.faults.path.name})",
                t,
                None,
            )
        return found

    @property
    def _patience(self) -> float:
        return self.policy.seconds if isinstance(self.policy, Deadline) else float("inf")

    def collect(
        self, requests: dict[int, Envelope], form: Any, t: int, patience: float, least: int
    ) -> tuple[Answers, list[int]]:
        """Ask, wait until all have answered or time is up (and as many as are needed have), look at every answer.

        A client that has lost its state is among the second, unless it can start again on its own.
        """
        found, lost = Answers(), []
        waiting, link = set(requests), self.fleet.link
        for i, request in requests.items():
            self.fleet.ask(i, request)
        end = link.now() + patience
        while waiting and not (link.now() >= end and len(found.good) >= least):
            for i, reply in self.fleet.answers():
                if i not in waiting:
                    continue
                loss = self.note_loss(i, reply, requests[i], t)
                if loss and not self.entangled:
                    requests[i] = self.restart(i, requests[i])
                    self.fleet.ask(i, requests[i])
                    continue
                waiting.discard(i)
                if loss:
                    lost.append(i)
                else:
                    self.read(found, i, reply, requests[i], form, t)
            if waiting:
                link.pause(self.fleet.settings.poll)
        self.fleet.forget(waiting)
        found.late = sorted(waiting)
        found.bad.sort()
        return found, sorted(lost)

    def note_loss(self, i: int, reply: Envelope, request: Envelope, t: int) -> bool:
        """Whether a client has lost the state that it was asked to work from; it may not do so too often."""
        if not tells_of_a_loss(reply, request.header["visit"], self.has_states):
            return False
        self.faults.note(t, i, "lost its state and starts again", "lost")
        return True

    def restart(self, i: int, request: Envelope) -> Envelope:
        """The same request to a client that starts again on its own: a loss is one, also if that is not answered in time."""
        self._forget(i)
        visit = {**request.header["visit"], "base": list(NOT_VISITED)}
        return replace(request, header={**request.header, "visit": visit})

    def read(self, found: Answers, i: int, reply: Envelope, request: Envelope, form: Any, t: int) -> None:
        """Look at an answer; a bad one is named, counted and left out."""
        kind = "state" if request.kind == "state" else "up"
        wire, bound = self.plan.wire, self.fleet.settings.norm_bound
        if isinstance(wire, PrivateWire):  # what the server clips is looked at as it came
            bound, wire = min(bound or inf, wire.bound(form)), wire.codec
        decode = partial(_decoded, wire) if kind == "up" and wire is not None else None
        try:
            visit = request.header["visit"]
            found.good[i] = read_answer(reply, kind, visit, form, bound, decode)
            if kind == "up":
                mark = mark_of(digest_of(request), reply.arrays)
                found.stamps[i] = Stamp(visit["round"], visit["exchange"], mark)
        except BadAnswer as bad:
            found.bad.append(i)
            found.bytes_up += nbytes(tuple(reply.arrays.values()))
            self.faults.note(t, i, str(bad), "bad")

    def request(self, down: Any, client: int, steps: int, key: Key) -> Envelope:
        """What a client is asked to do, and from which state."""
        shape, arrays = pack_tensors("down", down)
        header = self._header(client, Stamp(key.round, key.exchange + 1))
        return Envelope("work", {**header, "steps": steps, "down": shape}, arrays)

    def _header(self, client: int, stamp: Stamp) -> dict[str, Any]:
        base = self.stamp_of(client)
        visit = {"run": self.run, "client": client, "base": list(base)}
        visit |= {"round": stamp.round, "exchange": stamp.exchange}
        return {
            "visit": visit,
            "keep": list(self._keep(client)[:2]),
            "N": self.plan.problem.N,
            "told": self.fleet.hello["told"],
        }

    def form(self, exchange: Exchange, down: Any, t: int) -> Any:
        """What a good answer looks like."""
        x, solver = self.plan.problem.x0, self.plan.solver(t)
        return form_of_answer(exchange, down, self.plan.first_client(x), solver, x)

    # what nodes may forget

    def stamp_of(self, client: int) -> Stamp:
        """The stamp of the state that a client has."""
        return stamps_of(self.clients.gather([client]))[0]

    def note_stamps(self) -> None:
        """Remember which states clients have before a round, as long as the run might be resumed from there."""
        if self._past and self._past[-1][0] == self.clients.round:
            self._past.pop()  # the round begins again
        clients = range(self.plan.problem.N)
        stamps = stamps_of(self.clients.gather(clients))
        self._past.append((self.clients.round, dict(zip(clients, stamps, strict=True))))
        oldest = self.oldest()
        while oldest is not None and self._past[0][0] < oldest:
            self._past.popleft()

    def _keep(self, client: int) -> Stamp:
        """The oldest state of a client that might be asked for again; NEVER if that is not known, so all are kept."""
        oldest = self.oldest()
        known = self._past and self._past[0][0] == oldest
        return self._past[0][1][client] if known else NOT_VISITED

    # states that are lost

    def recover(self, state: State, lost: Sequence[int], t: int) -> State:
        """The state to continue from when clients have lost theirs."""
        names = ", ".join(self.fleet.names[i] for i in lost)
        if self.everyone or self.plan.privacy is not None:  # in a private run nobody sends a state as it is
            log.warning("%s lost their states: all start again from the current model", names)
            self._start_again(range(self.plan.problem.N), t)
            return replace(state, server=self.plan.algorithm.server(state.server.x))
        log.warning("%s lost their states: the sum of all client states is rebuilt", names)
        self._start_again(lost, t)
        return replace(state, server=self.recount(state.server, t))

    def recount(self, server: Any, t: int) -> Any:
        """The server with its sum of client states rebuilt: from those who send theirs; others start again."""
        plan, x = self.plan, self.plan.problem.x0
        algorithm: Any = plan.algorithm
        fresh, wire = without_parameters(plan.first_client(x)), plan.wire

        def recounted(server: Any, mean: Any, cohort: Cohort) -> Any:
            return algorithm.recount(server, mean if wire is None else wire.client_of(mean), cohort)

        everyone = Exchange(lambda _: (), lambda d, c, w: (c, c), recounted, to="everyone")
        participants = self._present(plan.participants(everyone, Draw(()), Key(plan.seed, t)))
        requests = {i: Envelope("state", self._header(i, Stamp(t, 0))) for i in participants.clients}
        found, _ = self.collect(requests, fresh, t, self._patience, least=0)
        gone = [i for i in range(plan.problem.N) if i not in found.good]
        self._start_again([i for i in gone if self.stamp_of(i) != NOT_VISITED], t)
        if not found.good:
            return algorithm.server(server.x)
        present = participants.only(found.good)
        part = self.aggregate(found.good, {i: self.stamp_of(i) for i in found.good}, everyone, present, t)
        reply = reply_of(part, present, plan.problem, plan.solver(t), Key(plan.seed, t))
        self.extra += Traffic(bytes_up=reply.traffic.bytes_up + found.bytes_up)
        return step_server(everyone, server, reply, t)

    def _start_again(self, clients: Sequence[int], t: int) -> None:
        for i in clients:
            self.faults.note(t, i, "starts again: its state is lost, or was not sent when asked for")
            self._forget(i)

    def _forget(self, client: int) -> None:
        """The client has no state by the server's book."""
        self.clients.scatter([client], map_tensors(as_row, StateStamp.of(NOT_VISITED, self.plan.problem.x0)))


def _decoded(wire: Wire, payload: Any) -> Any:
    """What a payload of one client comes to."""
    return map_tensors(lambda t: t[0], wire.decode(map_tensors(as_row, payload)))


def as_row(t: Tensor) -> Tensor:
    """One client's tensor as a table of one row."""
    return t.unsqueeze(0)
