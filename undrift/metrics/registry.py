"""Metrics by name.  A metric is a function of a `Probe`; those of a model alone are the problem's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from torch import Tensor

from undrift.core.algorithm import Cohort, HasControls
from undrift.core.errors import registering
from undrift.core.work import Solver
from undrift.metrics.gradients import Gradients, gradients_at
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


def metric(name: str) -> Callable[[Metric], Metric]:
    """Register a metric, so that `metrics=("test", name)` and an experiment's `evaluation.metrics` know it.

    It returns a number, which is recorded under the metric's name, or a dict of numbers by name.

    >>> @metric("length-of-step")
    ... def step_length(probe: Probe) -> float:
    ...     return float((probe.x_after - probe.x_before).norm())
    >>> METRICS.pop("length-of-step") is step_length
    True
    """
    return registering("metric", name, METRICS)
