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
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, dataclass_transform

from torch import Tensor

from undrift.errors import unknown
from undrift.work import Work

Vec: TypeAlias = Tensor  # [D], or [S, D] for a cohort
Col: TypeAlias = Tensor  # one number a client: [1], or [S, 1] for a cohort

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A state or a message: a frozen dataclass of tensors (or tuples of them, or None).

    >>> import torch
    >>> @record
    ... class Down:
    ...     x: Vec
    >>> Down(torch.zeros(3)).x
    tensor([0., 0., 0.])
    """
    return dataclass(frozen=True, slots=True)(cls)


def tensors(message: Any) -> list[Tensor]:
    """Every tensor in a record, in the order of its fields.

    >>> import torch
    >>> tensors((torch.zeros(2), None, (torch.ones(1),)))
    [tensor([0., 0.]), tensor([1.])]
    """
    found: list[Tensor] = []
    _collect(message, found)
    return found


def _collect(message: Any, found: list[Tensor]) -> None:
    if isinstance(message, Tensor):
        found.append(message)
        return
    if message is None:
        return
    names = _names(type(message))
    if names is not None:
        for name in names:
            _collect(getattr(message, name), found)
        return
    if isinstance(message, tuple):
        for part in message:
            _collect(part, found)
        return
    raise TypeError(
        f"records hold tensors, tuples of them or None, got {type(message).__name__}: "
        "a number that travels belongs in a tensor, so that its bytes are counted"
    )


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """The fields of a record; looked up once, for records are taken apart several times a round."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None


def check_records(*messages: Any) -> None:
    """Raise TypeError for a record that holds something else than tensors."""
    for message in messages:
        tensors(message)


def map_tensors(f: Callable[[Tensor], Tensor], message: T) -> T:
    """The same record with f applied to every tensor in it.

    >>> import torch
    >>> map_tensors(lambda t: t + 1, (torch.zeros(2), None))
    (tensor([1., 1.]), None)
    """
    replaced = iter([f(t) for t in tensors(message)])
    return rebuild(message, replaced)


def rebuild(message: T, replaced: Any) -> T:
    """The same record holding other tensors, taken from an iterator in the order of `tensors`."""
    message_: Any = message
    if isinstance(message_, Tensor):
        return next(replaced)
    names = _names(type(message_))
    if names is not None:
        return type(message_)(*[rebuild(getattr(message_, name), replaced) for name in names])
    if isinstance(message_, tuple):
        return tuple(rebuild(part, replaced) for part in message_)  # pyright: ignore[reportReturnType]
    return message


def form_of(message: Any) -> Any:
    """What two records have in common that differ in numbers only.

    >>> import torch
    >>> form_of((torch.zeros(2), None)) == form_of((torch.ones(2), None))
    True
    """
    if isinstance(message, Tensor):
        return message.shape, message.stride(), message.dtype, message.device
    names = _names(type(message))
    parts = message if isinstance(message, tuple) else [getattr(message, n) for n in names or ()]
    return type(message), *map(form_of, parts)


def fits(up: Any, client: Any, count: int, x: Tensor) -> bool:
    """Whether all are vectors like the model, or single numbers, a row a client."""
    return all(
        t.dim() == 2 and len(t) == count and t.shape[1] in (x.numel(), 1) and t.dtype == x.dtype
        for t in (*tensors(up), *tensors(client))
    )


def nbytes(message: Any) -> int:
    """Bytes on the wire: what is in the record is counted, nothing else is.

    >>> import torch
    >>> nbytes((torch.zeros(10), torch.zeros(1, dtype=torch.float64), None))
    48
    """
    return sum(t.numel() * t.element_size() for t in tensors(message))


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
