"""Which client is dispatched next: the cohorts that participation draws, in order, without clients that are busy or unavailable."""

import math
from typing import NamedTuple

from undrift.simulation.asynchronous.async_state import AsyncState
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.participation import Draw, Fixed
from undrift.simulation.transport import RunPlan

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
