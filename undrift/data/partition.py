"""Partitions: which client holds which sample, from a seed and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from undrift.errors import InvalidInput
from undrift.hyper import check_value
from undrift.keyed import Key, Purpose, generator


class Partition(Protocol):
    """Anything that deals n samples, some with labels, to clients."""

    def split(self, n: int, labels: np.ndarray | None, seed: int) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class IID:
    """Shuffled and dealt out; sizes differ by at most one."""

    N: int

    def split(self, n: int, labels: np.ndarray | None, seed: int) -> list[np.ndarray]:
        _enough(n, self.N)
        order = generator(Purpose.PARTITION, Key(seed, 0)).permutation(n)
        return np.array_split(order, self.N)


@dataclass(frozen=True)
class Dirichlet:
    """Every client has its own mixture of classes, drawn from Dirichlet(alpha), and (nearly) the same number of samples.

    Samples are taken from the classes' pools without replacement; a class that is used up leaves the mixtures (Hsu, Qi &
    Brown 2019).  Large alpha: IID.  alpha = 0: one class a client.
    """

    N: int
    alpha: float

    def __post_init__(self) -> None:
        check_value("Dirichlet", "alpha", self.alpha, float, within="[0, inf)")

    def split(self, n: int, labels: np.ndarray | None, seed: int) -> list[np.ndarray]:
        _enough(n, self.N)
        if labels is None:
            raise InvalidInput("Dirichlet needs one integer label a sample; use IID or your own")
        random = generator(Purpose.PARTITION, Key(seed, 0))
        classes, counts = np.unique(labels, return_counts=True)
        pools = [random.permutation(np.flatnonzero(labels == c)) for c in classes]
        if self.alpha == 0:
            return _one_class_each(pools, self.N)
        mixtures = random.dirichlet(np.full(len(classes), self.alpha), size=self.N)
        sizes = np.full(self.N, n // self.N) + (np.arange(self.N) < n % self.N)
        parts, used = [], np.zeros_like(counts)
        for size, mixture in zip(sizes, mixtures, strict=True):
            take = _take(int(size), mixture, counts - used, random)
            parts.append(
                np.concatenate([p[u : u + k] for p, u, k in zip(pools, used, take, strict=True)])
            )
            used = used + take
        return parts


def _take(
    size: int, mixture: np.ndarray, left: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """How many samples to take of each class: a multinomial draw, what is not there drawn again from the rest."""
    take = np.zeros_like(left)
    while (missing := size - take.sum()) > 0:  # at least one class runs out each time
        open_ = np.where(left > take, mixture, 0.0)
        if open_.sum() == 0:  # the mixture has no weight on what is left
            open_ = (left - take).astype(float)
        drawn = random.multinomial(missing, open_ / open_.sum())
        take = np.minimum(take + drawn, left)
    return take


def _one_class_each(pools: Sequence[np.ndarray], N: int) -> list[np.ndarray]:
    sizes = np.array([len(pool) for pool in pools])
    if len(pools) > N:
        raise InvalidInput(
            f"Dirichlet(alpha=0) gives a client one class: {len(pools)} classes need as many clients, got {N}"
        )
    clients = np.ones(len(pools), dtype=int)
    for _ in range(N - len(pools)):  # the next client goes where clients have most to share
        clients[np.argmax(sizes / clients)] += 1
    if (clients > sizes).any():
        raise InvalidInput(f"Dirichlet(alpha=0): a class has fewer samples than clients, N={N}")
    return [
        part for pool, k in zip(pools, clients, strict=True) for part in np.array_split(pool, k)
    ]


def _enough(n: int, N: int) -> None:
    if not 1 <= N <= n:
        raise InvalidInput(f"{n} samples can be dealt to 1 to {n} clients, got {N}")


def as_parts(
    clients: Partition | Sequence[Sequence[int]] | np.ndarray,
    n: int,
    labels: np.ndarray | None,
    seed: int,
) -> list[np.ndarray]:
    """The samples of each client: from a partition, from lists of sample numbers, or from one client name a sample."""
    if hasattr(clients, "split"):
        return clients.split(n, labels, seed)  # pyright: ignore[reportAttributeAccessIssue]
    if hasattr(clients, "tolist"):
        names = np.asarray(clients)
        if names.shape != (n,):
            raise InvalidInput(
                f"clients: got an array of shape {list(names.shape)} for {n} samples; "
                "give one client a sample, or a list with the sample numbers of each client"
            )
        return [np.flatnonzero(names == name) for name in np.unique(names)]
    parts = [np.asarray(part, dtype=np.int64) for part in clients]  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
    for i, part in enumerate(parts):
        if len(part) == 0:
            raise InvalidInput(f"client {i} has no samples: leave it out")
        if part.min() < 0 or part.max() >= n:
            raise InvalidInput(f"client {i} names a sample outside 0 to {n - 1}")
    return parts
