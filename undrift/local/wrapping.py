"""A method with something beside what it keeps or sends: engines, clusters and nodes see a method like any other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from undrift.core.algorithm import ChecksRun, Cohort, DiscountsStaleness, Exchange, MayNeedEqualSteps, Vec
from undrift.core.hyper import Spec, spec_of
from undrift.core.work import Work


@dataclass(frozen=True)
class Wrapped:
    """A method that runs another one."""

    method: Any

    @property
    def spec(self) -> Spec:
        return spec_of(self.method)

    @property
    def equal_steps(self) -> bool:
        return self.method.equal_steps if isinstance(self.method, MayNeedEqualSteps) else self.spec.equal_steps

    def check(self, N: int, rounds: int) -> None:
        if isinstance(self.method, ChecksRun):
            self.method.check(N, rounds)

    def discount(self, staleness: Tensor) -> Tensor:
        if isinstance(self.method, DiscountsStaleness):
            return self.method.discount(staleness)
        return torch.ones_like(staleness)

    def server(self, x: Vec) -> Any:
        return self.method.server(x)

    def client(self, x: Vec) -> Any:
        return self.method.client(x)

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        raise NotImplementedError

    # the usual exchange, for those who look at a method's five functions

    def send(self, server: Any) -> Any:
        return self.exchanges(1)[-1].send(server)

    def local(self, down: Any, client: Any, work: Work) -> tuple[Any, Any]:
        return self.exchanges(1)[-1].local(down, client, work)

    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        return self.exchanges(1)[-1].update(server, mean, cohort)


def settle_own(settle: Callable[..., Any], client: Any, missed: Any) -> Any:
    """`Exchange.settle` of the method's for a client that keeps something beside the method's state."""
    return replace(client, own=settle(client.own, missed))


def layers_of(algorithm: Any) -> Iterator[Any]:
    """A method and those that it wraps, down to the method itself."""
    yield algorithm
    while isinstance(algorithm, Wrapped):
        algorithm = algorithm.method
        yield algorithm


def method_of(algorithm: Any) -> Any:
    """The method itself, whether it is wrapped or not."""
    return list(layers_of(algorithm))[-1]
