"""Clients of a buffered server in virtual time."""

import math
from dataclasses import replace
from typing import Any

from undrift.core.algorithm import Exchange
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.simulation.aggregation import Reply, Traffic, aggregate, send
from undrift.simulation.asynchronous.async_state import Visit
from undrift.simulation.asynchronous.buffered_rounds import Updates, discounts
from undrift.simulation.asynchronous.clock import VirtualClock
from undrift.simulation.asynchronous.lookahead import Lookahead
from undrift.simulation.asynchronous.policies import Buffer, Synchronous
from undrift.simulation.asynchronous.virtual_transport import VirtualTransport
from undrift.simulation.driver import PlayedRound, play_exchanges
from undrift.simulation.participants import Participants
from undrift.simulation.participation import Draw
from undrift.simulation.results import Round
from undrift.simulation.transport import InProcess


class VirtualBuffer(InProcess):
    """Clients at work, and a buffer of updates: an `AsyncTransport`."""

    def __init__(self, clock: VirtualClock, policy: Buffer, started: bool):
        super().__init__(clock.plan, clock.clients)
        self.clock, self.policy, self.started = clock, policy, started
        self.lookahead = Lookahead(clock.plan, clock.live, clock.clients)

    def initialise(self, server: Any) -> PlayedRound | None:
        if self.started or not self.plan.exchanges(0):
            return None
        everyone = VirtualTransport(self.clock, Synchronous())
        everyone.staged = self.staged
        exchanges = [(0, number, e) for number, e in enumerate(self.plan.exchanges(0))]
        played = play_exchanges(self.plan, everyone, server, exchanges, lambda: Draw(()))
        self.staged.apply()
        return played

    def receive(self, t: int) -> Traffic:
        live = self.clock.live
        gone: list[Visit] = []
        while (visit := live.returned()) is not None:
            self.clock.ended.append(visit)
            (live.buffer if visit.arrives else gone).append(visit)
        late = live.cancel(lambda v: self.policy.is_late(t - 1 - v.version))
        came = sum(v.returns <= live.time for v in late)  # whole, though in vain
        bytes_up = came * self._answer_bytes(t, late[0]) if came else 0
        self.clock.ended += [v.cancelled(live.time) for v in late]
        self.lookahead.forget(v.client for v in late)
        if gone or late:
            live.release([*gone, *late])
        return Traffic(bytes_up=bytes_up)

    def _answer_bytes(self, t: int, visit: Visit) -> int:
        (exchange,) = self.plan.exchanges(t)
        down = self.clock.live.downs[visit.version]
        key = Key(self.plan.seed, visit.version + 1)
        return self.clock.answer_bytes(exchange, down, visit.client, key, for_time=False)

    def is_full(self) -> bool:
        return len(self.clock.live.buffer) >= self.policy.size

    def wait(self, server: Any, t: int) -> int:
        live, sent = self.clock.live, 0
        if not live.out and live.wake == math.inf:
            sent = self.dispatch(server, t, thorough=True)
        soonest = min(live.out[0][0] if live.out else math.inf, live.wake)
        if soonest == math.inf:
            raise self.clock.deserted(t)
        live.time = max(live.time, soonest)
        return sent

    def dispatch(self, server: Any, t: int, thorough: bool = False) -> int:
        clock, live, plan = self.clock, self.clock.live, self.plan
        room = self.policy.at_work - len(live.out)
        found = clock.queue.ask(max(room, 0), thorough=thorough)
        if not found:
            return 0
        (exchange,) = plan.exchanges(t)
        if t - 1 not in live.downs:
            live.downs[t - 1] = send(exchange, server, t)
        down = live.downs[t - 1]
        answer = clock.answer_bytes(exchange, down, found[0].client, Key(plan.seed, t))
        sizes = nbytes(down), answer
        steps = plan.local.count(plan.problem, Key(plan.seed, t), [each.client for each in found])
        for (client, drawn, until), K in zip(found, steps, strict=True):
            weight = drawn or float(plan.problem.weights[client]) / plan.largest_weight
            visit = clock.send(clock.population, client, K, weight, t - 1, sizes, until)
            live.depart(visit)
            self.lookahead.expect(visit)
        return sizes[0] * len(found)

    def take(self, t: int) -> Updates:
        live, size, plan = self.clock.live, self.policy.size, self.plan
        used = sorted(live.buffer[:size], key=lambda v: v.client)
        live.buffer = live.buffer[size:]
        participants = Participants(
            clients=[v.client for v in used],
            weights=[v.weight for v in used],
            steps=[v.steps for v in used],
            share=[float(plan.problem.weights[v.client]) for v in used],
            staleness=[t - 1 - v.version for v in used],
        )
        clients, ages = list(participants.clients), list(participants.staleness or ())
        discount = discounts(plan.algorithm, clients, ages)
        self.lookahead.prepare(used)
        (exchange,) = plan.exchanges(t)
        answers = self.lookahead.take(participants.clients)
        states = self.clock.clients
        part = aggregate(answers, exchange, states, participants, plan.problem, t, discount)
        self.staged.stage(part.states)
        self.clock.account(used, part.traffic.left_out, discount)
        live.release(used)
        return Updates(participants, part)

    # a `Transport`, too, but its rounds are no exchanges with a cohort

    def cohort(self, t: int) -> Draw:
        raise RuntimeError("a buffered server has no cohorts")

    def exchange(self, exchange: Exchange, server: Any, draw: Draw, key: Key) -> Reply:
        raise RuntimeError("a buffered server has no cohorts")

    def commit(self, t: int) -> None:
        super().commit(t)
        self.started = True

    def rollback(self) -> None:
        super().rollback()
        self.clock.rollback()

    def complete(self, r: Round) -> Round:
        timing = self.clock.timing(r.round)
        self.clock.begin_round()
        return replace(r, time=self.clock.live.time, timing=timing)
