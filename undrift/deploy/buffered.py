"""Clients that come when they like: a step of the server whenever its buffer is full (ud.Buffer), in real time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from undrift.core.algorithm import Exchange, exchanges_of
from undrift.core.errors import Deserted
from undrift.core.records import map_tensors, nbytes
from undrift.core.rng import Key
from undrift.deploy.messages import Held, Parcel, Stamp
from undrift.deploy.parties import stepped_on
from undrift.deploy.server import Gathered, Lost, Server
from undrift.simulation.aggregation import Party, Traffic
from undrift.simulation.asynchronous.policies import Buffer
from undrift.simulation.client_states import Pending
from undrift.simulation.driver import Round, State


@dataclass(frozen=True)
class Out:
    """A client under way: on which model it works, and what it was asked."""

    version: int
    weight: float
    steps: int
    request: Parcel
    form: Any
    up: Any = None  # when it has answered


class Buffered(Server):
    """What is under way when the server's process dies is asked anew: no answer counts before it was used."""

    out: dict[int, Out]
    buffer: dict[int, Out]  # answered, in that order

    def rounds(self, state: State, last: int, evaluate_every: int) -> Iterator[Round]:
        self.out, self.buffer = {}, {}
        self._line = self._in_line(state.round)
        self._contacted = state.round > 0
        return super().rounds(state, last, evaluate_every)

    def round(self, state: State, pending: Pending, t: int) -> tuple[Any, Round]:
        first = None
        if not self._contacted and exchanges_of(self.plan.algorithm, 0):
            server, first = super().round(state, pending, 0)
            pending.keep()
            state = replace(state, server=server)
        self._contacted, self._server = True, state.server
        found, sent = Gathered(), 0
        assert isinstance(self.policy, Buffer)
        while len(self.buffer) < self.policy.size:
            sent += self._send_out(state, t)
            self._take_in(found, t)
            if len(self.buffer) < self.policy.size:
                self.fleet.link.pause(self.fleet.settings.poll)
        used = dict(sorted(list(self.buffer.items())[: self.policy.size]))
        outcome = self._step(state, used, t)
        for i in used:
            del self.buffer[i]
        pending.hold(outcome.states)
        traffic = Traffic(sent, found.bytes_up, tuple(found.bad)) + outcome.traffic
        down, up, out, count = traffic.bytes_down, traffic.bytes_up, traffic.left_out, 1
        if first is not None:
            down, up = down + first.bytes_down, up + first.bytes_up
            count += first.exchanges
        return outcome.server, Round(t, tuple(used), {}, down, up, 0.0, out, count)

    def _in_line(self, cohort: int) -> Iterator[tuple[int, float]]:
        """Clients in the order in which participation names them, cohort after cohort, with their weights."""
        plan, empty = self.plan, 0
        while empty < 1000:
            cohort += 1
            draw = plan.participation.draw(plan.seed, cohort, plan.problem.weights)
            empty = 0 if draw.clients else empty + 1
            for j, i in enumerate(draw.clients):
                p = float(plan.problem.weights[i]) / plan.largest_weight
                yield i, p if draw.counts is None else float(draw.counts[j])

    def _send_out(self, state: State, t: int) -> int:
        """Send clients out where there is room; the bytes that were sent."""
        assert isinstance(self.policy, Buffer)
        (exchange,) = exchanges_of(self.plan.algorithm, t)
        N, sent = self.plan.problem.N, 0
        able = [i for i in range(N) if not self.faults.shut_out(i)]
        if len(able) < self.policy.size:
            raise Deserted(
                f"round {t}: {len(able)} clients are not shut out, the buffer waits for {self.policy.size}",
                t,
                state,
            )
        free = {i for i in able if i not in self.out and i not in self.buffer}
        down = exchange.send(state.server)
        for _ in range(100 * N):
            if len(self.out) >= self.policy.at_work or not free:
                break
            i, weight = next(self._line, (None, 0.0))
            if i is None:
                raise Deserted(f"round {t}: participation names nobody any more", t, state)
            if i in free:
                free.discard(i)
                self._dispatch(exchange, down, state, i, weight, t)
                sent += nbytes(down)
        return sent

    def _dispatch(
        self, exchange: Exchange, down: Any, state: State, i: int, weight: float, t: int
    ) -> None:
        plan = self.plan
        (steps,) = plan.local.count(plan.problem, Key(plan.seed, t), [i])
        request = self.request(down, state.clients, i, steps, t, 0)
        self.out[i] = Out(t - 1, weight, steps, request, self.form(exchange, down, t))
        self.fleet.ask(i, request)

    def _take_in(self, found: Gathered, t: int) -> None:
        for i, reply in self.fleet.answers():
            out = self.out.get(i)
            if out is None:
                continue
            if reply.kind == "lost" and not self.entangled:
                self.faults.note(t, i, "lost its state and begins anew")
                self.out[i] = replace(out, request=self.anew(out.request))
                self.fleet.ask(i, self.out[i].request)
                continue
            del self.out[i]
            if reply.kind == "lost":
                raise Lost([i])
            before = len(found.bad)
            self.take(found, i, reply, out.request, out.form, t)
            if len(found.bad) == before:
                self.buffer[i] = replace(out, up=found.good.pop(i))

    def mended(self, state: State, lost: Any, t: int) -> State:
        """As with cohorts; whoever has begun anew since is not under way any more."""
        before = {i: self._held(state, i) for i in range(self.plan.problem.N)}
        self.fleet.forget(self.out)
        self.out = {}
        state = super().mended(replace(state, server=self._server), lost, t)
        changed = [i for i, stamp in before.items() if self._held(state, i) != stamp]
        for i in changed:
            self.buffer.pop(i, None)
        return state

    def _step(self, state: State, used: dict[int, Out], t: int) -> Any:
        plan, clients = self.plan, list(used)
        ages = [t - 1 - out.version for out in used.values()]
        party = Party(
            clients=clients,
            weights=[out.weight for out in used.values()],
            steps=[out.steps for out in used.values()],
            share=[float(plan.problem.weights[i]) for i in clients],
            staleness=ages,
        )
        rule: Any = getattr(plan.algorithm, "discount", None)
        factors = [1.0] * len(ages) if rule is None else rule(torch.tensor(ages).double()).tolist()
        ups = {
            i: map_tensors(lambda v, s=s: s * v, used[i].up)
            for i, s in zip(clients, factors, strict=True)
        }
        x = plan.problem.x0
        held = {i: Held.of(Stamp(out.version + 1, 1), x) for i, out in used.items()}
        (exchange,) = exchanges_of(plan.algorithm, t)
        return stepped_on(ups, held, exchange, state.server, state.clients, party, plan, t)
