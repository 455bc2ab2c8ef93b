"""Dispatching clients in virtual time, and accounting for their visits.

Who is dispatched next: the cohorts that participation draws, in order, without clients that are busy or unavailable.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from undrift.core.algorithm import Exchange
from undrift.core.errors import Deserted
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.simulation.asynchronous.async_state import AsyncState, Timing, Visit, visit_timeline
from undrift.simulation.asynchronous.population import Device, Population
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines import engine_of
from undrift.simulation.participants import Participants
from undrift.simulation.participation import Draw, Fixed
from undrift.simulation.transport import RunPlan

RECORDED_VISITS = 1000  # of a run, which are recorded one by one
CACHED_DEVICES = 10_000
CLIENTS_ASKED = 1000  # clients asked in vain before the server waits


class NextClient(NamedTuple):
    client: int
    drawn: int | None  # how often, where that is its weight
    until: float  # when it leaves


class ClientQueue:
    """The clients in the order in which they are asked.  Its place is part of the state: cohorts drawn, how far the last is used.

    In the limit of no delays a round takes exactly one cohort, so that it is the one the other engines draw.
    """

    def __init__(self, plan: RunPlan, population: Population, live: AsyncState):
        self.plan, self.population, self.live = plan, population, live
        self._drawn: tuple[int, Draw] | None = None

    def next_cohort(self) -> int:
        """Begin a new cohort; how many are in it."""
        if self._exhausted():
            return 0
        self.live.cohorts, self.live.taken = self.live.cohorts + 1, 0
        return len(self._cohort().clients)

    def ask(self, wanted: int, stay: bool = False, thorough: bool = False) -> list[NextClient]:
        """Clients that are there and free, at most so many.

        `stay`: of the cohort begun only.  `live.wake` becomes the moment at which one of those who are away comes back.
        """
        live, N = self.live, self.plan.problem.N
        live.wake = math.inf
        found: list[NextClient] = []
        asked: set[int] = set()
        idle = N - len(live.busy)
        tries = 20 * N + CLIENTS_ASKED if thorough else CLIENTS_ASKED + 100 * wanted + 2 * len(live.busy)
        while len(found) < wanted and len(asked) < idle and tries > 0:
            tries -= 1
            draw = self._cohort()
            if live.taken == len(draw.clients):
                if stay or self._exhausted():
                    break
                self.next_cohort()
                continue
            place, live.taken = live.taken, live.taken + 1
            client = draw.clients[place]
            if client in live.busy or client in asked:
                continue
            asked.add(client)
            window = self.population.availability.window(self.plan.seed, client, live.time)
            if window[0] <= live.time:
                found.append(NextClient(client, draw.counts[place] if draw.counts else None, window[1]))
            else:
                live.wake = min(live.wake, window[0])
        return found

    def _cohort(self) -> Draw:
        number = self.live.cohorts
        if number == 0:
            return Draw(())
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = number, self.plan.draw(number)
        return self._drawn[1]

    def _exhausted(self) -> bool:
        """Whether cohorts were given one by one and all have been begun."""
        who = self.plan.participation
        return isinstance(who, Fixed) and self.live.cohorts >= len(who.cohorts)


class VirtualClock:
    """Virtual time, and what both kinds of rounds do with it."""

    def __init__(self, plan: RunPlan, population: Population, live: AsyncState, clients: ClientStates):
        self.plan, self.population, self.live, self.clients = plan, population, live, clients
        self.queue = ClientQueue(plan, population, live)
        self.ended: list[Visit] = []  # in this round
        self.used: list[Visit] = []  # by the server in this round, in ascending order of clients
        self._mark = live.mark()
        self._sizes: dict[tuple[bool, int, str], int] = {}
        self._devices: dict[int, Device] = {}

    def begin_round(self) -> None:
        """From here on, `rollback` leads back to here."""
        self.ended, self.used, self._mark = [], [], self.live.mark()

    def rollback(self) -> None:
        self.live.rollback(self._mark)
        self.begin_round()

    def send(
        self,
        population: Population,
        client: int,
        steps: int,
        weight: float,
        version: int,
        sizes: tuple[int, int],
        until: float,
    ) -> Visit:
        """Dispatch a client: bytes down and up are `sizes`, `until` is when it becomes unavailable."""
        live = self.live
        number = live.tally.visits(client)
        live.tally.dispatched(client)
        live.dispatches += 1
        steps, fate, *moments = visit_timeline(
            population, self._device(client), self.plan.seed, client, number, steps, live.time, *sizes, until
        )
        order = live.dispatches
        return Visit(client, number, version, steps, order, fate, weight, live.time, *moments)

    def _device(self, client: int) -> Device:
        """The device of a client; some are cached, for drawing takes time."""
        if client not in self._devices:
            if len(self._devices) == CACHED_DEVICES:
                self._devices.clear()
            self._devices[client] = self.population.device(self.plan.seed, client)
        return self._devices[client]

    def answer_bytes(self, exchange: Exchange, down: Any, client: int, key: Key, for_time: bool = True) -> int:
        """The bytes of an answer, from one step of one client: times are needed before answers are."""
        if for_time and self.population.link.up is None:
            return 0
        kind = key.round == 0, key.exchange, exchange.to
        if kind not in self._sizes:
            plan, one = self.plan, Participants([client], [1.0], [1], [1.0])
            request = plan.request(exchange, down, self.clients, one, key, may_sum=False)
            with torch.no_grad():
                answers = engine_of(plan.choice, max(key.round, 1))(request)
                self._sizes[kind] = sum(nbytes(results.up) for results in answers)
        return self._sizes[kind]

    def account(self, used: list[Visit], left_out: Sequence[int], discount: dict[int, float]) -> None:
        """Book the weights with which updates were used."""
        self.used = used
        sound = [v for v in used if v.client not in left_out]
        total = sum(v.weight for v in sound)
        for v in sound:
            p = float(self.plan.problem.weights[v.client])
            weight = discount.get(v.client, 1.0) * v.weight / total
            self.live.tally.take(v.client, weight, v.steps, p)

    def timing(self, t: int) -> Timing:
        """The account of round t."""
        live, used = self.live, self.used
        lost = [v for v in self.ended if not v.arrives]
        chi2, chi2_steps = live.tally.chi2()
        total = sum(v.weight for v in used)
        return Timing(
            staleness=tuple(t - 1 - v.version for v in used),
            steps=tuple(v.steps for v in used),
            lost=tuple(v.client for v in lost),
            in_flight=len(live.out),
            waited=sum(live.time - v.returns for v in used),
            wasted=sum(v.ends - v.begins for v in lost),
            tau_eff=sum(v.weight * v.steps for v in used) / total if total else 0.0,
            chi2=chi2,
            chi2_steps=chi2_steps,
            used=live.tally.used,
            visits=tuple(v for v in self.ended if v.order <= RECORDED_VISITS),
        )

    def deserted(self, t: int) -> Deserted:
        return Deserted(
            f"round {t}: nobody is left: at {self.live.time:g} virtual seconds no client is at work and none that "
            "participation names will be available again",
            t,
            None,
        )
