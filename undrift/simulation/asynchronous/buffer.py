"""A step of the server whenever the buffer is full, while other clients go on with their work."""

import math
from dataclasses import replace
from typing import Any

import torch

from undrift.core.algorithm import Exchange, exchanges_of
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.simulation.aggregation import Outcome, Party, Traffic, collected, stepped
from undrift.simulation.asynchronous.async_state import Visit
from undrift.simulation.asynchronous.clock import Clock, Made
from undrift.simulation.asynchronous.cohorts import Cohorts
from undrift.simulation.asynchronous.lookahead import Ahead
from undrift.simulation.asynchronous.policies import Buffer, Synchronous
from undrift.simulation.client_states import written
from undrift.simulation.driver import State, exchanges_in


class Buffered:
    """At one instant: first all that has returned is taken in, then the server steps as often as it can, then clients
    are sent out.  So without delays a round is one cohort on one model, as in the other engines."""

    def __init__(self, clock: Clock, server: Buffer, state: State):
        self.clock, self.server = clock, server
        self.ahead = Ahead(clock.plan, clock.live, state.clients)

    def round(self, state: State, t: int) -> Made:
        live, size = self.clock.live, self.server.size
        first = self._first_contact(state) if t == 1 else Made(state.server, [], Traffic(), 0, [])
        state, sent = replace(state, server=first.server), 0
        while not self._full():
            sent += self._send_out(state, t)
            if not live.out and live.wake == math.inf:
                sent += self._send_out(state, t, thorough=True)
            soonest = min(live.out[0][0] if live.out else math.inf, live.wake)
            if soonest == math.inf:
                raise self.clock.deserted(t)
            live.time = max(live.time, soonest)
        used = sorted(live.buffer[:size], key=lambda v: v.client)
        live.buffer = live.buffer[size:]
        discount = self._discount(used, t)
        outcome = self._update(state, used, discount, t)
        self.clock.account(used, outcome.traffic.left_out, discount)
        live.release(used)
        traffic = first.traffic + replace(outcome.traffic, bytes_down=sent)
        return Made(outcome.server, outcome.states, traffic, first.exchanges + 1, used)

    def _first_contact(self, state: State) -> Made:
        """With everyone, before the clients set out."""
        clock = self.clock
        exchanges = [e for e in exchanges_in(clock.plan.algorithm, 1) if e[0] == 0]
        made = Cohorts(clock, Synchronous()).carry(state, exchanges, 1)
        clock.old += [(who, state.clients.gather(who)) for who, _ in made.states]
        written(made.states, state.clients)
        return made

    def _full(self) -> bool:
        """Take in all that has returned by now; whether the server can step."""
        live = self.clock.live
        gone: list[Visit] = []
        while (visit := live.returned()) is not None:
            self.clock.ended.append(visit)
            (live.buffer if visit.arrives else gone).append(visit)
        if gone:
            live.release(gone)
        return len(live.buffer) >= self.server.size

    def _send_out(self, state: State, t: int, thorough: bool = False) -> int:
        """Send clients out where there is room; the bytes that were sent."""
        clock, live, plan = self.clock, self.clock.live, self.clock.plan
        room = self.server.at_work - len(live.out)
        found = clock.line.ask(max(room, 0), thorough=thorough)
        if not found:
            return 0
        exchange = self._exchange(t)
        if t - 1 not in live.downs:
            live.downs[t - 1] = exchange.send(state.server)
        down = live.downs[t - 1]
        up = clock.size_up(exchange, down, state, found[0].client, t, 0)
        sizes = nbytes(down), up
        steps = plan.local.count(plan.problem, Key(plan.seed, t), [each.client for each in found])
        for (client, drawn, until), K in zip(found, steps, strict=True):
            weight = drawn or float(plan.problem.weights[client]) / plan.largest_weight
            visit = clock.send(clock.population, client, K, weight, t - 1, sizes, until)
            live.depart(visit)
            self.ahead.expect(visit)
        return sizes[0] * len(found)

    def _exchange(self, t: int) -> Exchange:
        (exchange,) = exchanges_of(self.clock.plan.algorithm, t)
        return exchange

    def _discount(self, used: list[Visit], t: int) -> dict[int, float]:
        """What a method with `discount` makes of stale updates: a factor of each."""
        rule: Any = getattr(self.clock.plan.algorithm, "discount", None)
        if rule is None:
            return {}
        ages = torch.tensor([t - 1 - v.version for v in used], dtype=torch.float64)
        return dict(zip((v.client for v in used), rule(ages).tolist(), strict=True))

    def _update(
        self, state: State, used: list[Visit], discount: dict[int, float], t: int
    ) -> Outcome:
        plan = self.clock.plan
        party = Party(
            clients=[v.client for v in used],
            weights=[v.weight for v in used],
            steps=[v.steps for v in used],
            share=[float(plan.problem.weights[v.client]) for v in used],
            staleness=[t - 1 - v.version for v in used],
        )
        self.ahead.prepare(used)
        answers = self.ahead.taken(party.clients, discount)
        update, solver = self._exchange(t).update, plan.local.solver(t)
        part = collected(answers, state.clients, party, plan.problem, t)
        return stepped(update, state.server, [part], party, plan.problem, solver, t)
