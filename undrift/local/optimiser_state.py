"""Client optimisers whose state outlives a visit: kept by the client, or averaged by the server.

A method is wrapped: what its clients keep, or its messages and its server hold, has the optimiser's state beside it.  Engines,
clusters and nodes see a method like any other, and the bytes of a state that travels are counted as all others are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from undrift.core.algorithm import Algorithm, Cohort, Exchange, Recounts, Vec, exchanges_of
from undrift.core.optimiser import Optimiser
from undrift.core.records import Beside, record
from undrift.core.work import Work
from undrift.local.settings import Local
from undrift.local.wrapping import Wrapped, layers_of, settle_own


@record
class WithState(Beside):
    """A record of the method's, and the optimiser's state."""

    own: Any
    optimiser: Any


@record
class ServerWithState(Beside):
    x: Vec
    own: Any
    optimiser: Any


@dataclass(frozen=True)
class LocalWithOptimiser:
    """A visit in which the optimiser goes on from a state of earlier visits."""

    local: Callable[..., Any]
    between: str

    def __call__(self, down: Any, client: Any, work: Work) -> tuple[Any, Any]:
        if self.between == "keep":
            work.carried = client.optimiser
            up, own = self.local(down, client.own, work)
            return up, WithState(own, work.carried)
        work.carried = down.optimiser
        up, client = self.local(down.own, client, work)
        return WithState(up, work.carried), client


@dataclass(frozen=True)
class WithOptimiserState(Wrapped):
    """A method whose client optimiser has a state between visits."""

    optimiser: Optimiser
    between: str  # "keep" or "average"

    def server(self, x: Vec) -> Any:
        own = self.method.server(x)
        return own if self.between == "keep" else ServerWithState(x, own, self.optimiser.init(x))

    def client(self, x: Vec) -> Any:
        own = self.method.client(x)
        return WithState(own, self.optimiser.init(x)) if self.between == "keep" else own

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        return tuple(self._exchange(each) for each in exchanges_of(self.method, t))

    def _exchange(self, own: Exchange) -> Exchange:
        local, settle = LocalWithOptimiser(own.local, self.between), own.settle
        if self.between == "keep":
            return replace(own, local=local, settle=settle and partial(settle_own, settle))
        if own.to == "everyone":  # who make no steps yet
            return replace(own, send=partial(send_own, own.send), update=partial(update_own, own.update))
        return replace(
            own,
            send=partial(send_both, own.send),
            local=local,
            update=partial(update_both, own.update),
            settle=settle and partial(settle_sent, settle),
        )


@dataclass(frozen=True)
class RecountsWithOptimiserState(WithOptimiserState):
    """The same for a method whose server keeps the sum of all clients' states."""

    def recount(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        if self.between == "keep":
            return self.method.recount(server, mean.own, cohort)
        own = self.method.recount(server.own, mean, cohort)
        return ServerWithState(own.x, own, server.optimiser)


# an exchange of the method's, with the optimiser's state beside what it keeps or sends


def settle_sent(settle: Callable[..., Any], client: Any, missed: WithState) -> Any:
    return settle(client, missed.own)


def send_own(send: Callable[..., Any], server: ServerWithState) -> Any:
    return send(server.own)


def send_both(send: Callable[..., Any], server: ServerWithState) -> WithState:
    return WithState(send(server.own), server.optimiser)


def update_own(update: Callable[..., Any], server: ServerWithState, mean: Any, cohort: Cohort) -> ServerWithState:
    new = update(server.own, mean, cohort)
    return ServerWithState(new.x, new, server.optimiser)


def update_both(
    update: Callable[..., Any], server: ServerWithState, mean: WithState, cohort: Cohort
) -> ServerWithState:
    new = update(server.own, mean.own, cohort)
    return ServerWithState(new.x, new, mean.optimiser)


def with_optimiser_state(algorithm: Algorithm, local: Local) -> Algorithm:
    """The method as it is run with the client optimiser of `local`: wrapped, if that has a state between visits.

    >>> import torch
    >>> import undrift as ud
    >>> with_optimiser_state(ud.FedAvg(), Local(optimiser="momentum", optimiser_state="keep")).client(torch.zeros(2))
    WithState(own=None, optimiser=tensor([0., 0.]))
    """
    if local.optimiser_state == "reset" or any(isinstance(each, WithOptimiserState) for each in layers_of(algorithm)):
        return algorithm
    optimiser = local.client_optimiser
    assert optimiser is not None, "refused by Local"
    wrap = RecountsWithOptimiserState if isinstance(algorithm, Recounts) else WithOptimiserState
    return wrap(algorithm, optimiser, local.optimiser_state)
