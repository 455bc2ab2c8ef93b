"""What code reads besides its arguments: a compiled or captured program holds these values, so another value is another program.

Of a method that is what its `local` reads of its module and its class; of a problem, what the loss and the model's own
classes hold, which Python code may set between rounds.
"""

import dis
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from undrift.compiler.visit import CannotCompile
from undrift.core.records import field_names

CHANGEABLE = (list, dict, set, np.ndarray)
PLAIN = {int, bool, str, bytes, type(None)}
DEEP, MOST = 4, 300  # levels of objects that are looked into, and things in all; beyond, identity is all that is known
LARGE = 4096  # bytes of an array, likewise


class Identity:
    """Equal to what holds the very same object, which lives as long as this."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def values_read(
    function: FunctionType, kind: type | None = None, constant: "Callable[[str, Any], Hashable] | None" = None
) -> Hashable:
    """What a function reads of its module, and of its class: a program holds it, so another value is another program.

    >>> beta = 0.5
    >>> step = FunctionType((lambda y: beta * y).__code__, {"beta": beta})
    >>> first = values_read(step)
    >>> step.__globals__["beta"] = 0.9
    >>> values_read(step) == first
    False
    """
    each = constant or _constant
    return tuple(each(place[1][-1], _value_at(*place)) for place in _places(function, kind))


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
        return Identity(value), 0 if value.is_inference() else value._version
    if isinstance(value, CHANGEABLE):
        raise CannotCompile(f"the method reads {name}, a {kind.__name__}, which may change: use a tuple")
    return Identity(value)


# what functions and objects hold


def values_held(code: Any) -> Hashable:
    """What a function reads besides its arguments, or an object that is called like one: closure, globals, attributes.

    >>> class Loss:
    ...     weight = 1.0
    ...     def __call__(self, out, target):
    ...         return self.weight * (out - target)
    >>> loss = Loss()
    >>> first = values_held(loss)
    >>> loss.weight = 2.0
    >>> values_held(loss) == first
    False
    """
    return _Held().of(code, DEEP)


def plain_values(modules: Iterable[nn.Module]) -> Hashable:
    """The numbers and words among the attributes of modules, which their own code may set."""
    return tuple(
        tuple((name, value) for name, value in vars(module).items() if type(value) in (*PLAIN, float))
        for module in modules
    )


def _is_of_torch(thing: Any) -> bool:
    """Whether a function or a class is torch's, which holds nothing that changes."""
    return (thing.__module__ or "").split(".")[0] in ("torch", "builtins")


class _Held:
    """One look at what an object holds, which ends after MOST things."""

    def __init__(self) -> None:
        self.left = MOST

    def of(self, value: Any, depth: int) -> Hashable:
        kind = type(value)
        if kind in PLAIN or (kind is float and value == value):
            return kind, value
        if isinstance(value, Tensor):
            return Identity(value), 0 if value.is_inference() else value._version
        if isinstance(value, np.ndarray) and value.nbytes <= LARGE and value.dtype.kind != "O":
            return value.shape, value.dtype.str, value.tobytes()
        self.left -= 1
        if depth == 0 or self.left < 0:
            return Identity(value)
        each = lambda one: self.of(one, depth - 1)
        if isinstance(value, list | tuple):
            return kind, tuple(map(each, value))
        if isinstance(value, dict):
            return kind, tuple((each(key), each(one)) for key, one in value.items())
        if isinstance(value, set | frozenset):
            return kind, frozenset(map(each, value))
        if isinstance(value, partial):
            return kind, each(value.func), each(value.args), each(value.keywords)
        if isinstance(value, MethodType):
            return kind, each(value.__func__), each(value.__self__)
        if isinstance(value, FunctionType):
            return Identity(value), self._of_function(value, None, depth)
        if isinstance(value, type | ModuleType) or not hasattr(value, "__dict__"):
            return Identity(value)
        inside = tuple((name, each(one)) for name, one in vars(value).items() if not _is_bookkeeping(value, name))
        call = type(value).forward if isinstance(value, nn.Module) else getattr(type(value), "__call__", None)  # noqa: B004
        return Identity(value), inside, self._of_function(call, kind, depth)

    def _of_function(self, function: Any, kind: type | None, depth: int) -> Hashable:
        if not isinstance(function, FunctionType) or _is_of_torch(function):
            return None
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.of(cell.cell_contents, depth - 1))
            except ValueError:  # nothing has been assigned yet
                cells.append(None)
        return tuple(cells), values_read(function, kind, lambda _, value: self.of(value, depth - 1))


def _is_bookkeeping(thing: Any, name: str) -> bool:
    """What torch itself keeps in a module besides parameters, buffers, modules and the user's attributes."""
    return isinstance(thing, nn.Module) and (name == "training" or (name.startswith("_") and "hooks" in name))
