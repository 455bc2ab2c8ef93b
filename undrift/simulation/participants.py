"""The clients of one exchange, as the server knows them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from undrift.core.algorithm import Cohort, Exchange
from undrift.core.rng import Key, Purpose, generator
from undrift.core.work import Solver
from undrift.local import Local
from undrift.problems import Problem
from undrift.simulation.participation import Draw


@dataclass(frozen=True)
class Participants:
    """Clients in ascending order, with their weights in the mean and their numbers of local steps."""

    clients: Sequence[int]
    weights: Sequence[float]
    steps: Sequence[int]
    share: Sequence[float]  # of the population's weight, per client
    staleness: Sequence[int] | None = None  # of the models they worked on; None: all fresh

    def at(self, places: Sequence[int]) -> "Participants":
        """Those at these places."""
        return Participants(
            [self.clients[j] for j in places],
            [self.weights[j] for j in places],
            [self.steps[j] for j in places],
            [self.share[j] for j in places],
            None if self.staleness is None else [self.staleness[j] for j in places],
        )

    def only(self, clients: Collection[int]) -> "Participants":
        """Those that are among these clients."""
        return self.at([j for j, i in enumerate(self.clients) if i in clients])

    @property
    def have_weight(self) -> bool:
        """Whether somebody takes part whose weight is not zero."""
        return any(self.weights)


def participants_of(
    exchange: Exchange, draw: Draw, problem: Problem, local: Local, largest_weight: float, key: Key
) -> Participants:
    """Who takes part in an exchange, with which weight and how many steps."""
    if exchange.to == "everyone":
        draw = Draw(tuple(range(problem.N)))
    share = [float(problem.weights[i]) for i in draw.clients]
    # Relative to the largest, so that equal weights are exactly one.
    weights = draw.counts or [s / largest_weight for s in share]
    steps = local.count(problem, key, draw.clients)
    found = Participants(draw.clients, weights, steps, share)
    if exchange.to == "one" and draw.clients:
        random = generator(Purpose.COHORT, key, client=1)  # client 0's stream drew the cohort
        chosen = found.at([int(random.integers(len(draw.clients)))])
        return Participants(chosen.clients, [1.0], chosen.steps, chosen.share)
    return found


def cohort_of(present: Participants, problem: Problem, solver: Solver, key: Key) -> Cohort:
    """What the server's step is told of those whose updates it uses."""
    ages = present.staleness or [0] * len(present.clients)
    rows = np.array([present.weights, present.steps, ages], dtype=np.float64)  # torch is slower on a few numbers
    weights, steps, staleness = rows
    weights = weights / weights.sum()
    return Cohort(
        round=key.round,
        S=len(present.clients),
        N=problem.N,
        share=sum(present.share),
        weights=torch.from_numpy(weights),
        staleness=torch.from_numpy(staleness),
        lr=solver.lr,
        K=float(weights @ steps),
        steps=torch.from_numpy(steps),
        key=key,
    )
