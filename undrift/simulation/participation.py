"""Who takes part in a round."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, Protocol, TypeAlias

import numpy as np
from torch import Tensor

from undrift.core.errors import InvalidInput, setting
from undrift.core.hyper import check_value
from undrift.core.rng import Key, Purpose, stream

Weights: TypeAlias = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Draw:
    """The clients of a round in ascending order, and how often each was drawn (None: once each).

    Counts, where they are given, are the weights of the mean; otherwise the problem's weights are.
    """

    clients: tuple[int, ...]
    counts: tuple[int, ...] | None = None

    def only(self, clients: Collection[int]) -> "Draw":
        """Those that are among these clients."""
        places = [j for j, i in enumerate(self.clients) if i in clients]
        counts = None if self.counts is None else tuple(self.counts[j] for j in places)
        return Draw(tuple(self.clients[j] for j in places), counts)


class Participation(Protocol):
    """Anything with these two methods says who takes part."""

    def check(self, N: int, rounds: int) -> None: ...
    def draw(self, seed: int, round: int, weights: Weights) -> Draw: ...


@dataclass(frozen=True)
class Everyone:
    """All clients, every round."""

    def check(self, N: int, rounds: int) -> None:
        pass

    def draw(self, seed: int, round: int, weights: Weights) -> Draw:
        return Draw(tuple(range(len(weights))))


@dataclass(frozen=True)
class Uniform:
    """S different clients, every set of S equally likely."""

    S: int

    def check(self, N: int, rounds: int) -> None:
        _at_most(self.S, N, "Uniform")

    def draw(self, seed: int, round: int, weights: Weights) -> Draw:
        random = stream(Purpose.COHORT, Key(seed, round))
        chosen = random.choice(len(weights), self.S, replace=False)
        return Draw(tuple(sorted(chosen.tolist())))


@dataclass(frozen=True)
class Cyclic:
    """S clients after another, round and round, in an order that the seed draws once (GHBM, Assumption 4.3).

    With `shuffle=False` they come in the order of their numbers, which partitions often give by class.  Every client takes
    part once in each period of N/S rounds; if S does not divide N, a cohort may hold the end of one pass and the beginning
    of the next: at least once in any ceil(N/S) rounds, and once in each pass over the clients.

    >>> [Cyclic(2, shuffle=False).draw(0, t, [1.0] * 5).clients for t in (1, 2, 3)]
    [(0, 1), (2, 3), (0, 4)]
    """

    S: int
    shuffle: bool = True

    def check(self, N: int, rounds: int) -> None:
        _at_most(self.S, N, "Cyclic")
        check_value("Cyclic", "shuffle", self.shuffle, bool, among=(False, True))

    def draw(self, seed: int, round: int, weights: Weights) -> Draw:
        first, N = (round - 1) * self.S, len(weights)
        order = _permutation(seed, N) if self.shuffle else range(N)
        return Draw(tuple(sorted(order[(first + j) % N] for j in range(self.S))))


@dataclass(frozen=True)
class Weighted:
    """S draws with replacement, client i with probability p_i; every draw counts the same (FedNova, appendix G)."""

    S: int

    def check(self, N: int, rounds: int) -> None:
        check_value("Weighted", "S", self.S, int, within="[1, inf)")

    def draw(self, seed: int, round: int, weights: Weights) -> Draw:
        random = stream(Purpose.COHORT, Key(seed, round))
        p = np.asarray(weights, dtype=np.float64)
        drawn = random.choice(len(p), self.S, p=p / p.sum())
        clients, counts = np.unique(drawn, return_counts=True)
        return Draw(tuple(clients.tolist()), tuple(counts.tolist()))


@dataclass(frozen=True)
class Bernoulli:
    """Every client on its own with probability q.  A round in which nobody comes leaves the model as it is."""

    q: float

    def check(self, N: int, rounds: int) -> None:
        check_value("Bernoulli", "q", self.q, float, within="(0, 1]")

    def draw(self, seed: int, round: int, weights: Weights) -> Draw:
        random = stream(Purpose.COHORT, Key(seed, round))
        comes = random.random(len(weights)) < self.q
        return Draw(tuple(np.flatnonzero(comes).tolist()))


@dataclass(frozen=True)
class Fixed:
    """Cohorts given one by one: the first list for round 1, the second for round 2, ..."""

    cohorts: Sequence[Sequence[int]] | np.ndarray | Tensor

    def __post_init__(self) -> None:
        listed = _as_list(self.cohorts)
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise InvalidInput(f"Fixed takes a list of clients for every round, got {self.cohorts!r}")
        kind = tuple if isinstance(listed, tuple) else list
        object.__setattr__(self, "cohorts", kind(map(_as_list, listed)))

    def check(self, N: int, rounds: int) -> None:
        if len(self.cohorts) < rounds:
            raise InvalidInput(f"Fixed has {len(self.cohorts)} cohorts for {rounds} rounds: give one list a round")
        for t, cohort in enumerate(self.cohorts, start=1):
            right = isinstance(cohort, Sequence) and all(isinstance(i, Integral) for i in cohort)
            if not right or len(set(cohort)) != len(cohort) or any(not 0 <= i < N for i in cohort):
                raise InvalidInput(f"Fixed: round {t} must name different clients from 0 to {N - 1}, got {cohort}")

    def draw(self, seed: int, round: int, weights: Weights) -> Draw:
        return Draw(tuple(sorted(int(i) for i in self.cohorts[round - 1])))


def _as_list(numbers: Any) -> Any:
    """Arrays and tensors are as good as lists."""
    return numbers.tolist() if isinstance(numbers, np.ndarray | Tensor) else numbers


def expected_size(participation: Participation, N: int) -> int:
    """How many of N clients take part in a round on average, at least one.

    >>> expected_size(Bernoulli(0.1), 50), expected_size(Everyone(), 7), expected_size(Uniform(3), 7)
    (5, 7, 3)
    """
    if isinstance(participation, Bernoulli):
        return max(1, round(participation.q * N))
    if isinstance(participation, Fixed):
        return max(1, round(np.mean([len(cohort) for cohort in participation.cohorts])))
    return participation.S if isinstance(participation, Uniform | Cyclic | Weighted) else N


@lru_cache(8)
def _permutation(seed: int, N: int) -> tuple[int, ...]:
    """The order of a run's clients: that of round 0, which has no cohort of its own."""
    return tuple(stream(Purpose.COHORT, Key(seed, 0)).permutation(N).tolist())


def _at_most(S: int, N: int, name: str) -> None:
    if not isinstance(S, Integral) or not 1 <= S <= N:
        subject = setting(f"{name}: S", participation__per_round=...)
        everyone = setting("ud.Everyone()", participation__scheme="everyone")
        raise InvalidInput(f"{subject} must be from 1 to the number of clients, {N}; got {S} ({everyone} takes all)")
