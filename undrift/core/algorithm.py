"""What a method is: five pure functions over flat vectors, with all state and all traffic explicit.  Read this first.

    server(x)                       -> Server           what the server starts with; its field x is the model
    client(x)                       -> Client | None    what a client remembers between visits
    send(server)                    -> Down             what travels to a client
    local(down, client, work)       -> Up, Client       one visit of one client
    update(server, mean_up, cohort) -> Server           one step of the server, which sees only the mean of the Ups

The round is split where bytes travel, so one object runs in every engine and its traffic is counted from its records.
Vectors are `[D]` with one client and `[S, D]` when a cohort is computed at once; numbers that differ by client (a number
of steps, say) are columns, `[1]` or `[S, 1]`.  The algebra is the same, so a method does not know which it runs in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from undrift.core.batched_scalar import NotBatchable
from undrift.core.errors import unknown
from undrift.core.records import rebuild, tensors
from undrift.core.rng import Distribution, Key, Purpose, draw_numbers
from undrift.core.work import Ones, Solver, Work

Vec: TypeAlias = Tensor  # [D], or [S, D] for a cohort
Col: TypeAlias = Tensor  # one number a client: [1], or [S, 1] for a cohort


@dataclass(frozen=True)
class Cohort:
    """Who took part in one exchange, as the server knows it.

    `weights` are those of the mean (they sum to one); `share` is the part of the whole population's weight that took
    part, S/N when all clients weigh the same; `staleness` is the age, in rounds, of the model that each client worked
    on; `lr` and `K` are the round's local step size and the (weighted) mean number of local steps; `steps` are those of
    each client.
    """

    round: int
    S: int
    N: int
    share: float
    weights: Tensor
    staleness: Tensor
    lr: float
    K: float
    key: Key | None = None
    steps: Tensor | None = None

    def random(self, like: Vec, distribution: Distribution = "normal", call: int = 0) -> Vec:
        """Random numbers of the shape of `like` for the server's step: standard normal, or "uniform" in [0, 1).

        They are keyed by seed, round and exchange; `call` tells several draws of one step apart.
        """
        if self.key is None:
            raise NotBatchable("it draws random numbers on the server, each run its own")
        rows = like.unsqueeze(0)
        return draw_numbers(Purpose.SERVER, [self.key], [0], call, rows, distribution)[0]


class Wire(Protocol):
    """What happens to an Up between a client and the server's sum: see `undrift.codecs`."""

    def client(self, own: Any) -> Any:
        """The state of a client that has not been visited yet: the method's own, and what the wire needs beside it."""
        ...

    def client_of(self, state: Any) -> Any:
        """The method's own part of a client's state."""
        ...

    def encode(self, up: Any, state: Any, work: Work) -> tuple[Any, Any]:
        """The payload that travels, and what the wire keeps of it for the client's next visit."""
        ...

    def keep(self, own: Any, kept: Any) -> Any:
        """The client's new state, of the method's own part and of what the wire keeps."""
        ...

    def decode(self, payload: Any) -> Any:
        """The Up that the server adds up."""
        ...


@dataclass(frozen=True)
class Exchange:
    """One crossing of the wire: the server sends, clients work, the server updates on the mean.

    Most methods have one exchange per round, with the round's cohort.  Some have more: `to="everyone"` reaches all
    clients (an initialisation round that fills their states), `to="one"` a single client of the cohort, drawn uniformly.

    Where the server keeps the sum of clients' states, both must agree on what was sent, whatever the wire makes of it:
    `settle(client, missed)` is the client's new state if what arrived is its Up plus `missed`.
    """

    send: Callable[[Any], Any]
    local: Callable[[Any, Any, Work], tuple[Any, Any]]
    update: Callable[[Any, Any, Cohort], Any]
    to: Literal["cohort", "everyone", "one"] = "cohort"
    settle: Callable[[Any, Any], Any] | None = None
    wire: Wire | None = None

    def __post_init__(self) -> None:
        if self.to not in ("cohort", "everyone", "one"):
            raise unknown("recipient", self.to, ("cohort", "everyone", "one"))

    def visit(self, down: Any, state: Any, work: Work) -> tuple[Any, Any]:
        """One visit: what travels to the server, and the client's new state."""
        if self.wire is None:
            return self.local(down, state, work)
        up, client = self.local(down, self.wire.client_of(state), work)
        return self.pack(up, client, state, work)

    def pack(self, up: Any, client: Any, state: Any, work: Work) -> tuple[Any, Any]:
        """What of a visit travels, and the client's new state, of which `client` is the method's part."""
        assert self.wire is not None
        payload, kept = self.wire.encode(up, state, work)
        if self.settle is not None:
            arrived = zip(tensors(self.wire.decode(payload)), tensors(up), strict=True)
            client = self.settle(client, rebuild(up, iter([a - sent for a, sent in arrived])))
        return payload, self.wire.keep(client, kept)


