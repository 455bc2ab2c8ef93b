"""Data that come as a table with named columns: a Hugging Face dataset, a pandas frame, a dict of lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, unknown
from undrift.data.registry import Data


def from_table(
    table: Any, inputs: str | Sequence[str], target: str, client: str | None = None
) -> Data:
    """Data from columns; `client` names the column that says whose a sample is.

    inputs   one column (vectors, images), or several columns of numbers, which become the features

    >>> data = from_table({"x": [[0.0], [1.0]], "y": [0, 1], "who": ["ann", "bob"]}, "x", "y", "who")
    >>> data.client_names
    ('ann', 'bob')
    """
    names = list(getattr(table, "column_names", None) or table.keys())
    asked = [inputs] if isinstance(inputs, str) else list(inputs)
    for name in [*asked, target, *([client] if client else [])]:
        if name not in names:
            raise unknown("column", name, names)
    columns = [_numbers(table[name], name) for name in asked]
    X = columns[0] if isinstance(inputs, str) else torch.stack(columns, dim=1)
    Y = _numbers(table[target], target)
    if client is None:
        return Data("table", (X, Y), None)
    who = list(table[client])
    missing = [i for i, name in enumerate(who) if name is None or name != name]
    if missing:
        raise InvalidInput(
            f"column {client!r}: {len(missing)} samples name no client, the first is sample {missing[0]}: "
            "drop them or name one"
        )
    found, codes = np.unique(np.asarray(who), return_inverse=True)
    return Data("table", (X, Y), None, torch.as_tensor(codes), client_names=tuple(map(str, found)))


def _numbers(column: Any, name: str) -> Tensor:
    """A column as one tensor; floats as float32, which models are made of."""
    try:
        values = np.asarray([np.asarray(value) for value in column])
    except ValueError as error:
        raise InvalidInput(f"column {name!r}: its entries differ in shape: {error}") from error
    if values.dtype.kind not in "biuf":
        raise InvalidInput(f"column {name!r} holds {values.dtype}, not numbers: encode it first")
    if values.dtype.kind == "f":
        values = values.astype(np.float32)
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    return torch.as_tensor(values)
