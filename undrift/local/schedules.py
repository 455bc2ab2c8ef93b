"""Step-size schedules: the factor of lr in round t = 1, 2, ...; by name, as a list with one a round, or as a function."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from undrift.core.errors import InvalidInput, first_line
from undrift.core.hyper import build_named, check_fields, check_value, hyper

Schedule: TypeAlias = str | Sequence[float] | Callable[[int], float]


def _check(self: Any) -> None:
    check_fields(self, f"schedule {type(self).__name__.lower()}")


@runtime_checkable
class DependsOnRounds(Protocol):
    """A schedule that ends with the run."""

    def for_run(self, rounds: int) -> Callable[[int], float]: ...


@dataclass(frozen=True)
class Constant:
    """lr in every round."""

    def __call__(self, t: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step:
    """lr times `factor` after every so many rounds, by default after each third of the run.

    >>> [Step(every=2, factor=0.5)(t) for t in (1, 2, 3, 5)]
    [1.0, 1.0, 0.5, 0.25]
    """

    every: int | None = hyper(default=None, within="[1, inf)")
    factor: float = hyper(default=0.1, within="(0, inf)")

    __post_init__ = _check

    def for_run(self, rounds: int) -> "Step":
        return self if self.every is not None else replace(self, every=math.ceil(rounds / 3))

    def __call__(self, t: int) -> float:
        assert self.every is not None, "filled in by for_run"
        return self.factor ** ((t - 1) // self.every)


@dataclass(frozen=True)
class Exponential:
    """lr times `factor` after every round, as `decay` does."""

    factor: float = hyper(within="(0, inf)")

    __post_init__ = _check

    def __call__(self, t: int) -> float:
        return self.factor ** (t - 1)


@dataclass(frozen=True)
class Cosine:
    """From lr down to `floor` times lr along half a period of a cosine, over `rounds`, the run's if not given.

    >>> [round(Cosine(rounds=4)(t), 3) for t in (1, 2, 3, 4, 5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    rounds: int | None = hyper(default=None, within="[1, inf)")
    floor: float = hyper(default=0.0, within="[0, 1]")

    __post_init__ = _check

    def for_run(self, rounds: int) -> "Cosine":
        return self if self.rounds is not None else replace(self, rounds=rounds)

    def __call__(self, t: int) -> float:
        assert self.rounds is not None, "filled in by for_run"
        way = min((t - 1) / self.rounds, 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * way)) / 2


@dataclass(frozen=True)
class Warmup:
    """Linearly up to lr in the first `rounds`, a tenth of the run if not given; from there on another schedule, by name, counted from its own beginning.

    >>> [Warmup(rounds=2)(t) for t in (1, 2, 3)]
    [0.5, 1.0, 1.0]
    """

    rounds: int | None = hyper(default=None, within="[1, inf)")
    then: str | Callable[[int], float] = "constant"

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "_then", make_schedule(self.then))

    def for_run(self, rounds: int) -> Callable[[int], float]:
        up = math.ceil(rounds / 10) if self.rounds is None else self.rounds
        return replace(self, rounds=up, then=for_run(make_schedule(self.then), max(1, rounds - up)))

    def __call__(self, t: int) -> float:
        assert self.rounds is not None, "filled in by for_run"
        return t / self.rounds if t <= self.rounds else vars(self)["_then"](t - self.rounds)


@dataclass(frozen=True)
class Multistage:
    """Stages, each `growth` times as long as the one before, with lr times `factor` (Sun et al. 2024: 2 and 1/2).

    >>> [Multistage(first=2)(t) for t in (1, 2, 3, 6, 7)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    first: int = hyper(within="[1, inf)")
    growth: float = hyper(default=2.0, within="[1, inf)")
    factor: float = hyper(default=0.5, within="(0, 1]")

    __post_init__ = _check

    def __call__(self, t: int) -> float:
        stage, length, end = 0, float(self.first), float(self.first)
        while t > end:
            stage, length = stage + 1, length * self.growth
            end += length
        return self.factor**stage


@dataclass(frozen=True)
class Listed:
    """A factor for every round."""

    factors: tuple[float, ...]

    def for_run(self, rounds: int) -> "Listed":
        if len(self.factors) < rounds:
            raise InvalidInput(
                f"Local: schedule lists {len(self.factors)} factors for {rounds} rounds: give one a round"
            )
        return self

    def __call__(self, t: int) -> float:
        return self.factors[t - 1]


SCHEDULES: dict[str, Callable[..., Callable[[int], float]]] = {
    "constant": Constant,
    "step": Step,
    "exponential": Exponential,
    "cosine": Cosine,
    "warmup": Warmup,
    "multistage": Multistage,
}


def make_schedule(schedule: Any) -> Callable[[int], float]:
    """The schedule of a name, with its parameters after a colon, of a list or of a function.

    >>> make_schedule("step:30,factor=0.5")
    Step(every=30, factor=0.5)
    """
    if isinstance(schedule, str):
        return build_named("schedule", SCHEDULES, schedule)
    if isinstance(schedule, Sequence):
        return Listed(tuple(schedule))
    if callable(schedule) and not isinstance(schedule, type):
        return cast(Callable[[int], float], schedule)
    raise InvalidInput(
        f"Local: schedule must be a name ({', '.join(SCHEDULES)}), a list with a factor a round or a function of the "
        f"round, got {schedule!r}"
    )


def for_run(schedule: Callable[[int], float], rounds: int) -> Callable[[int], float]:
    """The schedule of a run of so many rounds."""
    return schedule.for_run(rounds) if isinstance(schedule, DependsOnRounds) else schedule


def check_factors(schedule: Callable[[int], float], rounds: int) -> list[float]:
    """The factors of all rounds, or the only one there is; raises InvalidInput unless each is a number that is not negative."""
    if isinstance(schedule, Constant):
        return [1.0]
    schedule, found = for_run(schedule, rounds), []
    for t in range(1, rounds + 1):
        try:
            found.append(float(schedule(t)))
        except Exception as error:
            raise InvalidInput(
                f"Local: schedule failed in round {t}: {type(error).__name__}: {first_line(error)}"
            ) from error
        check_value("Local", f"schedule in round {t}", found[-1], float, within="[0, inf)")
    return found
