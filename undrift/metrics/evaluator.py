"""Which metrics a run records, and when."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from undrift.core.errors import InvalidInput, MethodFailure, first_line, unknown
from undrift.metrics.registry import METRICS, Metric, Probe
from undrift.problems import Problem
from undrift.problems.protocols import HasMetrics

log = logging.getLogger("undrift")


class Evaluator:
    """The metrics of a run.

    Without `metrics` they are the problem's default ones.  Names of the problem's own ("test", "train", ...) are metrics of
    the model; other names, and functions, look at a `Probe`.
    """

    def __init__(
        self, problem: Problem, metrics: Sequence[str | Metric] | str | None, every: int, last: int
    ):
        self.problem, self.every, self.last = problem, every, last
        self.of_model: list[str] | None = None  # the problem's default ones
        self.of_probe: dict[str, Metric] = {}
        self._left_out: set[str] = set()
        self._evaluated = False
        if metrics is not None:
            self._choose([metrics] if isinstance(metrics, str) or callable(metrics) else metrics)

    def _choose(self, metrics: Sequence[str | Metric]) -> None:
        own = self.problem.metric_names if isinstance(self.problem, HasMetrics) else ("test",)
        self.of_model = []
        for each in metrics:
            if not isinstance(each, str):
                if not callable(each) or isinstance(each, type):
                    raise InvalidInput(
                        f"metrics are names or functions of a ud.Probe, got {each!r}"
                    )
                self.of_probe[_name_of(each)] = each
            elif each in own:
                self.of_model.append(each)
            elif each in METRICS:
                self.of_probe[each] = METRICS[each]
            else:
                raise unknown("metric", each, {*own, *METRICS})

    def is_due(self, t: int) -> bool:
        """Whether round t is evaluated: every so many rounds, and the last."""
        return t % self.every == 0 or t == self.last

    def evaluate_model(self, x: Tensor) -> dict[str, float]:
        """The metrics of a model."""
        if self.of_model is None or not isinstance(self.problem, HasMetrics):
            return self.problem.evaluate(x) if self.of_model != [] else {}
        found: dict[str, float] = {}
        for name in self.of_model:
            found |= self.problem.evaluate_metric(name, x)
        return found

    def evaluate_probe(self, probe: Callable[[], Probe]) -> dict[str, float]:
        """The metrics of a round.

        One that fails in the first evaluated round ends the run; later it is reported once and left out.
        """
        found: dict[str, float] = {}
        if self.of_probe:
            looked_at = probe()
            for name, function in self.of_probe.items():
                if name not in self._left_out:
                    found |= self._call(name, function, looked_at)
        self._evaluated = True
        return found

    def _call(self, name: str, function: Metric, probe: Probe) -> dict[str, float]:
        try:
            return _numbers(name, function(probe))
        except Exception as error:
            what = f"round {probe.round}: metric {name!r} failed: {type(error).__name__}: {first_line(error)}"
            if not self._evaluated:
                raise MethodFailure(what) from error
            log.warning("%s; it is left out from here on", what)
            self._left_out.add(name)
            return {}


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "metric" if name == "<lambda>" else name


def _numbers(name: str, value: Any) -> dict[str, float]:
    """What a metric returned, as numbers by name."""
    each = value if isinstance(value, Mapping) else {name: value}
    try:
        return {str(key): float(number) for key, number in each.items()}
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"a metric returns a number or a dict of numbers, got {type(value).__name__}"
        ) from None
