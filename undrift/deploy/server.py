"""The server of a deployed run: rounds of exchanges with nodes in place of a simulation's clients.

What is sent, who takes part, how answers are weighed and summed is the same code as in a simulation; here is what nodes
add to it: answers that never come, come late, come twice or are not to be trusted, and states that are lost.

The server remembers of every client only the stamp of the state that it has, which is part of a checkpoint.  A request
names that stamp.  A client without that state says so, and then, by what the method is:

    states only of its own     it begins anew, as a client that has not been visited
    `recount`                  the server keeps the sum of all states: all others send theirs, the sum is made anew of
                               them, the client begins anew.  Sums are all the server sees, here too.
    full participation         states of clients belong together: all begin anew, at the model of the moment
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from undrift.core.algorithm import Exchange
from undrift.core.errors import Deserted, Stopped
from undrift.core.records import map_tensors, nbytes
from undrift.deploy.checks import Bad, read_answer
from undrift.deploy.faults import Faults
from undrift.deploy.fleet import Fleet
from undrift.deploy.messages import NEVER, Held, Parcel, Stamp, packed, stamps_of
from undrift.deploy.parties import among, only, row, stepped_on
from undrift.deploy.problems import form_of_answer
from undrift.simulation.aggregation import Party, Traffic
from undrift.simulation.asynchronous.policies import Deadline, ServerPolicy
from undrift.simulation.client_states import Pending
from undrift.simulation.driver import Round, State, exchanges_in, party_of
from undrift.simulation.participation import Draw
from undrift.simulation.transport import Plan

log = logging.getLogger("undrift")


class Lost(Exception):
    """Clients have lost states that others' depend on."""

    def __init__(self, clients: Sequence[int]):
        super().__init__()
        self.clients = clients


@dataclass
class Gathered:
    """The answers to one exchange: good ones by client, and who gave none."""

    good: dict[int, Any] = field(default_factory=dict)
    bad: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    bytes_up: int = 0  # of answers that are not used


