"""A method's `local` or its step as a function of tensors: what they hold, taken out and put back."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor

from undrift.core.records import form_of
from undrift.core.work import Work

Leaf = Callable[[Any], Any]


def replaced(value: Any, leaf: Leaf, note: Callable[[Any], None], seen: dict[int, Any]) -> Any:
    """The same value with `leaf` applied to every tensor, float and Work that it holds, at any depth.

    `note` is told everything else: two values with equal notes and leaves are alike.
    """
    if id(value) in seen:
        note(list(seen).index(id(value)))
        return seen[id(value)]
    if isinstance(value, (Tensor, float, Work)):
        seen[id(value)] = found = leaf(value)
        return found

    def inside(part: Any) -> Any:
        return replaced(part, leaf, note, seen)

    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        note((type(value), len(value)))
        return type(value)(inside(part) for part in value)
    if isinstance(value, FunctionType):
        note(value.__code__)
        found = _function(value, inside)
    elif isinstance(value, MethodType):
        note(MethodType)
        found = MethodType(inside(value.__func__), inside(value.__self__))
    elif isinstance(value, partial):
        note((partial, tuple(value.keywords)))
        keywords = {name: inside(part) for name, part in value.keywords.items()}
        found = partial(inside(value.func), *map(inside, value.args), **keywords)
    elif (names := _parts(value)) is not None:
        note((type(value), names))
        found = copy(value)
        for name in names:
            object.__setattr__(found, name, inside(getattr(value, name)))
    else:
        note(value if isinstance(value, (int, str, bytes, type(None))) else Same(value))
        return value
    seen[id(value)] = found
    return found


class Same:
    """Equal to what holds the very same object, which therefore lives as long as this."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _parts(value: Any) -> tuple[str, ...] | None:
    """What records and methods consist of, also those that are no dataclasses; None of anything else."""
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return tuple(field.name for field in fields(value))
    return tuple(vars(value)) if hasattr(value, "local") and hasattr(value, "__dict__") else None


def _function(value: FunctionType, inside: Leaf) -> FunctionType:
    cells = tuple(CellType(inside(cell.cell_contents)) for cell in value.__closure__ or ())
    defaults = inside(value.__defaults__)
    found = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells)
    found.__kwdefaults__ = value.__kwdefaults__ and {
        name: inside(part) for name, part in value.__kwdefaults__.items()
    }
    return found


@dataclass(frozen=True)
class Held:
    """What a step's closure holds: its tensors and numbers, and a key that is the same for steps that are alike."""

    tensors: list[Tensor]
    numbers: list[float]
    key: tuple[Any, ...]


def held(step: Any) -> Held:
    """What a step's closure holds, or any other value."""
    tensors: list[Tensor] = []
    numbers: list[float] = []
    key: list[Any] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value)
            key.append(form_of(value))
        elif isinstance(value, float):
            numbers.append(value)
            key.append(float)
        else:
            key.append(Work)
        return value

    replaced(step, leaf, key.append, {})
    return Held(tensors, numbers, tuple(key))


def rebound(step: Any, tensors: Iterator[Tensor], numbers: Iterator[Tensor], work: Work) -> Any:
    """The same step with other tensors, numbers and work in its closure."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            return next(tensors)
        return next(numbers) if isinstance(value, float) else work

    return replaced(step, leaf, lambda note: None, {})
