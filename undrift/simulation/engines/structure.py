"""What visits must have in common to run the same programs: code, and every value in it that is no input.

The floats of a method and its solver are inputs.  Its whole numbers and words, and what its code reads of its module and
its class, are part of a program.
"""

import dis
from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import dataclass, is_dataclass
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from undrift.compiler import CannotCompile
from undrift.core.batched_scalar import BatchedScalar
from undrift.core.records import children, field_names, form_of, map_leaves
from undrift.local.optimiser_state import LocalWithOptimiser
from undrift.local.parameters import LocalWithParameters

CHANGEABLE = (list, dict, set, np.ndarray)
PLAIN = {int, bool, str, bytes, type(None)}


class _Identity:
    """Equal to what holds the very same object, which lives as long as this."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


# a method's tree


@dataclass(frozen=True)
class OpenedMethod:
    """A method that is no dataclass, as a tree of its attributes."""

    names: tuple[str, ...]
    values: tuple[Any, ...]
    original: Any

    def close(self) -> Any:
        found = copy(self.original)
        for name, value in zip(self.names, self.values, strict=True):
            object.__setattr__(found, name, value)
        return found


def open_method(algorithm: Any) -> Any:
    """A method as a tree whose floats can be found and replaced."""
    if is_dataclass(algorithm):
        return algorithm
    inside = vars(algorithm)
    return OpenedMethod(tuple(inside), tuple(inside.values()), algorithm)


def structure_of(tree: Any) -> Hashable:
    """The same for trees that differ in floats only.

    >>> structure_of((0.1, 3)) == structure_of((0.2, 3)), structure_of((0.1, 3)) == structure_of((0.1, 4))
    (True, False)
    """
    if isinstance(tree, OpenedMethod):
        return type(tree.original), tree.names, *map(structure_of, tree.values)
    inside = children(tree)
    if inside is not None:
        return type(tree), *map(structure_of, inside.values())
    if isinstance(tree, CHANGEABLE):
        raise CannotCompile(f"the method holds a {type(tree).__name__}, which may change: use a tuple")
    if isinstance(tree, float):
        return float if tree else 0.0  # what multiplies a zero is left out
    if isinstance(tree, BatchedScalar):
        return BatchedScalar, form_of(tree.values)
    if isinstance(tree, Tensor):
        return form_of(tree)
    if isinstance(tree, FunctionType):
        return _Identity(tree), values_read(tree)
    return tree if isinstance(tree, (int, str, bytes, type(None))) else _Identity(tree)


def floats_in(tree: Any) -> tuple[list[float], list[Tensor]]:
    """The floats of a tree that are not zero, and its tensors: those of floats that differ between batched runs, too."""
    floats: list[float] = []
    held: list[Tensor] = []

    def collect(leaf: Any) -> Any:
        if isinstance(leaf, float) and leaf:
            floats.append(leaf)
        elif isinstance(leaf, BatchedScalar):
            held.append(leaf.values)
        elif isinstance(leaf, Tensor):
            held.append(leaf)
        return leaf

    map_leaves(collect, tree)
    return floats, held


def with_floats(tree: Any, floats: Iterator[Tensor], held: Iterator[Tensor]) -> Any:
    """The same tree with other numbers in the place of those that `floats_in` finds."""

    def replaced(leaf: Any) -> Any:
        if isinstance(leaf, float) and leaf:
            return next(floats)
        if isinstance(leaf, BatchedScalar):
            return BatchedScalar(next(held))
        return next(held) if isinstance(leaf, Tensor) else leaf

    return map_leaves(replaced, tree)


# its code


def code_of(local: Any) -> Hashable:
    """Which code a method's `local` is, and what it reads; raises CannotCompile for code that is created again every round."""
    if isinstance(local, MethodType) and isinstance(local.__func__, FunctionType):
        return code_of(local.__func__), values_read(local.__func__, type(local.__self__))
    if isinstance(local, LocalWithOptimiser):
        return LocalWithOptimiser, local.between, code_of(local.local)
    if isinstance(local, LocalWithParameters):
        raise CannotCompile("clients have parameters of their own")
    if isinstance(local, partial):
        given = structure_of((*local.args, *sorted(local.keywords.items())))
        return code_of(local.func), given
    if isinstance(local, FunctionType) and local.__code__.co_freevars in ((), ("__class__",)):  # that of `super()`
        return local, values_read(local)
    raise CannotCompile(
        "`local` of an exchange is a function inside a function, which is another one in every round: make it a method"
    )


def values_read(function: FunctionType, kind: type | None = None) -> Hashable:
    """What a function reads of its module, and of its class: a program holds it, so another value is another program.

    >>> beta = 0.5
    >>> step = FunctionType((lambda y: beta * y).__code__, {"beta": beta})
    >>> first = values_read(step)
    >>> step.__globals__["beta"] = 0.9
    >>> values_read(step) == first
    False
    """
    return tuple(_constant(place[1][-1], _value_at(*place)) for place in _places(function, kind))


@lru_cache(1000)
def _places(function: FunctionType, kind: type | None) -> tuple[tuple[Any, tuple[str, ...]], ...]:
    """Where it finds it: names in namespaces, also those of the functions there that it calls."""
    found: dict[tuple[int, tuple[str, ...]], tuple[Any, tuple[str, ...]]] = {}
    waiting, spaces = [function], [vars(each) for each in kind.__mro__[:-1]] if kind else []
    own = (field_names(kind) if kind else None) or ()  # the method's own values, and inputs
    while waiting:
        here = waiting.pop()
        of_module, of_class = _names(here.__code__)
        places = [(here.__globals__, chain) for chain in of_module if chain[0] in here.__globals__]
        places += [(space, (name,)) for name in of_class for space in spaces if name in space and name not in own]
        for space, chain in places:
            value = _value_at(space, chain)
            new = (id(space), chain) not in found
            if not new or isinstance(value, ModuleType | BuiltinFunctionType):
                continue
            found[id(space), chain] = space, chain
            value = value.fget if isinstance(value, property) else value
            if isinstance(value, FunctionType) and value.__globals__ is here.__globals__:
                waiting.append(value)
    return tuple(found.values())


@lru_cache(1000)
def _names(code: CodeType) -> tuple[list[tuple[str, ...]], list[str]]:
    """The names that code reads of its module, with the attributes of each, and those that it reads of anything else."""
    of_module: list[tuple[str, ...]] = []
    of_others: list[str] = []
    chained = False
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL":
            of_module.append((each.argval,))
            chained = True
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            if chained:
                of_module[-1] = (*of_module[-1], each.argval)
            else:
                of_others.append(each.argval)
        else:
            chained = False
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = _names(inner)
            of_module, of_others = [*of_module, *more[0]], [*of_others, *more[1]]
    return of_module, of_others


def _value_at(space: Any, chain: tuple[str, ...]) -> Any:
    """What a name stands for, attribute by attribute as far as these are stored."""
    value = space.get(chain[0])
    for name in chain[1:]:
        try:
            value = vars(value)[name]
        except (TypeError, KeyError):
            break
    return value


def _constant(name: str, value: Any) -> Hashable:
    """A value as a part of a program."""
    kind = type(value)
    if kind in PLAIN or (kind is float and value == value):
        return kind, value
    if kind is tuple:
        return tuple(_constant(name, each) for each in value)
    if isinstance(value, Tensor):
        return _Identity(value), 0 if value.is_inference() else value._version
    if isinstance(value, CHANGEABLE):
        raise CannotCompile(f"the method reads {name}, a {kind.__name__}, which may change: use a tuple")
    return _Identity(value)
