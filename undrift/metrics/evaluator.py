"""Which metrics a run records, and when."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from torch import Tensor

from undrift.core.errors import InvalidInput, first_line, unknown
from undrift.core.observe import Observing
from undrift.core.optimiser import Optimiser
from undrift.core.records import map_leaves
from undrift.data.trees import leaves
from undrift.metrics.registry import METRICS, Metric, Probe
from undrift.metrics.theory import Run, check_metric, find_metric, window_of
from undrift.problems import Problem
from undrift.problems.model import ModelProblem
from undrift.problems.protocols import HasMetrics

log = logging.getLogger("undrift")

OWN = (  # what every recorded round has besides its metrics
    "round",
    "participants",
    "clients",
    "left_out",
    "exchanges",
    "bytes_down",
    "bytes_up",
    "seconds",
    "virtual_seconds",
    "timing",
)


COPIED = ("x_before", "x_after", "server", "cohort", "pseudo_gradients", "pseudo_gradient_of_all")  # of a probe


class WritesIntoRun(Exception):
    """A metric has changed what it was to look at."""


class Evaluator:
    """The metrics of a run.

    Without `metrics` they are the problem's default ones.  Names of the problem's own ("test", "train", ...) are metrics of
    the model; other names, and functions, look at a `Probe`.
    """

    def __init__(self, problem: Problem, metrics: Sequence[str | Metric] | str | None, every: int, last: int):
        self.problem, self.every, self.last = problem, every, last
        self.of_model: list[str] | None = None  # the problem's default ones
        self.of_probe: dict[str, Metric] = {}
        self._named: list[str] = []  # those of the registry
        self._left_out: set[str] = set()
        self._recorded: set[str] = set()  # by metrics of the model
        if metrics is None and isinstance(problem, ModelProblem) and problem.local_x0 is not None:
            metrics = tuple(dict.fromkeys((*problem.default_metrics, "clients")))
        if metrics is not None:
            self._choose([metrics] if isinstance(metrics, str) or callable(metrics) else metrics)

    @property
    def first(self) -> int:
        """The first evaluated round of a run, also of one that is resumed after it."""
        return min(self.every, self.last)

    def _choose(self, metrics: Sequence[str | Metric]) -> None:
        if not isinstance(metrics, Iterable):
            raise InvalidInput(f"metrics are names or functions of a ud.Probe, one or a list of them, got {metrics!r}")
        own = self.problem.metric_names if isinstance(self.problem, HasMetrics) else ("test",)
        self.of_model = []
        for each in metrics:
            if not isinstance(each, str):
                if not callable(each) or isinstance(each, type):
                    raise InvalidInput(f"metrics are names or functions of a ud.Probe, got {each!r}")
                self._add(_name_of(each), each)
            elif each in own:
                self.of_model.append(each)
            elif (known := find_metric(each)) is not None:
                self._add(each, known)
                self._named.append(each)
            else:
                raise unknown("metric", each, {*own, *METRICS})

    def _add(self, name: str, function: Metric) -> None:
        if self.of_probe.setdefault(name, function) is not function:
            raise InvalidInput(
                f"two metrics are called {name!r}: functions are recorded under their names, so give them different ones"
            )

    def check(self, algorithm: Any, optimiser: Optimiser | None) -> None:
        """Refuse metrics that a run cannot give."""
        for name in self._named:
            check_metric(name, Run(algorithm, self.problem, self.last, optimiser))

    def observing(self, algorithm: Any) -> Observing | None:
        """What its metrics need to see of local loops."""
        drift, window = "drift" in self._named, max((window_of(n, algorithm) or 0 for n in self._named), default=0)
        return Observing(self.every, self.last, drift, window) if drift or window else None

    def is_due(self, t: int) -> bool:
        """Whether round t is evaluated: every so many rounds, and the last."""
        return t % self.every == 0 or t == self.last

    def evaluate_model(self, x: Tensor) -> dict[str, float]:
        """The metrics of a model."""
        found: dict[str, float] = {}
        if self.of_model is None or not isinstance(self.problem, HasMetrics):
            found = self.problem.evaluate(x) if self.of_model != [] else {}
        else:
            for name in self.of_model:
                found |= self.problem.evaluate_metric(name, x)
        self.note_recorded(found)
        return found

    def note_recorded(self, found: Iterable[str]) -> None:
        """These are recorded of the model, so no other metric may have their names."""
        self._recorded = {*found}

    def evaluate_probe(self, probe: Callable[[], Probe]) -> dict[str, float]:
        """The metrics of a round.

        One that fails in the first evaluated round ends the run; later it is reported once and left out.
        """
        found: dict[str, float] = {}
        if self.of_probe:
            looked_at = probe()
            for name, function in self.of_probe.items():
                if name not in self._left_out:
                    found |= self._call(name, function, looked_at, found)
        return found

    def _call(self, name: str, function: Metric, probe: Probe, others: Mapping[str, float]) -> dict[str, float]:
        try:
            found = _numbers(name, function(probe) if _is_builtin(function) else _on_copies(function, probe))
            for key in found:
                if key in others or key in self._recorded or key in OWN:
                    raise ValueError(f"{key!r} is recorded already: choose another name")
            return found
        except Exception as error:
            what = f"round {probe.round}: metric {name!r} failed: {type(error).__name__}: {first_line(error)}"
            if probe.round == self.first or isinstance(error, WritesIntoRun):
                raise InvalidInput(f"{what}; fix it or leave it out of metrics") from error
            log.warning("%s; it is left out from here on", what)
            self._left_out.add(name)
            return {}


def _is_builtin(function: Any) -> bool:
    """Whether a metric is the package's own, which writes nowhere."""
    whole = function.func if isinstance(function, partial) else function
    return type(whole) is FunctionType and whole.__module__.partition(".")[0] == "undrift"


def _on_copies(function: Metric, probe: Probe) -> Any:
    """What a user's function says of a probe whose vectors are copies: writing into them changes no trajectory.

    The samples and where the problem starts are not copied, but looked at.
    """
    problem = probe.problem
    shown = [problem.x0]
    if isinstance(problem, ModelProblem):
        tested = () if problem.test is None else problem.test
        shown += [*problem.resident(), *(t for part in tested for t in leaves(part))]
    versions = [t._version for t in shown]
    copied = {name: map_leaves(_copied, vars(probe)[name]) for name in COPIED}
    found = function(replace(probe, **copied))
    if versions != [t._version for t in shown]:
        raise WritesIntoRun("it writes into the problem's tensors, and so into the run: let it work on clones")
    return found


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "metric" if name == "<lambda>" else name


def _numbers(name: str, value: Any) -> dict[str, float]:
    """What a metric returned, as numbers by name."""
    each = value if isinstance(value, Mapping) else {name: value}
    return {str(key): _number(number) for key, number in each.items()}


def _number(value: Any) -> float:
    got = type(value).__name__
    if isinstance(value, Tensor | np.ndarray):
        got = f"{got} of shape {list(value.shape)}"
        value = value.item() if math.prod(value.shape) == 1 else None
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        raise TypeError(f"a metric returns a number or a dict of numbers, got {got}") from None
