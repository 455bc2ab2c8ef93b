"""Data that come as a table with named columns: a Hugging Face dataset, a pandas frame, a dict of lists."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, unknown
from undrift.data.datasets.common import number_clients
from undrift.data.registry import Data


@runtime_checkable
class NamedColumns(Protocol):
    """What a Hugging Face dataset has in place of keys."""

    @property
    def column_names(self) -> Sequence[str]: ...

    def __getitem__(self, name: str, /) -> Any: ...


def from_table(
    table: Any, inputs: str | Sequence[str], target: str, client: str | None = None
) -> Data:
    """Data from columns; `client` names the column that says whose a sample is.

    inputs   one column (vectors, images), or several columns of numbers, which become the features

    >>> data = from_table({"x": [[0.0], [1.0]], "y": [0, 1], "who": ["ann", "bob"]}, "x", "y", "who")
    >>> data.client_names
    ('ann', 'bob')
    """
    columns = list(table.column_names if isinstance(table, NamedColumns) else table.keys())
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    for name in [*names, target, *([client] if client else [])]:
        if name not in columns:
            raise unknown("column", name, columns)
    features = [_to_tensor(table[name], name) for name in names]
    X = features[0] if isinstance(inputs, str) else torch.stack(features, dim=1)
    Y = _to_tensor(table[target], target)
    if client is None:
        return Data("table", (X, Y), None)
    owners = list(table[client])
    missing = [i for i, name in enumerate(owners) if name is None or name != name]
    if missing:
        raise InvalidInput(
            f"column {client!r}: {len(missing)} samples name no client, the first is sample {missing[0]}: "
            "drop them or name one"
        )
    clients, client_names = number_clients(owners)
    return Data("table", (X, Y), None, torch.from_numpy(clients), client_names=client_names)


def _to_tensor(column: Any, name: str) -> Tensor:
    """A column as one tensor; floats as float32, which models are made of."""
    try:
        values = np.asarray([np.asarray(value) for value in column])
    except ValueError as error:
        raise InvalidInput(f"column {name!r}: its entries differ in shape: {error}") from error
    if values.dtype.kind not in "biuf":
        raise InvalidInput(f"column {name!r} holds {values.dtype}, not numbers: encode it first")
    if values.dtype.kind in "fb":
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
    return torch.as_tensor(values)
