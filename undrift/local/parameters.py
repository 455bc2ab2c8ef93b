"""Parameters that clients keep to themselves: a head (FedPer, Arivazhagan et al. 2019), BatchNorm layers (FedBN, Li et al. 2021).

The method sees the shared parameters alone: its vectors, its messages and their bytes are of these.  The others lie beside
what a client keeps, are completed to a whole model in `Work`, and take a step whenever the method takes a local one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from undrift.core.algorithm import Algorithm, Cohort, Exchange, Recounts, Vec, exchanges_of
from undrift.core.records import Beside, record
from undrift.core.work import Work
from undrift.local.wrapping import Wrapped, layers_of, settle_own


@runtime_checkable
class HasLocalParameters(Protocol):
    """Has a model of which some parameters may be clients' own.

    Wherever it takes a vector of the shared ones, like x0, it also takes one of all, the client's own at its end.
    """

    @property
    def local_x0(self) -> Tensor | None:
        """Where clients' own parameters start, None if there are none."""
        ...


@record
class WithParameters(Beside):
    """A client's state of the method's, and the parameters that are its own."""

    own: Any
    local_parameters: Tensor


@dataclass(frozen=True)
class LocalWithParameters:
    """A visit in which the client's own parameters are trained, too."""

    local: Callable[..., Any]

    def __call__(self, down: Any, client: WithParameters, work: Work) -> tuple[Any, WithParameters]:
        work.own_parameters = client.local_parameters
        up, own = self.local(down, client.own, work)
        return up, WithParameters(own, work.own_parameters)


@dataclass(frozen=True)
class WithLocalParameters(Wrapped):
    """A method whose clients have parameters of their own, which begin with `initial`."""

    initial: Tensor

    def client(self, x: Vec) -> WithParameters:
        return WithParameters(self.method.client(x), self.initial)

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        return tuple(
            replace(e, local=LocalWithParameters(e.local), settle=e.settle and partial(settle_own, e.settle))
            for e in exchanges_of(self.method, t)
        )


@dataclass(frozen=True)
class RecountsWithLocalParameters(WithLocalParameters):
    """The same for a method whose server keeps the sum of all clients' states."""

    def recount(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return self.method.recount(server, mean, cohort)  # of states without what stays with clients


def initial_of(problem: Any) -> Tensor | None:
    """Where clients' own parameters start on a problem, None if there are none."""
    return problem.local_x0 if isinstance(problem, HasLocalParameters) else None


def with_local_parameters(algorithm: Algorithm, problem: Any) -> Algorithm:
    """The method as it is run on a problem: wrapped, if some parameters of its model are clients' own."""
    initial = initial_of(problem)
    if initial is None or any(isinstance(each, WithLocalParameters) for each in layers_of(algorithm)):
        return algorithm
    wrap = RecountsWithLocalParameters if isinstance(algorithm, Recounts) else WithLocalParameters
    return wrap(algorithm, initial)


def whole_model(x: Tensor, client: Any, problem: Any) -> Tensor:
    """The shared parameters with a client's own, a row each if both have rows; x itself if there are none of its own."""
    if initial_of(problem) is None:
        return x
    return torch.cat([x, client.local_parameters], -1)


def without_parameters(client: Any) -> Any:
    """A client's state without the parameters of its own, which never leave it."""
    if isinstance(client, WithParameters):
        return client.own
    if not isinstance(client, Beside):
        return client
    beside: Any = client  # a record, which its base is not
    return replace(beside, own=without_parameters(beside.own))
