"""Rounds of one cohort each in virtual time: the server waits for all of it (Synchronous) or until a deadline."""

import math
from dataclasses import replace
from typing import Any

from undrift.core.algorithm import Exchange
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.simulation.aggregation import Reply, Traffic, reply_of, send
from undrift.simulation.asynchronous.async_state import Visit
from undrift.simulation.asynchronous.availability import Always
from undrift.simulation.asynchronous.clock import VirtualClock
from undrift.simulation.asynchronous.policies import Deadline, ServerPolicy
from undrift.simulation.asynchronous.population import Dropout
from undrift.simulation.participants import Participants
from undrift.simulation.participation import Draw, Fixed
from undrift.simulation.results import Round
from undrift.simulation.transport import NOBODY, InProcess


class VirtualTransport(InProcess):
    """Clients that take time; nothing is in flight between two rounds."""

    def __init__(self, clock: VirtualClock, policy: ServerPolicy):
        super().__init__(clock.plan, clock.clients)
        self.clock, self.policy = clock, policy
        self.until: dict[int, float] = {}  # when the round's clients leave
        # Of the cohort, whatever single clients or all of them did besides: what the round's account is made of.
        self._used: list[Visit] = []
        self._left_out: tuple[int, ...] = ()

    def cohort(self, t: int) -> Draw:
        """Those drawn who are there, and others in place of those who are not (unless cohorts are given one by one)."""
        queue, live = self.clock.queue, self.clock.live
        wanted = queue.next_cohort()
        stay = isinstance(self.plan.participation, Fixed)
        if wanted == 0:
            return Draw(())
        found = queue.ask(wanted, stay)
        while not found:
            if live.wake == math.inf:
                found = queue.ask(wanted, stay, thorough=True)
                if not found and live.wake == math.inf:
                    raise self.clock.deserted(t)
            else:
                live.time, live.taken = live.wake, 0  # the same cohort is asked once more
                found = queue.ask(wanted, stay)
        found.sort()
        self.until = {each.client: each.until for each in found}
        counts = tuple(each.drawn for each in found if each.drawn is not None)
        return Draw(tuple(each.client for each in found), counts or None)

    def exchange(self, exchange: Exchange, server: Any, draw: Draw, key: Key) -> Reply:
        plan = self.plan
        participants = plan.participants(exchange, draw, key)
        if not participants.have_weight:
            return NOBODY
        down = send(exchange, server, key.round)
        visits = self._send_out(exchange, down, participants, key)
        sent = Traffic(bytes_down=nbytes(down) * len(visits))
        came = self._wait(visits, for_all=exchange.to == "everyone")
        missing = {*participants.clients} - {v.client for v in came}
        lost = tuple(sorted(missing)) if exchange.to == "cohort" else ()
        if not came:
            return Reply(None, None, sent, lost)
        reply = self._reply(exchange, down, participants, came, key)
        if key.round > 0 and (exchange.to == "cohort" or not self._used):
            self._used, self._left_out = came, reply.traffic.left_out
        return replace(reply, traffic=sent + reply.traffic, lost=lost)

    def _send_out(self, exchange: Exchange, down: Any, participants: Participants, key: Key) -> list[Visit]:
        clock, until = self.clock, self.until
        population = clock.population
        if exchange.to == "everyone":  # it waits for all of them, so none may be missing
            population, until = replace(population, dropout=Dropout(), availability=Always()), {}
        first = participants.clients[0]
        sizes = nbytes(down), clock.answer_bytes(exchange, down, first, key)
        rows = zip(participants.clients, participants.steps, participants.weights, strict=True)
        version = max(key.round, 1) - 1
        return [
            clock.send(population, i, steps, weight, version, sizes, until.get(i, math.inf))
            for i, steps, weight in rows
        ]

    def _wait(self, visits: list[Visit], for_all: bool) -> list[Visit]:
        """Let time pass until the server goes on; the visits whose answers it has then."""
        live, end = self.clock.live, max(v.returns for v in visits)
        if isinstance(self.policy, Deadline) and not for_all:
            arrivals = sorted(v.returns for v in visits if v.arrives)
            least = arrivals[: self.policy.minimum][-1:]
            end = min(end, max([live.time + self.policy.seconds, *least]))
        over = [v if v.returns <= end else v.cancelled(end) for v in visits]
        self.clock.ended += over
        live.time = end
        return [v for v in over if v.arrives]

    def _reply(self, exchange: Exchange, down: Any, participants: Participants, came: list[Visit], key: Key) -> Reply:
        plan, share = self.plan, dict(zip(participants.clients, participants.share, strict=True))
        clients, weights, steps = zip(*((v.client, v.weight, v.steps) for v in came), strict=True)
        present = Participants(clients, weights, steps, [share[i] for i in clients])
        part = self.visit(exchange, down, present, key)
        return reply_of(part, present, plan.problem, plan.solver(key.round), key)

    def commit(self, t: int) -> None:
        super().commit(t)
        self.clock.account(self._used, self._left_out, {})
        self._used, self._left_out = [], ()

    def rollback(self) -> None:
        super().rollback()
        self.clock.rollback()
        self._used, self._left_out = [], ()

    def complete(self, r: Round) -> Round:
        clock = self.clock
        clients, timing = tuple(v.client for v in clock.used), clock.timing(r.round)
        clock.begin_round()
        return replace(r, clients=clients, time=clock.live.time, timing=timing)
