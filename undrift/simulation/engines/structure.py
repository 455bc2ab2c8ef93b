"""What visits must have in common to run the same programs: code, and every value in it that is no input.

The floats of a method and its solver are inputs.  Its whole numbers and words, and what its code reads of its module and
its class, are part of a program.
"""

from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor

from undrift.compiler import CannotCompile
from undrift.compiler.constants import CHANGEABLE, Identity, values_read
from undrift.core.batched_scalar import BatchedScalar
from undrift.core.records import children, form_of, map_leaves
from undrift.local.optimiser_state import LocalWithOptimiser
from undrift.local.parameters import LocalWithParameters

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
        return Identity(tree), values_read(tree)
    return tree if isinstance(tree, (int, str, bytes, type(None))) else Identity(tree)


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
