"""What was chosen, put into an experiment; and whether it could be chosen better outside the space."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.toml import from_dict, to_dict
from undrift.experiments.sweeps.plan import MethodSearch
from undrift.experiments.sweeps.space import UNDAMPENED, Candidates, HyperValue, Range

NEAR = 0.02  # of a range: as good as its end


def method_words(experiment: Experiment, label: str, chosen: Mapping[str, HyperValue]) -> dict[str, Any]:
    """The words of [algorithms.LABEL] with what was chosen in place of what the experiment says."""
    method = experiment.methods[label]
    words, local = {"name": method.name, **method.parameters}, dict(method.local)
    for path, value in chosen.items():
        if path.startswith("local."):
            local[path.removeprefix("local.")] = value
        elif path != UNDAMPENED:
            whole, _, part = path.partition(".")  # schedule.eta is a parameter of a method's part
            words[whole] = {**words.get(whole, {}), part: value} if part else value
    if UNDAMPENED in chosen:
        made = with_methods(experiment, {label: words}).methods[label].make()
        local["lr"] = float(chosen[UNDAMPENED]) / (1 - made.beta)
    if local:
        words["local"] = local
    if "server_lr" in chosen:
        words.pop("gamma", None)  # the experiment's, if any: a method takes one of them
    return words


def with_methods(experiment: Experiment, methods: Mapping[str, Mapping[str, Any]]) -> Experiment:
    """The experiment with these methods, by label, in place of its own."""
    words = to_dict(experiment)
    words.pop("algorithm", None)
    if experiment.baseline not in methods:
        words.pop("baseline", None)
    words["algorithms"] = {label: dict(method) for label, method in methods.items()}
    return from_dict(words)


def check_values(experiment: Experiment, search: MethodSearch) -> Experiment:
    """Try every value once, so that none is refused in the midst of a sweep; returns the first one's experiment."""
    values = {
        path: (choice.low, choice.high) if isinstance(choice, Range) else choice
        for path, choice in search.choices.items()
    }
    first = {path: each[0] for path, each in values.items()}
    for path, each in values.items():
        for value in each:
            with_chosen(experiment, search.label, {**first, path: value})
    return with_chosen(experiment, search.label, first)


def with_chosen(experiment: Experiment, label: str, chosen: Mapping[str, HyperValue]) -> Experiment:
    """The experiment with one method, with what was chosen."""
    return with_methods(experiment, {label: method_words(experiment, label, chosen)})


def edges(experiment: Experiment, search: MethodSearch, chosen: Mapping[str, HyperValue]) -> Iterator[str]:
    """What was best at the edge of its values, although the method allows more."""
    for path, choice in search.choices.items():
        beyond = _beyond(choice, chosen[path])
        if beyond is None:
            continue
        try:
            with_chosen(experiment, search.label, {**chosen, path: beyond})
        except InvalidInput:
            continue  # nothing is beyond
        low, high = _ends(choice)
        yield f"{path} = {chosen[path]:g} is at the edge of its values ({low:g} to {high:g}): widen them"


def _beyond(choice: Candidates, value: HyperValue) -> HyperValue | None:
    """A value a little outside, if this one is the first or last of several numbers."""
    if isinstance(value, bool | str):
        return None
    if isinstance(choice, Range):
        scale = math.log if choice.log else float
        low, high = scale(choice.low), scale(choice.high)
        place = (scale(value) - low) / (high - low)
        side = -1 if place <= NEAR else 1 if place >= 1 - NEAR else 0
        value = choice.low if side < 0 else choice.high
    else:
        low, high = _ends(choice)
        side = 0 if low == high else -1 if value == low else 1 if value == high else 0
    if side == 0:
        return None
    return value + side if isinstance(value, int) else value + side * 1e-6 * max(abs(value), 1e-3)


def _ends(choice: Candidates) -> tuple[float, float]:
    if isinstance(choice, Range):
        return choice.low, choice.high
    numbers = [v for v in choice if not isinstance(v, bool | str)]
    return min(numbers), max(numbers)
