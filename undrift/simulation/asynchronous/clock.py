"""Sending clients out in virtual time, and keeping account of what becomes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from undrift.core.algorithm import Exchange
from undrift.core.errors import Deserted
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.core.work import Work
from undrift.simulation.aggregation import Traffic
from undrift.simulation.asynchronous.async_state import InFlight, Timing, Visit, course
from undrift.simulation.asynchronous.client_queue import Line
from undrift.simulation.asynchronous.population import Device, Population
from undrift.simulation.client_states import ClientStates, States
from undrift.simulation.driver import State
from undrift.simulation.engines import Engine, engine_of
from undrift.simulation.transport import Plan

PICTURED = 1000  # visits of a run that are told one by one
REMEMBERED = 10_000  # clients of whom it is remembered what they are like


def visitor(plan: Plan, t: int) -> tuple[Engine, int]:
    """The engine that visits clients on the model of round t, and how many it takes at once.

    One after another there is nothing to gain by computing more than is needed.
    """
    choice = plan.choice
    at_once = choice.workers or 1 if choice.alone else choice.chunk
    return engine_of(choice, t), at_once


@dataclass(frozen=True)
class Made:
    """What a round led to."""

    server: Any
    states: States  # not written yet
    traffic: Traffic
    exchanges: int
    used: list[Visit]  # in ascending order of clients


class Clock:
    """Virtual time and what both kinds of rounds do with it."""

    def __init__(self, plan: Plan, population: Population, live: InFlight):
        self.plan, self.population, self.live = plan, population, live
        self.line = Line(plan, population, live)
        self.ended: list[Visit] = []  # in this round
        self.old: States = []  # states that this round has written over already
        self._sizes: dict[tuple[bool, int, str], int] = {}
        self._devices: dict[int, Device] = {}

    def begin(self) -> Any:
        """Begin a round; what it returns undoes it."""
        self.ended, self.old = [], []
        return self.live.mark()

    def undo(self, mark: Any, clients: ClientStates) -> None:
        for who, each in self.old[::-1]:
            clients.scatter(who, each)
        self.live.back(mark)

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
        """Send a client out, with a message of so many bytes, to answer with so many, before it leaves."""
        live = self.live
        number = live.tally.visits(client)
        live.tally.dispatched(client)
        live.dispatches += 1
        steps, fate, *moments = course(
            population,
            self._device(client),
            self.plan.seed,
            client,
            number,
            steps,
            live.time,
            *sizes,
            until,
        )
        order = live.dispatches
        return Visit(client, number, version, steps, order, fate, weight, live.time, *moments)

    def _device(self, client: int) -> Device:
        """What a client is like; some are remembered, for drawing takes time."""
        if client not in self._devices:
            if len(self._devices) == REMEMBERED:
                self._devices.clear()
            self._devices[client] = self.population.device(self.plan.seed, client)
        return self._devices[client]

    def size_up(
        self, exchange: Exchange, down: Any, state: State, client: int, when: int, number: int
    ) -> int:
        """The bytes of an answer, from one step of one client: times are needed before answers are."""
        if self.population.link.up is None:
            return 0
        kind = when == 0, number, exchange.to
        if kind not in self._sizes:
            plan, key = self.plan, Key(self.plan.seed, when, number)
            solver = plan.local.solver(when)

            def lend(clients: Sequence[int], single: bool) -> Work:
                return Work(plan.problem, solver, clients, [1] * len(clients), key, single)

            with torch.no_grad():
                engine, _ = visitor(plan, max(when, 1))
                answers = engine(exchange.local, down, state.clients, [client], lend, 1)
                self._sizes[kind] = sum(nbytes(up) for _, up, _ in answers)
        return self._sizes[kind]

    def account(
        self, used: Sequence[Visit], left_out: Sequence[int], discount: dict[int, float]
    ) -> None:
        """Book the weights with which updates were used."""
        sound = [v for v in used if v.client not in left_out]
        total = sum(v.weight for v in sound)
        for v in sound:
            p = float(self.plan.problem.weights[v.client])
            weight = discount.get(v.client, 1.0) * v.weight / total
            self.live.tally.take(v.client, weight, v.steps, p)

    def timing(self, made: Made, t: int) -> Timing:
        """The account of round t."""
        live, used = self.live, made.used
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
            visits=tuple(v for v in self.ended if v.order <= PICTURED),
        )

    def deserted(self, t: int) -> Deserted:
        return Deserted(
            f"round {t}: nobody is left: at {self.live.time:g} virtual seconds no client is under way and none that "
            "participation names will be available again",
            t,
            None,
        )