class Server:
    """Carries out rounds with a fleet of nodes.

    `oldest` gives the round of the oldest checkpoint that the run might be taken up from, None if that is its start.
    """

    def __init__(
        self,
        plan: Plan,
        fleet: Fleet,
        policy: ServerPolicy,
        faults: Faults,
        run: str,
        oldest: Callable[[], int | None],
    ):
        self.plan, self.fleet, self.policy, self.faults = plan, fleet, policy, faults
        self.run, self.oldest = run, oldest
        self.spec = getattr(plan.algorithm, "spec", None)
        self._past: deque[tuple[int, dict[int, Stamp]]] = deque()  # stamps after some rounds
        self.extra = Traffic()  # of what is done besides a round's exchanges

    @property
    def everyone(self) -> bool:
        """Whether the method is defined for full participation only."""
        return self.spec is not None and self.spec.everyone

    @property
    def entangled(self) -> bool:
        """Whether a client cannot begin anew on its own."""
        return self.everyone or hasattr(self.plan.algorithm, "recount")

    # rounds

    def rounds(self, state: State, last: int, evaluate_every: int) -> Iterator[Round]:
        """A round after another, each whole or not at all."""
        problem = self.plan.problem
        while state.round < last:
            t, began = state.round + 1, perf_counter()
            self._note(state)
            server, r, pending = self._whole(state, t)
            seconds = perf_counter() - began
            evaluated = t % evaluate_every == 0 or t == last
            metrics = problem.evaluate(server.x) if evaluated else {}
            pending.keep()
            state.clients.round = t
            state = State(t, server, state.clients)
            traffic, self.extra = self.extra, Traffic()
            yield replace(
                r,
                metrics=metrics,
                seconds=seconds,
                bytes_down=r.bytes_down + traffic.bytes_down,
                bytes_up=r.bytes_up + traffic.bytes_up,
                _state=state,
            )

    def _whole(self, state: State, t: int) -> tuple[Any, Round, Pending]:
        """A round from its beginning to its end, begun again when lost states had to be mended."""
        while True:
            pending = Pending(state.clients)
            try:
                return *self.round(state, pending, t), pending
            except Lost as lost:
                pending.undo()
                state = self.mended(state, lost.clients, t)
            except BaseException:
                pending.undo()
                raise

    def round(self, state: State, pending: Pending, t: int) -> tuple[Any, Round]:
        """The exchanges of one cohort; the new stamps are held back."""
        plan, states = self.plan, state.clients
        draw = self._cohort(t) if t > 0 else Draw(())  # a first contact has none
        server, traffic, count = state.server, Traffic(), 0
        came = set(draw.clients)
        for when, number, exchange in exchanges_in(plan.algorithm, t):
            pending.write()
            party = self._present(party_of(plan, exchange, draw, when, number))
            if not any(party.weights):
                continue  # nobody came, or nobody who counts
            down = exchange.send(server)
            gathered = self.gather(exchange, down, states, party, when, number)
            sent = nbytes(down) * len(party.clients)
            traffic += Traffic(sent, gathered.bytes_up, tuple(gathered.bad))
            self._check_complete(gathered, t, state)
            came.difference_update(gathered.late)
            if exchange.to == "cohort":  # who is lost does not come to a second exchange
                draw = only(draw, gathered.good)
            if len(gathered.good) < self._minimum(exchange):
                log.warning("round %d: too few answers, the model stays as it is", t)
                continue
            held = dict.fromkeys(gathered.good, Held.of(Stamp(when, number + 1), plan.problem.x0))
            outcome = stepped_on(gathered.good, held, exchange, server, states, party, plan, when)
            pending.hold(outcome.states)
            server, count, traffic = outcome.server, count + 1, traffic + outcome.traffic
            if exchange.to == "everyone" and len(gathered.good) < plan.problem.N:
                pending.write()
                server = self._complete(replace(state, server=server), t)
        down, up, out = traffic.bytes_down, traffic.bytes_up, traffic.left_out
        return server, Round(t, tuple(sorted(came)), {}, down, up, 0.0, out, count)

    def _cohort(self, t: int) -> Draw:
        draw = self.plan.participation.draw(self.plan.seed, t, self.plan.problem.weights)
        here = only(draw, [i for i in draw.clients if not self.faults.shut_out(i)])
        if draw.clients and not here.clients:
            if all(self.faults.shut_out(i) for i in range(self.plan.problem.N)):
                raise Deserted(f"round {t}: all clients are shut out", t, None)
            log.warning("round %d: all of its cohort are shut out", t)
        return here

    def _present(self, party: Party) -> Party:
        return among(party, [i for i in party.clients if not self.faults.shut_out(i)])

    def _check_complete(self, gathered: Gathered, t: int, state: State) -> None:
        if self.everyone and (gathered.bad or gathered.late):
            names = ", ".join(self.fleet.names[i] for i in [*gathered.bad, *gathered.late])
            raise Stopped(
                f"round {t}: {self.spec.name} is defined for full participation, and there is no usable answer of "  # pyright: ignore[reportOptionalMemberAccess]
                f"{names} (see {self.faults.lines.path.name})",
                t,
                state,
            )

    def _minimum(self, exchange: Exchange) -> int:
        deadline = isinstance(self.policy, Deadline) and exchange.to == "cohort"
        return max(1, self.policy.minimum) if deadline else 1  # pyright: ignore[reportAttributeAccessIssue]

    # asking

    def gather(
        self, exchange: Exchange, down: Any, states: Any, party: Party, when: int, number: int
    ) -> Gathered:
        """Ask the clients of an exchange for their work."""
        requests = {
            i: self.request(down, states, i, steps, when, number)
            for i, steps in zip(party.clients, party.steps, strict=True)
        }
        patience = float("inf") if exchange.to == "everyone" else self._patience
        form, least = self.form(exchange, down, when), self._minimum(exchange)
        found, lost = self.collected(requests, form, when, patience, least)
        if lost:
            raise Lost(lost)
        for i in found.late:
            self.faults.note(when, i, "late")
        return found

    @property
    def _patience(self) -> float:
        return self.policy.seconds if isinstance(self.policy, Deadline) else float("inf")

    def collected(
        self, requests: dict[int, Parcel], form: Any, when: int, patience: float, least: int
    ) -> tuple[Gathered, list[int]]:
        """Ask, wait until all have answered or time is up (and as many as are needed have), look at every answer.

        A client that has lost its state is among the second, unless it can begin anew on its own.
        """
        found, lost = Gathered(), []
        waiting, link = set(requests), self.fleet.link
        for i, request in requests.items():
            self.fleet.ask(i, request)
        end = link.now() + patience
        while waiting and not (link.now() >= end and len(found.good) >= least):
            for i, reply in self.fleet.answers():
                if i not in waiting:
                    continue
                if reply.kind == "lost" and not self.entangled:
                    self.faults.note(when, i, "lost its state and begins anew")
                    requests[i] = self.anew(requests[i])
                    self.fleet.ask(i, requests[i])
                    continue
                waiting.discard(i)
                if reply.kind == "lost":
                    lost.append(i)
                else:
                    self.take(found, i, reply, requests[i], form, when)
            if waiting:
                link.pause(self.fleet.settings.poll)
        self.fleet.forget(waiting)
        found.late = sorted(waiting)
        found.bad.sort()
        return found, sorted(lost)

    def take(
        self, found: Gathered, i: int, reply: Parcel, request: Parcel, form: Any, when: int
    ) -> None:
        """Look at an answer; a bad one is named, counted and left out."""
        kind = "state" if request.kind == "state" else "up"
        try:
            bound = self.fleet.settings.norm_bound if kind == "up" else 0.0
            found.good[i] = read_answer(reply, kind, request.words["visit"], form, bound)
        except Bad as bad:
            found.bad.append(i)
            found.bytes_up += nbytes(tuple(reply.arrays.values()))
            self.faults.note(when, i, str(bad), counts=True)

    def request(
        self, down: Any, states: Any, client: int, steps: int, when: int, number: int
    ) -> Parcel:
        """What a client is asked to do, and from which state."""
        shape, arrays = packed("down", down)
        return Parcel(
            "work",
            {
                **self._about(states, client, Stamp(when, number + 1)),
                "steps": steps,
                "down": shape,
            },
            arrays,
        )

    def _about(self, states: Any, client: int, stamp: Stamp) -> dict[str, Any]:
        (base,) = stamps_of(states.gather([client]))
        visit = {"run": self.run, "client": client, "base": list(base), **stamp._asdict()}
        return {
            "visit": visit,
            "keep": list(self._keep(client)),
            "N": self.plan.problem.N,
            "told": self.fleet.hello["told"],
        }

    def anew(self, request: Parcel) -> Parcel:
        """The same request to a client that begins anew."""
        visit = {**request.words["visit"], "base": list(NEVER)}
        return replace(request, words={**request.words, "visit": visit})

    def form(self, exchange: Exchange, down: Any, when: int) -> Any:
        x, solver = self.plan.problem.x0, self.plan.local.solver(when)
        return form_of_answer(exchange, down, self.plan.algorithm.client(x), solver, x)

    # what nodes may forget

    def _note(self, state: State) -> None:
        """Remember which states clients had after a round, as long as the run might be taken up from there."""
        clients = range(self.plan.problem.N)
        held = stamps_of(state.clients.gather(clients))
        self._past.append((state.round, dict(zip(clients, held, strict=True))))
        oldest = self.oldest()
        while oldest is not None and self._past[0][0] < oldest:
            self._past.popleft()

    def _keep(self, client: int) -> Stamp:
        """The oldest state of a client that might be asked for again; NEVER if that is not known, so all are kept."""
        oldest = self.oldest()
        known = self._past and self._past[0][0] == oldest
        return self._past[0][1][client] if known else NEVER

    # states that are lost

    def mended(self, state: State, lost: Sequence[int], t: int) -> State:
        """The state to go on from when clients have lost theirs."""
        names = ", ".join(self.fleet.names[i] for i in lost)
        if self.everyone:
            log.warning("%s lost their states: all begin anew from the model of the moment", names)
            self._begin_anew(state, range(self.plan.problem.N), t)
            return replace(state, server=self.plan.algorithm.server(state.server.x))
        log.warning("%s lost their states: what all clients have is counted anew", names)
        self._begin_anew(state, lost, t)
        return replace(state, server=self.recounted(state, t))

    def recounted(self, state: State, t: int) -> Any:
        """The server with its sum of clients' states made anew: of those who send theirs; others begin anew."""
        plan, states, x = self.plan, state.clients, self.plan.problem.x0
        recount: Any = plan.algorithm
        fresh = plan.algorithm.client(x)
        everyone = Exchange(lambda _: (), lambda d, c, w: (c, c), recount.recount, to="everyone")
        party = self._present(party_of(plan, everyone, Draw(()), t, 0))
        requests = {i: Parcel("state", self._about(states, i, Stamp(t, 0))) for i in party.clients}
        found, _ = self.collected(requests, fresh, t, self._patience, least=0)
        gone = [i for i in range(plan.problem.N) if i not in found.good]
        self._begin_anew(state, [i for i in gone if self._held(state, i) != NEVER], t)
        if not found.good:
            return plan.algorithm.server(state.server.x)
        held = {i: Held.of(self._held(state, i), x) for i in found.good}
        outcome = stepped_on(found.good, held, everyone, state.server, states, party, plan, t)
        self.extra += Traffic(bytes_up=outcome.traffic.bytes_up + found.bytes_up)
        return outcome.server

    def _complete(self, state: State, t: int) -> Any:
        """The server after a first contact that not all clients answered: its sum is of those who did."""
        return self.recounted(state, t) if hasattr(self.plan.algorithm, "recount") else state.server

    def _held(self, state: State, client: int) -> Stamp:
        return stamps_of(state.clients.gather([client]))[0]

    def _begin_anew(self, state: State, clients: Sequence[int], t: int) -> None:
        for i in clients:
            self.faults.note(t, i, "begins anew: its state is lost, or was not sent when asked for")
            state.clients.scatter([i], map_tensors(row, Held.of(NEVER, self.plan.problem.x0)))