class Algorithm(Protocol):
    """A federated method.  What else it may have is in the protocols below; `@ud.algorithm` adds `spec`."""

    def server(self, x: Vec) -> Any: ...
    def client(self, x: Vec) -> Any: ...
    def send(self, server: Any) -> Any: ...
    def local(self, down: Any, client: Any, work: Work) -> tuple[Any, Any]: ...
    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any: ...


@runtime_checkable
class HasExchanges(Protocol):
    """A method whose rounds are not one exchange with the cohort; t = 0 is the initialisation round."""

    def exchanges(self, t: int) -> tuple[Exchange, ...]: ...


@runtime_checkable
class ChecksRun(Protocol):
    """A method that raises InvalidInput for runs that it is not defined for."""

    def check(self, N: int, rounds: int) -> None: ...


@runtime_checkable
class DependsOnRun(Protocol):
    """A method with a hyper-parameter that follows from the run: its number of rounds, or of clients in all and a round."""

    def for_run(self, N: int, S: int, rounds: int) -> "Algorithm":
        """The method with that hyper-parameter filled in."""
        ...


@runtime_checkable
class MayNeedEqualSteps(Protocol):
    """A method that needs equal numbers of steps with some of its hyper-parameters."""

    @property
    def equal_steps(self) -> bool: ...


@runtime_checkable
class Settles(Protocol):
    """A method whose clients must know what has arrived of what they sent: see `Exchange`."""

    def settle(self, client: Any, missed: Any) -> Any: ...


@runtime_checkable
class MayNormalise(Protocol):
    """A method that divides updates by numbers of steps with some of its hyper-parameters."""

    @property
    def normalises(self) -> bool: ...


@runtime_checkable
class HasSolver(Protocol):
    """A method whose local steps have more in them than gradients, such as a proximal term, and are linear in these."""

    def solve(self, work: Work, x: Vec) -> Vec:
        """y after the local steps from x."""
        ...


@runtime_checkable
class Recounts(Protocol):
    """A method whose server keeps the sum of all clients' states and can rebuild it, where clients may lose theirs."""

    def recount(self, server: Any, mean: Any, cohort: Cohort) -> Any:
        """The same server with that sum made from the mean state of the cohort, others being as `client(x)` makes them."""
        ...


@runtime_checkable
class HasDirection(Protocol):
    """A method whose server forms a direction g that estimates the gradient of f at the model the round began with."""

    def direction(self, server: Any) -> Vec:
        """That of the last round."""
        ...


@runtime_checkable
class HasControls(Protocol):
    """A method whose clients keep control variates c_i that estimate their own gradients."""

    def control(self, client: Any) -> Vec:
        """c_i, a row for each client as in its state."""
        ...


@runtime_checkable
class AveragesRounds(Protocol):
    """A method whose momentum is a mean over the last tau rounds."""

    @property
    def averaged_rounds(self) -> int: ...


@runtime_checkable
class DiscountsStaleness(Protocol):
    """A method in which stale updates count less."""

    def discount(self, staleness: Tensor) -> Tensor:
        """The factor of each update."""
        ...


def usual(algorithm: Algorithm) -> Exchange:
    """The one exchange of an ordinary round.

    >>> import undrift as ud
    >>> usual(ud.FedAvg()).to
    'cohort'
    """
    settle = getattr(algorithm, "settle", None)  # an isinstance of Settles takes longer than a round may
    return Exchange(algorithm.send, algorithm.local, algorithm.update, settle=settle)


def exchanges_of(algorithm: Algorithm, t: int) -> tuple[Exchange, ...]:
    """The exchanges of round t = 1, 2, ...; t = 0 is the initialisation round, before any other.

    >>> import undrift as ud
    >>> len(exchanges_of(ud.FedAvg(), 0)), len(exchanges_of(ud.FedAvg(), 1))
    (0, 1)
    """
    own = getattr(algorithm, "exchanges", None)  # an isinstance of HasExchanges takes longer than a round may
    if own is not None:
        return own(t)
    return (usual(algorithm),) if t > 0 else ()


def trial_up(exchange: Exchange, algorithm: Algorithm, x: Vec, server: Any = None) -> Any:
    """What a client sends in this exchange, to a new server or this one: all gradients are ones, no data are touched.

    >>> import torch, undrift as ud
    >>> trial_up(usual(ud.FedAvg()), ud.FedAvg(), torch.zeros(2))
    Up(delta=tensor([1., 1.]))
    """
    problem: Any = Ones(x)
    work = Work(problem, Solver(lr=1.0), [0], [1], Key(0, 1), single=True)
    down = exchange.send(algorithm.server(x) if server is None else server)
    up, _ = exchange.local(down, algorithm.client(x), work)
    return up
