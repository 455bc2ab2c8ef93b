"""Numbers that differ from run to run, standing where a method has a float, so that many runs are one computation."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from undrift.core.records import children, map_leaves, with_children


class NotBatchable(Exception):
    """Why runs cannot be one computation."""


def _operator(f: Callable[[Any, Any], Any]) -> Callable[["BatchedScalar", Any], Any]:
    """An arithmetic operation of `BatchedScalar`, beside another one, a number or vectors."""

    def operate(self: "BatchedScalar", other: Any) -> Any:
        if isinstance(other, BatchedScalar):
            return BatchedScalar(f(self.values, other.values))
        if isinstance(other, int | float) or (isinstance(other, Tensor) and other.dim() == 0):
            return BatchedScalar(f(self.values, other))
        return f(self.values.to(other.dtype), other) if isinstance(other, Tensor) else NotImplemented

    return operate


class BatchedScalar:
    """A float of every run: beside other numbers it stays in float64 as floats do, beside vectors it is a column of theirs.

    It has no truth and no order: a method that asks for them would treat all runs alike, and is refused.

    >>> beta = BatchedScalar.of([0.5, 0.25])
    >>> (1 - beta) * torch.ones(2, 3)
    tensor([[0.5000, 0.5000, 0.5000],
            [0.7500, 0.7500, 0.7500]])
    >>> bool(beta)
    Traceback (most recent call last):
    undrift.core.batched_scalar.NotBatchable: it asks whether a number is zero or how large it is, which differs between the runs
    """

    __slots__ = ("values",)

    def __init__(self, values: Tensor):
        self.values = values  # [runs, 1]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "BatchedScalar":
        return cls(torch.tensor(numbers, dtype=torch.float64).unsqueeze(1))

    def at(self, rows: Tensor) -> "BatchedScalar":
        """The numbers of these runs, one a row."""
        return BatchedScalar(self.values[rows])

    def _refuse(self, *_: Any) -> Any:
        raise NotBatchable("it asks whether a number is zero or how large it is, which differs between the runs")

    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __eq__(self, other: object) -> bool:
        return self._refuse() if isinstance(other, Real) else self is other

    __hash__ = object.__hash__

    def __neg__(self) -> "BatchedScalar":
        return BatchedScalar(-self.values)

    __add__ = __radd__ = _operator(lambda a, b: a + b)
    __sub__, __rsub__ = _operator(lambda a, b: a - b), _operator(lambda a, b: b - a)
    __mul__ = __rmul__ = _operator(lambda a, b: a * b)
    __truediv__, __rtruediv__ = _operator(lambda a, b: a / b), _operator(lambda a, b: b / a)
    __pow__, __rpow__ = _operator(lambda a, b: a**b), _operator(lambda a, b: b**a)

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch's own functions see a column of the vectors that it stands beside."""
        given = [*args, *(kwargs or {}).values()]
        beside = [t for t in _flat(given) if isinstance(t, Tensor) and t.dim() > 0]
        dtype = beside[0].dtype if beside else torch.float64
        named = {name: _as_tensor(value, dtype) for name, value in (kwargs or {}).items()}
        found = f(*(_as_tensor(value, dtype) for value in args), **named)
        return found if beside or not isinstance(found, Tensor) else BatchedScalar(found)


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, (tuple, list)):
        return [values]
    return [each for value in values for each in _flat(value)]


def _as_tensor(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_as_tensor(each, dtype) for each in value)
    return value.values.to(dtype) if isinstance(value, BatchedScalar) else value


def is_zero(number: Any) -> bool:
    """Whether a number is zero in every run, so that what it multiplies can be left out.

    >>> is_zero(0.0), is_zero(BatchedScalar.of([0.0, 1.0]))
    (True, False)
    """
    return not isinstance(number, Tensor | BatchedScalar) and number == 0


def merge(each: Sequence[Any], name: str = "a method") -> Any:
    """One value for several runs: what differs must be floats, which become batched scalars; what is alike stays as it is.

    >>> from undrift import FedGM
    >>> merge([FedGM(beta=0.5), FedGM(beta=0.7)]).beta.values.flatten().tolist()
    [0.5, 0.7]
    >>> merge([{"tau": 3}, {"tau": 4}], "tau")
    Traceback (most recent call last):
    undrift.core.batched_scalar.NotBatchable: tau is {'tau': 3} in one run and {'tau': 4} in another
    """
    first = each[0]
    if all(other is first for other in each):
        return first
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in each):
        if all(v == first for v in each):
            return first
        if any(isinstance(v, float) for v in each):
            return BatchedScalar.of([float(v) for v in each])
    elif all(type(v) is type(first) for v in each):
        inside = [children(v) for v in each]
        if inside[0] is not None and len({len(parts or ()) for parts in inside}) == 1:
            return with_children(first, [_merge_child(first, inside, key) for key in inside[0]])
        if isinstance(first, Tensor):
            return torch.stack(list(each))
        if all(v == first for v in each):
            return first
    other = next(v for v in each if v is not first and (type(v) is not type(first) or v != first))
    raise NotBatchable(f"{name} is {first!r} in one run and {other!r} in another")


def _merge_child(parent: Any, inside: Sequence[Any], name: str) -> Any:
    values = [parts[name] for parts in inside]
    declared = {f.name: str(f.type) for f in fields(parent)} if is_dataclass(parent) else {}
    if "float" in declared.get(name, ""):  # where 1 means 1.0
        values = [float(v) if type(v) is int else v for v in values]
    return merge(values, name)


def at_rows(value: Any, rows: Tensor) -> Any:
    """The same value with the numbers of these runs, a row each."""
    return map_leaves(lambda v: v.at(rows) if isinstance(v, BatchedScalar) else v, value)
