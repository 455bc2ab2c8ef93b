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
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

from undrift.core.errors import unknown
from undrift.core.work import Work

Vec: TypeAlias = Tensor  # [D], or [S, D] for a cohort
Col: TypeAlias = Tensor  # one number a client: [1], or [S, 1] for a cohort


@dataclass(frozen=True)
class Cohort:
    """Who took part in one exchange, as the server knows it.

    `weights` are those of the mean (they sum to one); `share` is the part of the whole population's weight that took
    part, S/N when all clients weigh the same; `staleness` is the age, in rounds, of the model that each client worked
    on; `lr` and `K` are the round's local step size and the (weighted) mean number of local steps.
    """

    round: int
    S: int
    N: int
    share: float
    weights: Tensor
    staleness: Tensor
    lr: float
    K: float


@dataclass(frozen=True)
class Exchange:
    """One crossing of the wire: the server sends, clients work, the server updates on the mean.

    Most methods have one exchange a round, with the round's cohort.  Some have more: `to="everyone"` reaches all clients
    (a first contact that fills their states), `to="one"` a single client of the cohort, drawn uniformly.
    """

    send: Callable[[Any], Any]
    local: Callable[[Any, Any, Work], tuple[Any, Any]]
    update: Callable[[Any, Any, Cohort], Any]
    to: Literal["cohort", "everyone", "one"] = "cohort"

    def __post_init__(self) -> None:
        if self.to not in ("cohort", "everyone", "one"):
            raise unknown("recipient", self.to, ("cohort", "everyone", "one"))


class Algorithm(Protocol):
    """A federated method.

    Optional besides: `exchanges(t)`, where a round is not one exchange with the cohort (see `exchanges_of`);
    `check(N, rounds)`, which raises InvalidInput for what the method cannot do; `spec`, which `@ud.algorithm` adds;
    `recount(server, mean, cohort)`, where the server keeps the sum of all clients' states: the same server with that sum
    made anew from the mean state of those in the cohort, all others being as `client(x)` makes them.
    """

    def server(self, x: Vec) -> Any: ...
    def client(self, x: Vec) -> Any: ...
    def send(self, server: Any) -> Any: ...
    def local(self, down: Any, client: Any, work: Work) -> tuple[Any, Any]: ...
    def update(self, server: Any, mean: Any, cohort: Cohort) -> Any: ...


def usual(algorithm: Algorithm) -> Exchange:
    """The one exchange of an ordinary round.

    >>> import undrift as ud
    >>> usual(ud.FedAvg()).to
    'cohort'
    """
    return Exchange(algorithm.send, algorithm.local, algorithm.update)


def exchanges_of(algorithm: Algorithm, t: int) -> tuple[Exchange, ...]:
    """The exchanges of round t = 1, 2, ...; t = 0 is the first contact, before any round.

    A method that needs another rhythm than `usual` defines `exchanges(t)`.

    >>> import undrift as ud
    >>> len(exchanges_of(ud.FedAvg(), 0)), len(exchanges_of(ud.FedAvg(), 1))
    (0, 1)
    """
    own = getattr(algorithm, "exchanges", None)
    if own is not None:
        return own(t)
    return (usual(algorithm),) if t > 0 else ()
