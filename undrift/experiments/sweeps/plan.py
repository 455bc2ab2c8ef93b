"""What a sweep is to do: with which values, how often, judged by what."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from zlib import crc32

import numpy as np

from undrift.core.errors import InvalidInput, setting, unknown
from undrift.core.hyper import check_value, hyper
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.sweeps.space import Candidates, HyperValue, Range, Space, SpaceRow, check_choices, size_of
from undrift.metrics.quality import usual_last

SAMPLERS = ("grid", "random", "tpe")


@dataclass(frozen=True)
class Plan:
    """How to search.

    space      what may be chosen
    trials     of every method, the same for all; None: as many as the largest grid has points
    seeds      of every trial: the first so many of the experiment's (then the numbers after them), None: all of them
    sampler    "grid", "random" or "tpe"; a grid that fits into the budget is tried whole in any case
    validate   the part of every client's training data that is held out to choose by; 0: choose by test data
    prune      stop a trial that is worse than the median of those before it; None: only with random and tpe
    last       how many evaluated rounds the quality is the mean of; None: a tenth of them, at most 100
    seed       of the search itself
    """

    space: Space
    trials: int | None = hyper(default=None, within="[1, inf)")
    seeds: int | None = hyper(default=None, within="[1, inf)")
    sampler: str = "grid"
    validate: float = hyper(default=0.1, within="[0, 1)")
    prune: bool | None = None
    last: int | None = hyper(default=None, within="[1, inf)")
    seed: int = hyper(default=0, within=f"[0, {2**32})")

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise unknown(setting("sampler", sampler=...), str(self.sampler), SAMPLERS)
        for f in fields(self):
            name = setting(f.name, **{f.name: ...})
            check_value("sweep", name, vars(self)[f.name], f.type, f.default, **f.metadata)

    @property
    def pruning(self) -> bool:
        return self.sampler != "grid" if self.prune is None else self.prune

    def seeds_of(self, experiment: Experiment) -> list[int]:
        """The seeds of every trial."""
        given, count = experiment.seeds, self.seeds or len(experiment.seeds)
        return [*given, *range(max(given) + 1, max(given) + 1 + count)][:count]

    def last_of(self, experiment: Experiment) -> int:
        """How many evaluated rounds the quality of a trial is the mean of; the report has the same rule."""
        evaluated = experiment.rounds // experiment.evaluation.every
        return self.last or usual_last(evaluated)


@dataclass(frozen=True)
class MethodSearch:
    """A method's part of a sweep.

    points    what to try in this order, where that is decided; None: a sampler chooses
    has_row   whether the space speaks of the method; if not it has what is common to all
    """

    label: str
    choices: Mapping[str, Candidates]
    trials: int
    points: tuple[dict[str, HyperValue], ...] | None
    has_row: bool


def plan_searches(experiment: Experiment, plan: Plan) -> list[MethodSearch]:
    """The part of every method; all have the same budget, a grid that is smaller leaves the rest of it unspent."""
    chosen = {label: plan.space.choices_of(m) for label, m in experiment.methods.items()}
    for label, choices in chosen.items():
        check_choices(experiment.methods[label].name, choices)
        ranges = [path for path, choice in choices.items() if isinstance(choice, Range)]
        if plan.sampler == "grid" and ranges:
            raise InvalidInput(
                f"space {plan.space.name} has a range for {ranges[0]} of {label}, a grid needs lists: "
                "choose the sampler random or tpe"
            )
    if plan.trials is None and plan.sampler != "grid":
        raise InvalidInput(f"sampler {plan.sampler} needs a number of trials, e.g. trials = 20")
    budget = plan.trials or max(size_of(choices) or 1 for choices in chosen.values())
    return [
        _search(label, choices, budget, plan, plan.space.row_of(experiment.methods[label]))
        for label, choices in chosen.items()
    ]


def _search(
    label: str, choices: Mapping[str, Candidates], budget: int, plan: Plan, row: SpaceRow | None
) -> MethodSearch:
    size = size_of(choices)
    fits = size is not None and size <= budget
    trials = size if size is not None and fits else budget
    if not fits and plan.sampler != "grid":
        return MethodSearch(label, choices, trials, None, row is not None)
    lists = [choice for choice in choices.values() if isinstance(choice, tuple)]
    points = [dict(zip(choices, values, strict=True)) for values in product(*lists)]
    if not fits:  # some of them, none twice
        points = _evenly(points, trials, plan.seed)
    return MethodSearch(label, choices, trials, tuple(points), row is not None)


def _evenly(points: Sequence[dict[str, HyperValue]], count: int, seed: int) -> list[dict[str, HyperValue]]:
    """Some points of a grid, none twice, in which every value of a parameter comes about as often.

    Methods are only compared fairly if they try the same step sizes, so the order of a parameter's values follows from its
    name alone, and the first parameter, the step size, goes through them in that order.

    >>> grid = [{"lr": lr, "beta": beta} for lr in (0.1, 0.3, 1.0) for beta in (0.5, 0.9)]
    >>> [point["lr"] for point in _evenly(grid, 3, seed=0)] == [
    ...     point["lr"] for point in _evenly([{"lr": lr} for lr in (0.1, 0.3, 1.0)], 3, seed=0)
    ... ]
    True
    """
    rank: dict[tuple[str, HyperValue], int] = {}
    for name in points[0]:
        values = list(dict.fromkeys(point[name] for point in points))
        order = np.random.default_rng([seed, crc32(name.encode())]).permutation(len(values))
        rank |= {(name, values[number]): place for place, number in enumerate(order)}
    left, used, chosen = list(points), Counter[tuple[str, HyperValue]](), []
    for _ in range(count):
        point = min(left, key=lambda point: [part for item in point.items() for part in (used[item], rank[item])])
        left.remove(point)
        used.update(point.items())
        chosen.append(point)
    return chosen
