"""Data in whatever form they come, as one tree of inputs and one of targets, and whose each sample is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from undrift.core.errors import InvalidInput, first_line
from undrift.data.assignment import SupportsArray
from undrift.data.datasets.common import number_clients
from undrift.data.registry import Data
from undrift.data.tables import Frame, column_names, find_target, is_table, read_columns, split_target
from undrift.data.trees import Tree, concatenate, leaves, map_tree, sample_count, take

Collate = Callable[[list[Any]], Any]
FORMS = (
    "(inputs, targets), each a tensor, an array, or a dict or tuple of them; a Dataset; a pandas or Hugging Face table; "
    "or a list or dict of such data, client by client"
)


@dataclass(frozen=True)
class Columns:
    """How samples are read: which columns of a table are what, and what makes a batch of samples."""

    inputs: str | Sequence[str] | None = None
    target: str | None = None
    client: str | None = None
    collate: Collate | None = None


@dataclass(frozen=True, eq=False)
class Gathered:
    """One copy of all samples; `clients` is the number of each sample's client where the data say so, into `names`."""

    X: Tree
    Y: Tree
    clients: np.ndarray | None = None
    names: tuple[str, ...] = ()

    def some(self, which: np.ndarray) -> "Gathered":
        """Some of the samples."""
        clients = None if self.clients is None else self.clients[which]
        return Gathered(take(self.X, torch.as_tensor(which)), take(self.Y, torch.as_tensor(which)), clients, self.names)


def gather(data: Any, name: str, columns: Columns) -> Gathered:
    """The samples of data in any form, checked.

    >>> both = gather({"ann": (torch.zeros(1, 2), [0]), "bob": (torch.ones(2, 2), [1, 0])}, "train", Columns())
    >>> both.X.shape, both.clients, both.names
    (torch.Size([3, 2]), array([0, 1, 1]), ('ann', 'bob'))
    """
    _refuse_loaders(data, name)
    if isinstance(data, Data):
        owners = None if data.clients is None else data.clients.numpy()
        X, Y = (map_tree(_as_data, part) for part in data.train)
        return Gathered(X, Y, owners, data.client_names)
    if is_table(data) and columns.collate is None:
        X, Y, owners = read_columns(data, columns.inputs, columns.target, columns.client)
        numbers, names = (None, ()) if owners is None else number_clients(owners)
        found = Gathered(X, Y, numbers, tuple(map(str, names)))
    elif parts := _clients_of(data):
        found = _join(parts, name, columns)
    else:
        found = _one(data, name, columns)
    _check(found, name)
    return found


def gather_test(train: Any, test: Any, columns: Columns) -> Gathered | None:
    """Likewise the test samples: those of the training data if there are no others."""
    if test is None and isinstance(train, Data) and train.test is not None:
        owners = None if train.test_clients is None else train.test_clients.numpy()
        X, Y = (map_tree(_as_data, part) for part in train.test)
        return Gathered(X, Y, owners, train.client_names)
    if isinstance(test, Data):  # whose clients have nothing to do with those of the training data
        test = test.train
    return None if test is None else gather(test, "test", columns)


def _refuse_loaders(data: Any, name: str) -> None:
    """A DataLoader makes minibatches in an order of its own, which is the run's to choose."""
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else [data]
    if any(isinstance(part, DataLoader) for part in parts):
        raise InvalidInput(
            f"{name}: a DataLoader makes minibatches by itself, which is for the run to do: give its dataset, "
            "loader.dataset, and ud.Local(batch=...)"
        )


def _clients_of(data: Any) -> dict[str, Any]:
    """The data of each client, by name, if that is what they are: no list of two is ever both."""
    if isinstance(data, Mapping) and any(_is_one_client(part) for part in data.values()):
        parts = {str(key): value for key, value in data.items()}
    elif isinstance(data, list) and data and all(_is_one_client(part) for part in data):
        parts = {str(i): part for i, part in enumerate(data)}
    else:
        return {}
    for key, part in parts.items():
        if not _is_one_client(part):
            raise InvalidInput(
                f"client {key!r} has a {type(part).__name__}: give it a pair (inputs, targets), a Dataset or a table, "
                "as the others"
            )
    return parts


def _is_one_client(part: Any) -> bool:
    pair = isinstance(part, tuple) and len(part) == 2 and not _is_sample(part)
    return isinstance(part, Dataset) or is_table(part) or pair or _is_samples(part)


def _is_sample(part: Any) -> bool:
    """(inputs, one number)."""
    return (
        isinstance(part, tuple)
        and len(part) == 2
        and isinstance(part[1], int | float | np.number | Tensor)
        and (np.ndim(part[1]) == 0)
    )


def _is_samples(data: Any) -> bool:
    return isinstance(data, list) and bool(data) and all(_is_sample(each) or isinstance(each, Mapping) for each in data)


