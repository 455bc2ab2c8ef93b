"""Metrics by name.  A metric is a function of a `Probe`; those of a model alone are the problem's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar, overload

from torch import Tensor

from undrift.core.algorithm import Cohort, HasControls
from undrift.core.errors import InvalidInput, registering
from undrift.core.work import Solver
from undrift.metrics.gradients import Gradients, gradients_at
from undrift.metrics.quality import say_which_is_better
from undrift.problems import Problem


@dataclass(frozen=True)
class Probe:
    """What a metric may look at after a round.

    round                the round that has just ended
    x_before, x_after    the server's model before and after it
    server               the server's whole state after it, with whatever the method keeps there
    cohort               whose updates the last server step used; None if the server did not step
    clients              client states after the round: `clients.gather([0, 3])` has a row for each of these clients
    problem              what is minimised: `problem.full_grad(x, [i])`, `problem.weights`, ...
    algorithm, solver    the method, and the local solver of the round
    drift                of the cohort's local models, where the metric "drift" is asked for
    pseudo_gradients     of the last rounds, oldest first, and that of all clients at x_before: where "tau_error" is
    """

    round: int
    x_before: Tensor
    x_after: Tensor
    server: Any
    cohort: Cohort | None
    clients: Any
    problem: Problem
    algorithm: Any
    solver: Solver
    drift: float | None = None
    pseudo_gradients: tuple[Tensor, ...] = ()
    pseudo_gradient_of_all: Tensor | None = None

    @cached_property
    def gradients(self) -> Gradients:
        """The gradients of all clients at x_before, and the errors of their control variates if they keep any."""
        algorithm, clients = self.algorithm, self.clients
        controls = None
        if isinstance(algorithm, HasControls):
            controls = lambda who: algorithm.control(clients.gather(who))
        return gradients_at(self.x_before, self.problem, self.solver.weight_decay, controls)


Metric: TypeAlias = Callable[[Probe], float | Mapping[str, float]]

METRICS: dict[str, Metric] = {}


MetricT = TypeVar("MetricT", bound=Metric)
Better: TypeAlias = bool | Mapping[str, bool]


@overload
def metric(name: MetricT) -> MetricT: ...
@overload
def metric(name: str | None = None, *, higher: Better | None = None) -> Callable[[MetricT], MetricT]: ...
def metric(name: Any = None, *, higher: Better | None = None) -> Any:
    """Register a metric, so that `metrics=("test", name)` and an experiment's `evaluation.metrics` know it.

    It returns a number, which is recorded under the metric's name (that of the function, if none is given), or a dict of
    numbers by name.

    higher   whether more is better, for reports: True or False, of a dict by name; without it nothing is ranked

    >>> @metric("length-of-step", higher=False)
    ... def step_length(probe: Probe) -> float:
    ...     return float((probe.x_after - probe.x_before).norm())
    >>> METRICS.pop("length-of-step") is step_length
    True
    """
    each = list(higher.values()) if isinstance(higher, Mapping) else [higher]
    if not all(isinstance(one, bool) or (one is None and one is higher) for one in each):
        raise InvalidInput(f"metric {name!r}: higher is True, False or a dict of them by recorded name, got {higher!r}")
    register = registering("metric", name, METRICS, as_written=True)
    if higher is None:
        return register

    def register_and_say(function: MetricT) -> MetricT:
        made = register(function)
        names = [each for each in (name, getattr(function, "__name__", None)) if each is not None]
        say_which_is_better(higher if isinstance(higher, Mapping) else dict.fromkeys(names, higher))
        return made

    return register_and_say
