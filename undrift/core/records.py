"""Records: states and messages as frozen dataclasses of tensors, and what can be done with any of them."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, dataclass_transform

from torch import Tensor

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """A state or a message: a frozen dataclass of tensors (or tuples of them, or None).

    >>> import torch
    >>> @record
    ... class Down:
    ...     x: torch.Tensor
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
