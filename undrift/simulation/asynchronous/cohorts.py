"""Rounds of one cohort each: the server waits for all of it (Synchronous) or until a deadline."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from undrift.core.algorithm import Exchange
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.simulation.aggregation import Outcome, Party, Setting, Traffic, carry_out
from undrift.simulation.asynchronous.async_state import LATE, Visit
from undrift.simulation.asynchronous.availability import Always
from undrift.simulation.asynchronous.clock import Clock, Made, visitor
from undrift.simulation.asynchronous.policies import Deadline, ServerPolicy
from undrift.simulation.asynchronous.population import Dropout
from undrift.simulation.client_states import States, written
from undrift.simulation.driver import State, exchanges_in, party_of
from undrift.simulation.participation import Draw, Fixed


class Cohorts:
    """Nothing is under way between two rounds."""

    def __init__(self, clock: Clock, server: ServerPolicy):
        self.clock, self.server = clock, server
        self.until: dict[int, float] = {}  # when the round's clients leave

    def round(self, state: State, t: int) -> Made:
        return self.carry(state, exchanges_in(self.clock.plan.algorithm, t), t)

    def carry(self, state: State, exchanges: Iterable[tuple[int, int, Exchange]], t: int) -> Made:
        """One exchange after another, each with those of the cohort who are still there."""
        clock, plan = self.clock, self.clock.plan
        server, traffic, count = state.server, Traffic(), 0
        new: States = []
        used: list[Visit] = []  # of the cohort, whatever single clients or all of them did besides
        left_out: tuple[int, ...] = ()
        draw: Draw | None = None
        for when, number, exchange in exchanges:
            clock.old += [(who, state.clients.gather(who)) for who, _ in new]
            new = written(new, state.clients)
            if draw is None and when > 0:
                draw = self._cohort(t)
            party = party_of(plan, exchange, draw or Draw(()), when, number)
            if not any(party.weights):
                continue  # nobody came, or nobody who counts
            visits, down_bytes = self._sent(exchange, server, state, party, when, number)
            traffic += Traffic(bytes_down=down_bytes * len(visits))
            came = self._in_time(visits, patient=exchange.to == "everyone")
            if exchange.to == "cohort":  # who is lost does not come to a second exchange
                draw = _only(draw or Draw(()), came)
            if not came:
                continue
            outcome = self._update(
                exchange, server, state, party, came, Key(plan.seed, when, number)
            )
            server, new, count = outcome.server, outcome.states, count + 1
            traffic += replace(outcome.traffic, bytes_down=0)  # booked when they were sent out
            if when > 0 and (exchange.to == "cohort" or not used):
                used, left_out = came, outcome.traffic.left_out
        clock.account(used, left_out, {})
        return Made(server, new, traffic, count, used)

    def _cohort(self, t: int) -> Draw:
        """Those drawn who are there, and others in place of those who are not (unless cohorts are given one by one)."""
        clock, live = self.clock, self.clock.live
        wanted = clock.line.next_cohort()
        stay = isinstance(clock.plan.participation, Fixed)
        if wanted == 0:
            return Draw(())
        found = clock.line.ask(wanted, stay)
        while not found:
            if live.wake == math.inf:
                found = clock.line.ask(wanted, stay, thorough=True)
                if not found and live.wake == math.inf:
                    raise clock.deserted(t)
            else:
                live.time, live.taken = live.wake, 0  # the same cohort is asked once more
                found = clock.line.ask(wanted, stay)
        found.sort()
        self.until = {each.client: each.until for each in found}
        counts = tuple(each.drawn for each in found if each.drawn is not None)
        return Draw(tuple(each.client for each in found), counts or None)

    def _sent(
        self, exchange: Exchange, server: Any, state: State, party: Party, when: int, number: int
    ) -> tuple[list[Visit], int]:
        """The visits of one exchange, and the bytes of its message."""
        clock, down = self.clock, exchange.send(server)
        population, until = clock.population, self.until
        if exchange.to == "everyone":  # it waits for all of them, so none may be missing
            population, until = replace(population, dropout=Dropout(), availability=Always()), {}
        sizes = nbytes(down), clock.size_up(exchange, down, state, party.clients[0], when, number)
        rows = zip(party.clients, party.steps, party.weights, strict=True)
        version = max(when, 1) - 1
        return [
            clock.send(population, i, steps, weight, version, sizes, until.get(i, math.inf))
            for i, steps, weight in rows
        ], sizes[0]

    def _in_time(self, visits: list[Visit], patient: bool) -> list[Visit]:
        """Let time pass until the server goes on; the visits whose answers it has then."""
        live, end = self.clock.live, max(v.returns for v in visits)
        if isinstance(self.server, Deadline) and not patient:
            arrivals = sorted(v.returns for v in visits if v.arrives)
            least = arrivals[: self.server.minimum][-1:]
            end = min(end, max([live.time + self.server.seconds, *least]))
        over = [v if v.returns <= end else _late(v, end) for v in visits]
        self.clock.ended += over
        live.time = end
        return [v for v in over if v.arrives]

    def _update(
        self,
        exchange: Exchange,
        server: Any,
        state: State,
        party: Party,
        used: list[Visit],
        key: Key,
    ) -> Outcome:
        plan, share = self.clock.plan, dict(zip(party.clients, party.share, strict=True))
        present = Party(
            clients=[v.client for v in used],
            weights=[v.weight for v in used],
            steps=[v.steps for v in used],
            share=[share[v.client] for v in used],
        )
        engine, chunk = visitor(plan, max(key.round, 1))
        setting = Setting(plan.problem, engine, chunk, plan.local.solver(key.round))
        return carry_out(exchange, server, state.clients, present, setting, key)


def _late(v: Visit, end: float) -> Visit:
    """The same visit broken off."""
    return replace(v, fate=LATE, begins=min(v.begins, end), ends=min(v.ends, end), returns=end)


def _only(draw: Draw, used: list[Visit]) -> Draw:
    """The same draw without those who are lost."""
    kept = {v.client for v in used}
    places = [j for j, i in enumerate(draw.clients) if i in kept]
    counts = None if draw.counts is None else tuple(draw.counts[j] for j in places)
    return Draw(tuple(draw.clients[j] for j in places), counts)
