"""Data that come as a table with named columns: a Hugging Face dataset, a pandas frame, a dict of lists."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, unknown
from undrift.data.datasets.common import number_clients
from undrift.data.registry import Data
from undrift.data.trees import Tree

TARGETS = ("labels", "label", "target", "y")  # what a column or a part of a sample may be called that is the target


@runtime_checkable
class NamedColumns(Protocol):
    """What a Hugging Face dataset has in place of keys."""

    @property
    def column_names(self) -> Sequence[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...


@runtime_checkable
class Frame(Protocol):
    """A pandas or Polars data frame."""

    @property
    def columns(self) -> Any: ...

    def to_numpy(self) -> np.ndarray: ...


def is_table(data: Any) -> bool:
    """Whether these are data with named columns; a dict may be other things too."""
    return isinstance(data, NamedColumns | Frame) and not isinstance(data, type)


def column_names(table: Any) -> list[str]:
    names = table.column_names if isinstance(table, NamedColumns) else table
    return list(names.columns if isinstance(names, Frame) else names)


def from_table(table: Any, inputs: str | Sequence[str], target: str, client: str | None = None) -> Data:
    """Data from columns; `client` names the column that says whose a sample is.

    inputs   one column (vectors, images); several columns of numbers, which become the features; or several of which
             some hold vectors, which become a dict by name, as a language model takes it

    >>> data = from_table({"x": [[0.0], [1.0]], "y": [0, 1], "who": ["ann", "bob"]}, "x", "y", "who")
    >>> data.client_names
    ('ann', 'bob')
    """
    X, Y, owners = read_columns(table, inputs, target, client)
    if owners is None:
        return Data("table", (X, Y), None)
    clients, client_names = number_clients(owners)
    return Data("table", (X, Y), None, torch.from_numpy(clients), client_names=client_names)


def read_columns(
    table: Any, inputs: str | Sequence[str] | None, target: str | None, client: str | None
) -> tuple[Tree, Tensor, list[Any] | None]:
    """Inputs, targets and clients of a table; inputs are all other columns unless they are named."""
    columns = column_names(table)
    target = find_target(columns, target, "column")
    others = [name for name in columns if name not in (target, client)]
    names = others if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    for name in [*names, *([client] if client else [])]:
        if name not in columns:
            raise unknown("column", name, columns)
    if not names:
        raise InvalidInput(f"the table has no column for the inputs beside {target!r}: name them, inputs=[...]")
    features = [_to_tensor(table[name], name) for name in names]
    if isinstance(inputs, str) or (inputs is None and len(names) == 1 and features[0].dim() > 1):
        X: Tree = features[0]
    elif all(each.dim() == 1 for each in features):
        kind = features[0].dtype if len({each.dtype for each in features}) == 1 else torch.float32
        X = torch.stack([each.to(kind) for each in features], dim=1)
    else:
        X = dict(zip(names, features, strict=True))
    owners = None if client is None else check_owners(list(table[client]), f"column {client!r}")
    return X, _to_tensor(table[target], target), owners


def find_target(names: Sequence[str], target: str | None, what: str) -> str:
    """The part of a sample that is its target: as said, or by its usual name."""
    if target is not None:
        if target not in names:
            raise unknown(what, target, map(str, names))
        return target
    found = [name for name in TARGETS if name in names]
    if len(found) != 1:
        shown = ", ".join(map(str, names))
        raise InvalidInput(f"say which {what} is the target, target=...: there are {shown}")
    return found[0]


def check_owners(owners: list[Any], where: str) -> list[Any]:
    """Whose each sample is; everyone must be named."""
    missing = [i for i, name in enumerate(owners) if name is None or name != name]
    if missing:
        raise InvalidInput(
            f"{where}: {len(missing)} samples name no client, the first is sample {missing[0]}: drop them or name one"
        )
    return owners


def split_target(batch: Any, target: str | None, name: str) -> tuple[Tree, Tree]:
    """Inputs and targets of a collated batch: a pair, or a dict with the target in it."""
    if isinstance(batch, Mapping):
        parts = dict(batch)
        Y = parts.pop(find_target(list(parts), target, "part of a sample"))
        return (next(iter(parts.values())) if len(parts) == 1 else parts), Y
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise InvalidInput(
        f"{name}: a sample is (inputs, target), or a dict with the target in it; collated they are a {type(batch).__name__}"
    )


def _to_tensor(column: Any, name: str) -> Tensor:
    """A column as one tensor; floats as float32, which models are made of."""
    try:
        values = np.asarray([np.asarray(value) for value in column])
    except ValueError as error:
        raise InvalidInput(
            f"column {name!r}: its entries differ in length or shape: pad them with collate=..., or name other inputs"
        ) from error
    if values.dtype.kind not in "biuf":
        raise InvalidInput(f"column {name!r} holds {values.dtype}, not numbers: encode it first, or name other inputs")
    if values.dtype.kind in "fb":
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
    return torch.as_tensor(values)
