"""Records: states and messages as frozen dataclasses of tensors, and what can be done with any of them.

A record is a tree: dataclasses and tuples inside, tensors (or None) at its leaves.  `children` and `with_children` are the
only code that knows how trees are built; all else here, checkpoints, batched runs and the compiler are written with them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, dataclass_transform

import torch
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


class Beside:
    """A record that holds another one, `own`, beside something else; the other's fields can be read as if they were its own."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "own":  # asked for while it is being made
            raise AttributeError(name)
        return getattr(self.own, name)


@cache
def field_names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass, None of any other class; cached, since records are taken apart several times per round."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None


def children(node: Any) -> dict[str, Any] | None:
    """What a node of a tree consists of, by name; None if it is a leaf.

    >>> children(("a", "b")), children(3.0)
    ({'0': 'a', '1': 'b'}, None)
    """
    names = field_names(type(node))
    if names is not None:
        return {name: getattr(node, name) for name in names}
    if isinstance(node, tuple):
        return {str(i): child for i, child in enumerate(node)}
    return None


def with_children(node: T, values: Iterable[Any]) -> T:
    """The same node with other children.  Nothing is validated, so that a hyper-parameter may become a tensor.

    >>> with_children(("a", "b"), [1, 2])
    (1, 2)
    """
    names = field_names(type(node))
    if names is None:
        return tuple(values)  # pyright: ignore[reportReturnType]
    new = object.__new__(type(node))
    if type(node).__dictoffset__:  # what an algorithm has besides its fields
        new.__dict__.update(node.__dict__)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)
    return new


def map_leaves(f: Callable[[Any], Any], tree: T) -> T:
    """The same tree with f applied to every leaf.

    >>> map_leaves(lambda number: number + 1, (1, (2, 3)))
    (2, (3, 4))
    """
    names = field_names(type(tree))
    if names is not None:
        return with_children(tree, [map_leaves(f, getattr(tree, name)) for name in names])
    if isinstance(tree, tuple):
        return with_children(tree, [map_leaves(f, child) for child in tree])
    return f(tree)


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
    names = field_names(type(message))
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


def check_records(*messages: Any) -> None:
    """Raise TypeError for a record that holds something else than tensors."""
    for message in messages:
        tensors(message)


def checked_record(message: T) -> T:
    """The same record, after `check_records`."""
    check_records(message)
    return message


def map_tensors(f: Callable[[Tensor], Tensor], message: T) -> T:
    """The same record with f applied to every tensor in it.

    >>> import torch
    >>> map_tensors(lambda t: t + 1, (torch.zeros(2), None))
    (tensor([1., 1.]), None)
    """
    return rebuild(message, iter([f(t) for t in tensors(message)]))


def rebuild(message: T, replaced: Iterator[Tensor]) -> T:
    """The same record holding other tensors, taken from an iterator in the order of `tensors`."""
    return map_leaves(lambda leaf: next(replaced) if isinstance(leaf, Tensor) else leaf, message)


def stack_records(records: list[T]) -> T:
    """Records of one form as one, with a row for each.

    >>> import torch
    >>> stack_records([(torch.zeros(2),), (torch.ones(2),)])
    (tensor([[0., 0.],
            [1., 1.]]),)
    """
    columns = zip(*map(tensors, records), strict=True)
    return rebuild(records[0], iter([torch.stack(column) for column in columns]))


def form_of(message: Any) -> Any:
    """What two records have in common that differ in numbers only.

    >>> import torch
    >>> form_of((torch.zeros(2), None)) == form_of((torch.ones(2), None))
    True
    """
    if isinstance(message, Tensor):
        return message.shape, message.stride(), message.dtype, message.device
    inside = children(message)
    return type(message), *map(form_of, inside.values() if inside else ())


def difference(found: Any, expected: Any, where: str, may_grow: bool = False) -> str:
    """Where one record has another form than a second one, in classes, shapes or dtypes; "" if they are alike.

    may_grow   a tuple may have another length, and what is None become something: the past that some servers keep

    >>> import torch
    >>> difference((torch.zeros(2), None), (torch.zeros(3), None), "state")
    'state.0 is a vector of 2 (torch.float32), not a vector of 3 (torch.float32)'
    """
    if may_grow and (found is None or expected is None):
        return ""
    inside, other = children(found) or {}, children(expected) or {}
    if isinstance(found, Tensor) and isinstance(expected, Tensor):
        alike = (found.shape, found.dtype) == (expected.shape, expected.dtype)
    else:
        alike = type(found) is type(expected) and (may_grow or inside.keys() == other.keys())
    if not alike:
        return f"{where} is {_described(found)}, not {_described(expected)}"
    each = (difference(inside[name], other[name], f"{where}.{name}", may_grow) for name in inside if name in other)
    return next(filter(None, each), "")


def _described(part: Any) -> str:
    if isinstance(part, tuple):
        return f"{len(part)} of them"
    if not isinstance(part, Tensor):
        return f"a {type(part).__name__}" if part is not None else "nothing"
    shape = f"a vector of {len(part)}" if part.dim() == 1 else f"a tensor of {list(part.shape)}"
    return f"{shape} ({part.dtype})"


def fits(up: Any, client: Any, count: int, x: Tensor, own: int = 1) -> bool:
    """Whether all are vectors like the model, or single numbers, a row per client; `own`: parameters that clients keep."""
    widths = (x.numel(), 1)
    return all(
        t.dim() == 2 and len(t) == count and t.shape[1] in allowed and t.dtype == x.dtype
        for message, allowed in ((up, widths), (client, (*widths, own)))
        for t in tensors(message)
    )


def nbytes(message: Any) -> int:
    """Bytes on the wire: what is in the record is counted, nothing else is.

    >>> import torch
    >>> nbytes((torch.zeros(10), torch.zeros(1, dtype=torch.float64), None))
    48
    """
    return sum(t.numel() * t.element_size() for t in tensors(message))
