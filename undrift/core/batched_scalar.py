"""Numbers that differ from run to run, standing where a method has a float, so that many runs are one computation."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map


class Alone(Exception):
    """Why runs cannot be one computation."""


@dataclass(frozen=True, eq=False)
class Column:
    """A float of every run: beside other numbers it stays in float64 as floats do, beside vectors it is a column of theirs.

    It has no truth and no order: a method that asks for them would treat all runs alike, and is refused.

    >>> beta = Column.of([0.5, 0.25])
    >>> (1 - beta) * torch.ones(2, 3)
    tensor([[0.5000, 0.5000, 0.5000],
            [0.7500, 0.7500, 0.7500]])
    >>> bool(beta)
    Traceback (most recent call last):
    undrift.core.batched_scalar.Alone: it asks whether a number is zero or how large it is, which differs between the runs
    """

    values: Tensor  # [runs, 1]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Column":
        return cls(torch.tensor(numbers, dtype=torch.float64).unsqueeze(1))

    def at(self, rows: Tensor) -> "Column":
        """The numbers of these runs, one a row."""
        return Column(self.values[rows])

    def _refuse(self, *_: Any) -> Any:
        raise Alone(
            "it asks whether a number is zero or how large it is, which differs between the runs"
        )

    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def _with(self, other: Any, f: Callable[[Any, Any], Tensor]) -> Any:
        if isinstance(other, Column):
            return Column(f(self.values, other.values))
        if isinstance(other, int | float) or (isinstance(other, Tensor) and other.dim() == 0):
            return Column(f(self.values, other))
        return (
            f(self.values.to(other.dtype), other) if isinstance(other, Tensor) else NotImplemented
        )

    def __neg__(self) -> "Column":
        return Column(-self.values)

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b / a)

    def __pow__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a**b)

    def __rpow__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b**a)

    __radd__, __rmul__ = __add__, __mul__

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch's own functions see a column of the vectors that it stands beside."""
        given = (args, kwargs or {})
        beside = [t for t in tree_flatten(given)[0] if isinstance(t, Tensor) and t.dim() > 0]
        dtype = beside[0].dtype if beside else torch.float64
        plain = tree_map(lambda a: a.values.to(dtype) if isinstance(a, Column) else a, given)
        found = f(*plain[0], **plain[1])
        return found if beside or not isinstance(found, Tensor) else Column(found)


def is_zero(number: Any) -> bool:
    """Whether a number is zero in every run, so that what it multiplies can be left out.

    >>> is_zero(0.0), is_zero(Column.of([0.0, 1.0]))
    (True, False)
    """
    return not isinstance(number, Tensor | Column) and number == 0


def merged(each: Sequence[Any], name: str = "a method") -> Any:
    """One value for several runs: what differs must be floats, which become columns; what is alike stays as it is.

    >>> from undrift import FedGM
    >>> merged([FedGM(beta=0.5), FedGM(beta=0.7)]).beta.values.flatten().tolist()
    [0.5, 0.7]
    >>> merged([{"tau": 3}, {"tau": 4}], "tau")
    Traceback (most recent call last):
    undrift.core.batched_scalar.Alone: tau is {'tau': 3} in one run and {'tau': 4} in another
    """
    first = each[0]
    if all(other is first for other in each):
        return first
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in each):
        if all(v == first for v in each):
            return first
        if any(isinstance(v, float) for v in each):
            return Column.of([float(v) for v in each])
    elif all(type(v) is type(first) for v in each):
        if is_dataclass(first):
            return _merged_fields(each)
        if isinstance(first, tuple) and all(len(v) == len(first) for v in each):
            return tuple(merged(parts, name) for parts in zip(*each, strict=True))
        if isinstance(first, Tensor):
            return torch.stack(list(each))
        if all(v == first for v in each):
            return first
    other = next(v for v in each if v is not first and (type(v) is not type(first) or v != first))
    raise Alone(f"{name} is {first!r} in one run and {other!r} in another")


def _merged_fields(each: Sequence[Any]) -> Any:
    found = copy(each[0])
    for field in fields(found):
        values = [getattr(one, field.name) for one in each]
        if "float" in str(field.type):  # where 1 means 1.0
            values = [float(v) if type(v) is int else v for v in values]
        object.__setattr__(found, field.name, merged(values, field.name))
    return found


def at_rows(value: Any, rows: Tensor) -> Any:
    """The same value with the numbers of these runs, a row each."""
    if isinstance(value, Column):
        return value.at(rows)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(at_rows(part, rows) for part in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = copy(value)
    for field in fields(value):
        object.__setattr__(found, field.name, at_rows(getattr(value, field.name), rows))
    return found
