"""From minutes to work: how many trials, rounds and seeds.  Settled before anything starts, from seconds of a round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from undrift.core.errors import InvalidInput, setting
from undrift.core.hyper import check_fields, hyper
from undrift.experiments.report.format import format_seconds, plural


@dataclass(frozen=True)
class Budget:
    """What every method is given.

    trials   settings that are tried
    seeds    of every trial; twice as many others are those of the final runs of the best of each method
    rounds   of every run
    """

    trials: int = hyper(within="[1, inf)")
    seeds: int = hyper(within="[1, inf)")
    rounds: int = hyper(within="[1, inf)")

    def __post_init__(self) -> None:
        check_fields(self, "choose")

    @property
    def final_seeds(self) -> int:
        return 2 * self.seeds

    def __str__(self) -> str:
        return " x ".join(plural(count, noun[:-1]) for noun, count in vars(self).items())


# What minutes buy, in this order: tried in earnest first, then on more settings, then for longer, then more surely.
LADDER = tuple(
    Budget(*rung)
    for rung in (
        (4, 2, 25),
        (6, 2, 25),
        (6, 3, 30),
        (6, 3, 50),
        (9, 3, 50),
        (9, 3, 80),
        (12, 3, 100),
        (18, 3, 100),
        (18, 4, 150),
        (18, 5, 200),
        (18, 5, 400),
        (18, 5, 800),
        (18, 8, 1000),
    )
)


def seconds_of(budget: Budget, seconds: Mapping[str, float], points: Mapping[str, int]) -> float:
    """What a budget takes: `seconds` a round of a run by method, `points` the size of a method's grid.

    >>> seconds_of(Budget(trials=5, seeds=2, rounds=10), {"fedavg": 0.1, "fedprox": 0.2}, {"fedavg": 3, "fedprox": 15})
    38.0
    """
    runs = {label: min(budget.trials, points[label]) * budget.seeds + budget.final_seeds for label in seconds}
    return sum(seconds[label] * runs[label] * budget.rounds for label in seconds)


def plan_budget(
    minutes: float,
    seconds: Mapping[str, float],
    points: Mapping[str, int],
    given: Mapping[str, int],
    ladder: Sequence[Budget] = LADDER,
) -> Budget:
    """The most work that fits into so many minutes; `given` are numbers that the user has settled.

    >>> plan_budget(1.0, {"fedavg": 0.01, "scaffold": 0.02}, {"fedavg": 5, "scaffold": 5}, {})
    Budget(trials=9, seeds=3, rounds=80)
    >>> plan_budget(1.0, {"fedavg": 0.01, "scaffold": 0.02}, {"fedavg": 5, "scaffold": 5}, {"rounds": 60})
    Budget(trials=18, seeds=4, rounds=60)
    """
    rungs = [replace(rung, **given) for rung in ladder]
    fitting = [rung for rung in rungs if seconds_of(rung, seconds, points) <= 60 * minutes]
    if not fitting:
        least = min(seconds_of(rung, seconds, points) for rung in rungs)
        minutes_, methods, rounds = (setting(word, **{word: ...}) for word in ("minutes", "methods", "rounds"))
        raise InvalidInput(
            f"{minutes_} {minutes:g} is too little for {len(seconds)} methods on this federation: the least that says "
            f"anything takes about {format_seconds(least)}; give more {minutes_}, fewer {methods} or fewer {rounds}"
        )
    return max(fitting, key=lambda rung: (seconds_of(rung, seconds, points), rungs.index(rung)))
