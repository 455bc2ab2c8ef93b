"""Shared by the readers: labels, natural clients, and train/test splits that sources do not publish."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.rng import Key, Purpose, generator
from undrift.data import store
from undrift.data.registry import Data

SPLIT_SEED = 2024  # of every split that a source does not publish; changing it changes the data


def check_labels(source: object, labels: np.ndarray, classes: int) -> None:
    """Raise InvalidInput for the first label that is not 0 to classes - 1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InvalidInput(
            f"{source}: sample {wrong[0]} has label {labels[wrong[0]]}, allowed are 0 to {classes - 1}: get it again"
        )


def number_clients(owners: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """The client number of every sample and the clients' names, from what the source calls each sample's owner.

    >>> number_clients([30, 10, 30])
    (array([1, 0, 1]), ('10', '30'))
    """
    names, numbers = np.unique(owners, return_inverse=True)
    return numbers.astype(np.int64), tuple(map(str, names))


def look_up_clients(owners: Iterable[Any], names: Sequence[str]) -> Tensor:
    """The numbers of clients that have one already, -1 for others.

    >>> look_up_clients([30, 10, 20], ("10", "30"))
    tensor([ 1,  0, -1])
    """
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number.get(str(owner), -1) for owner in owners], dtype=torch.int64)


def split_rng(client: int = 0) -> np.random.Generator:
    """The random numbers of the fixed splits."""
    return generator(Purpose.DATA, Key(SPLIT_SEED, 0), client)


def hold_out(clients: np.ndarray, fraction: float) -> np.ndarray:
    """Which samples are for testing, as a mask: a fraction of each client's, drawn with the fixed seed."""
    test = np.zeros(len(clients), dtype=bool)
    for client in np.unique(clients):
        samples = np.flatnonzero(clients == client)
        test[split_rng(int(client)).permutation(samples)[: round(len(samples) * fraction)]] = True
    return test


def standardise(X: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns minus mean over standard deviation (1 for a constant column) of the rows `train`; and these two."""
    mean, std = X[train].mean(0), X[train].std(0)
    std = np.where(std > 0, std, 1.0)
    return (X - mean) / std, mean, std


def split_train_test(
    name: str,
    X: np.ndarray,
    Y: np.ndarray,
    clients: np.ndarray,
    client_names: Sequence[str],
    test: np.ndarray,
    files: Sequence[Path],
    classes: int | None = None,
    about: str = "",
) -> Data:
    """Data with natural clients from all samples and the mask of those for testing."""

    def select(rows: np.ndarray) -> tuple[tuple[Tensor, Tensor], Tensor]:
        inputs = torch.from_numpy(np.ascontiguousarray(X[rows], dtype=np.float32))
        targets = torch.from_numpy(Y[rows].astype(np.float32 if classes is None else np.int64))
        return (inputs, targets), torch.from_numpy(clients[rows].astype(np.int64))

    train, train_clients = select(~test)
    held_out, test_clients = select(test) if test.any() else (None, None)
    return Data(
        name,
        train,
        held_out,
        train_clients,
        test_clients,
        tuple(client_names),
        classes=classes,
        checksums=store.checksums(files),
        about=about,
    )