def _join(parts: Mapping[str, Any], name: str, columns: Columns) -> Gathered:
    """The samples of clients one after another; what must be padded is padded to one length for all."""
    if all(_has_samples(part, columns) for part in parts.values()):
        rows = {key: _rows(part) for key, part in parts.items()}
        sizes = [len(each) for each in rows.values()]
        _check_sizes(parts, sizes)
        X, Y = _collated([row for each in rows.values() for row in each], name, columns)
    else:
        each = [gather(part, f"{name}, client {key!r}", columns) for key, part in parts.items()]
        sizes = [sample_count(part.X) for part in each]
        try:
            X, Y = concatenate([part.X for part in each]), concatenate([part.Y for part in each])
        except (ValueError, RuntimeError) as error:
            raise InvalidInput(
                f"{name}: the clients' samples do not fit together: {first_line(error)}; give them one shape, "
                "or Datasets with collate=..., which pads them"
            ) from error
    return Gathered(X, Y, np.repeat(np.arange(len(sizes)), sizes), tuple(parts))


def _check_sizes(parts: Iterable[str], sizes: Sequence[int]) -> None:
    for key, size in zip(parts, sizes, strict=True):
        if size == 0:
            raise InvalidInput(f"client {key!r} has no samples: leave it out")


def _has_samples(data: Any, columns: Columns) -> bool:
    """Whether data are read sample by sample."""
    if is_table(data):
        return columns.collate is not None
    return isinstance(data, Dataset) or _is_samples(data)


def _rows(data: Any) -> list[Any]:
    if isinstance(data, Frame):
        names = column_names(data)
        return [dict(zip(names, values, strict=True)) for values in data.to_numpy().tolist()]
    try:
        return [data[i] for i in range(len(data))]
    except TypeError as error:
        raise InvalidInput(f"a Dataset must have a length and samples by number: {first_line(error)}") from error


def _one(data: Any, name: str, columns: Columns) -> Gathered:
    """A Dataset, a table that is to be collated, or a pair."""
    try:
        if _has_samples(data, columns):
            rows = _rows(data)
            owners = None
            if columns.client is not None:
                owners = [row.pop(columns.client) for row in map(dict, rows)]
                rows = [{k: v for k, v in row.items() if k != columns.client} for row in rows]
            X, Y = _collated(rows, name, columns)
            numbers, names = (None, ()) if owners is None else number_clients(owners)
            return Gathered(X, Y, numbers, tuple(map(str, names)))
        if isinstance(data, Mapping):
            return Gathered(*map(_tensors, split_target(data, columns.target, name)))
        if isinstance(data, tuple | list) and len(data) == 2:
            return Gathered(*map(_tensors, data))
        raise TypeError(f"got {type(data).__name__}")
    except InvalidInput:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} must be {FORMS}: {first_line(error)}") from error


def _collated(rows: list[Any], name: str, columns: Columns) -> tuple[Tree, Tree]:
    """All samples as one batch."""
    if not rows:
        raise InvalidInput(f"{name} has no samples")
    if columns.inputs is not None and isinstance(rows[0], Mapping):
        kept = [columns.inputs] if isinstance(columns.inputs, str) else list(columns.inputs)
        kept.append(find_target([key for key in rows[0] if key not in kept], columns.target, "part of a sample"))
        rows = [{key: row[key] for key in kept} for row in rows]
    try:
        batch = (columns.collate or default_collate)(rows)
    except Exception as error:  # of any kind: the function is the user's
        how = "collate failed" if columns.collate else "its samples cannot be stacked, give collate=... to pad them"
        raise InvalidInput(f"{name}: {how}: {first_line(error)}") from error
    X, Y = split_target(batch, columns.target, name)
    return _tensors(X), _tensors(Y)


def _tensors(part: Any) -> Tree:
    """A tree of tensors from tensors, arrays and numbers; a list is numbers, as torch reads it."""
    if isinstance(part, Mapping):
        return {str(key): _tensors(value) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_tensors(value) for value in part)
    if isinstance(part, Frame | SupportsArray) and not isinstance(part, Tensor | np.memmap):
        part = np.require(part, requirements="W")  # also the values of a table or a column
    return _as_data(torch.as_tensor(part))


def _as_data(values: Tensor) -> Tensor:
    """Data are not trained, whatever made them."""
    return values.detach() if values.requires_grad else values


def _check(found: Gathered, name: str) -> None:
    """One target an input, and nothing that is not finite."""
    counts = [[len(t) if t.dim() else 0 for t in leaves(part)] for part in (found.X, found.Y)]
    if not counts[0] or not counts[1] or len({*counts[0], *counts[1]}) > 1 or not counts[0][0]:
        shown = [", ".join(map(str, dict.fromkeys(each))) for each in counts]
        raise InvalidInput(f"{name}: {shown[0]} inputs and {shown[1]} targets: give one target an input")
    for what, values in [("inputs", t) for t in leaves(found.X)] + [("targets", t) for t in leaves(found.Y)]:
        if values.is_floating_point():
            bad = ~values.reshape(len(values), -1).isfinite().all(1)
            if bad.any():
                first = int(bad.nonzero()[0])
                raise InvalidInput(f"{name}: {int(bad.sum())} {what} have NaN or Inf, the first is sample {first}")
