"""Partitions: which client holds which sample, from a seed and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value
from undrift.core.rng import Key, Purpose, generator

RETRIES = 1000  # of a draw that leaves a client with too little, before it is called hopeless


@dataclass(frozen=True)
class Samples:
    """What a partition may look at."""

    n: int
    labels: np.ndarray | None = None  # one integer a sample
    column: Callable[[int], np.ndarray] | None = None  # a feature's values
    natural: np.ndarray | None = None  # the client that the data themselves name


@dataclass(frozen=True)
class Parts:
    """Client i holds `index[starts[i] : starts[i] + sizes[i]]`: three arrays, however many clients."""

    index: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    names: np.ndarray | None = None  # what the data call each client, where they do

    @property
    def N(self) -> int:
        return len(self.starts)

    def of(self, client: int) -> np.ndarray:
        """The samples of one client."""
        start = self.starts[client]
        return self.index[start : start + self.sizes[client]]


def in_order(index: np.ndarray, sizes: Sequence[int] | np.ndarray) -> Parts:
    """The first client holds the first samples of the index, and so on."""
    sizes = np.asarray(sizes, dtype=np.int64)
    return Parts(index, np.cumsum(sizes) - sizes, sizes)


def listed(parts: Sequence[np.ndarray]) -> Parts:
    """From a list with the samples of each client."""
    return in_order(np.concatenate(parts), [len(part) for part in parts])


class Partition(Protocol):
    """Anything that deals samples to clients."""

    def split(self, samples: Samples, seed: int) -> Parts: ...


@dataclass(frozen=True)
class IID:
    """Shuffled and dealt out; sizes differ by at most one.

    With `size`, every client holds that many samples and clients may share some: any number of clients over any data.
    """

    N: int
    size: int | None = None

    def __post_init__(self) -> None:
        _check_clients("IID", self.N)
        check_value("IID", "size", self.size, int, None, within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> Parts:
        n, random = samples.n, _random(seed)
        order = random.permutation(n)
        if self.size is None:
            _enough(n, self.N)
            return in_order(order, _equal(n, self.N))
        if self.size > n:
            raise InvalidInput(f"IID: a client cannot hold {self.size} of {n} samples")
        starts = random.integers(n, size=self.N)
        return Parts(np.concatenate([order, order]), starts, np.full(self.N, self.size))


@dataclass(frozen=True)
class Dirichlet:
    """Every client has its own mixture of classes, drawn from Dirichlet(alpha), and (nearly) the same number of samples.

    Samples are taken from the classes' pools without replacement; a class that is used up leaves the mixtures (Hsu, Qi &
    Brown 2019; Zaccone et al. 2025).  Large alpha: IID.  alpha = 0: one class a client.
    """

    N: int
    alpha: float

    def __post_init__(self) -> None:
        _check_clients("Dirichlet", self.N)
        check_value("Dirichlet", "alpha", self.alpha, float, within="[0, inf)")

    def split(self, samples: Samples, seed: int) -> Parts:
        _enough(samples.n, self.N)
        random = _random(seed)
        pools = _pools(samples, random, "Dirichlet")
        if self.alpha == 0:
            return _one_class_each(pools, self.N)
        mixtures = random.dirichlet(np.full(len(pools), self.alpha), size=self.N)
        counts = np.array([len(pool) for pool in pools])
        parts, used = [], np.zeros_like(counts)
        for size, mixture in zip(_equal(samples.n, self.N), mixtures, strict=True):
            take = _take(int(size), mixture, counts - used, random)
            dealt = zip(pools, used, take, strict=True)
            parts.append(np.concatenate([pool[u : u + k] for pool, u, k in dealt]))
            used = used + take
        return listed(parts)


@dataclass(frozen=True)
class ClassDirichlet:
    """Every class is dealt to clients in proportions drawn from Dirichlet(alpha): mixtures *and* sizes differ.

    As in Yurochkin et al. 2019, used by Wang et al. 2020 (alpha = 0.1) and Sun et al. 2024 (0.5): a client that has its
    share of all samples gets no more of the next class, and the draw is repeated until each has `min_size` samples.
    """

    N: int
    alpha: float
    min_size: int = 10

    def __post_init__(self) -> None:
        _check_clients("ClassDirichlet", self.N)
        check_value("ClassDirichlet", "alpha", self.alpha, float, within="(0, inf)")
        check_value("ClassDirichlet", "min_size", self.min_size, int, within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> Parts:
        n, N = samples.n, self.N
        _enough(n, N)
        if self.min_size * N > n:
            raise InvalidInput(
                f"ClassDirichlet: {N} clients of at least {self.min_size} samples need {self.min_size * N}, there are {n}"
            )
        random = _random(seed)
        pools = _pools(samples, random, "ClassDirichlet")
        for _ in range(RETRIES):
            dealt: list[list[np.ndarray]] = [[] for _ in range(N)]
            sizes = np.zeros(N, dtype=np.int64)
            for pool in pools:
                share = random.dirichlet(np.full(N, self.alpha)) * (sizes < n / N)
                if share.sum() == 0:
                    break
                cuts = (np.cumsum(share / share.sum())[:-1] * len(pool)).astype(int)
                for client, part in enumerate(np.split(pool, cuts)):
                    dealt[client].append(part)
                    sizes[client] += len(part)
            if sizes.min() >= self.min_size and sizes.sum() == n:
                return listed([np.concatenate(parts) for parts in dealt])
        raise InvalidInput(
            f"ClassDirichlet: in {RETRIES} draws with alpha={self.alpha} some client of {N} always had fewer than "
            f"{self.min_size} samples: take a larger alpha, fewer clients or a smaller min_size"
        )


@dataclass(frozen=True)
class Shards:
    """Sorted by label and cut into N * each shards; every client is dealt `each` of them (McMahan et al. 2017)."""

    N: int
    each: int = 2

    def __post_init__(self) -> None:
        _check_clients("Shards", self.N)
        check_value("Shards", "each", self.each, int, within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> Parts:
        count = self.N * self.each
        if count > samples.n:
            raise InvalidInput(f"Shards: {samples.n} samples cannot be cut into {count} shards")
        random = _random(seed)
        shards = np.array_split(np.concatenate(_pools(samples, random, "Shards")), count)
        deal = random.permutation(count).reshape(self.N, self.each)
        return listed([np.concatenate([shards[s] for s in mine]) for mine in deal])


@dataclass(frozen=True)
class ClassesPerClient:
    """Every client holds samples of exactly `classes` classes; a class is shared evenly by those who have it."""

    N: int
    classes: int

    def __post_init__(self) -> None:
        _check_clients("ClassesPerClient", self.N)
        check_value("ClassesPerClient", "classes", self.classes, int, within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> Parts:
        _enough(samples.n, self.N)
        random = _random(seed)
        pools = _pools(samples, random, "ClassesPerClient")
        C, k = len(pools), self.classes
        if not 1 <= k <= C or self.N * k < C:
            raise InvalidInput(
                f"ClassesPerClient: {self.N} clients of {k} classes cannot hold {C} classes; "
                f"take from {-(-C // self.N)} to {C}"
            )
        # dealt in turn from shuffled rounds of all classes, so that each class has (nearly) as many clients
        deck = np.concatenate([random.permutation(C) for _ in range(-(-self.N * k // C) + 1)])
        hands, at = [], 0
        for _ in range(self.N):
            hand: list[int] = []
            while len(hand) < k:
                later = next(j for j in range(at, len(deck)) if deck[j] not in hand)
                deck[at], deck[later] = deck[later], deck[at]
                hand.append(int(deck[at]))
                at += 1
            hands.append(hand)
        holders = [[i for i, hand in enumerate(hands) if c in hand] for c in range(C)]
        parts: list[list[np.ndarray]] = [[] for _ in range(self.N)]
        for c, (pool, who) in enumerate(zip(pools, holders, strict=True)):
            if not who or len(pool) < len(who):
                raise InvalidInput(
                    f"ClassesPerClient: class {c} has {len(pool)} samples for {len(who)} clients"
                )
            for client, part in zip(who, np.array_split(pool, len(who)), strict=True):
                parts[client].append(part)
        return listed([np.concatenate(mine) for mine in parts])


@dataclass(frozen=True)
class Similarity:
    """s % of every client's samples are IID, the rest sorted by label (Karimireddy et al. 2020)."""

    N: int
    percent: float

    def __post_init__(self) -> None:
        _check_clients("Similarity", self.N)
        check_value("Similarity", "percent", self.percent, float, within="[0, 100]")

    def split(self, samples: Samples, seed: int) -> Parts:
        _enough(samples.n, self.N)
        random = _random(seed)
        by_label = np.concatenate(_pools(samples, random, "Similarity"))
        mixed = random.random(samples.n) < self.percent / 100
        alike = random.permutation(by_label[mixed[by_label]])
        sorted_ = by_label[~mixed[by_label]]
        # one deals from the front, the other from the back, so that sizes stay equal
        sizes = _equal(len(alike), self.N), _equal(samples.n, self.N) - _equal(len(alike), self.N)
        pairs = zip(np.split(alike, np.cumsum(sizes[0])[:-1]),
                    np.split(sorted_, np.cumsum(sizes[1])[:-1]), strict=True)  # fmt: skip
        return listed([np.concatenate(pair) for pair in pairs])


@dataclass(frozen=True)
class QuantitySkew:
    """IID samples, sizes in proportions drawn from Dirichlet(alpha); everyone has at least one."""

    N: int
    alpha: float

    def __post_init__(self) -> None:
        _check_clients("QuantitySkew", self.N)
        check_value("QuantitySkew", "alpha", self.alpha, float, within="(0, inf)")

    def split(self, samples: Samples, seed: int) -> Parts:
        _enough(samples.n, self.N)
        random = _random(seed)
        order = random.permutation(samples.n)
        share = random.dirichlet(np.full(self.N, self.alpha))
        spare = samples.n - self.N
        sizes = 1 + np.diff(np.round(np.cumsum([0, *share]) / share.sum() * spare)).astype(np.int64)
        return in_order(order, sizes)


@dataclass(frozen=True)
class FeatureSkew:
    """Sorted by one column of the inputs and cut: the first client has the smallest values."""

    N: int
    column: int

    def __post_init__(self) -> None:
        _check_clients("FeatureSkew", self.N)
        check_value("FeatureSkew", "column", self.column, int, within="[0, inf)")

    def split(self, samples: Samples, seed: int) -> Parts:
        _enough(samples.n, self.N)
        if samples.column is None:
            raise InvalidInput("FeatureSkew needs inputs with columns, [n, features]")
        values = samples.column(self.column)
        shuffled = _random(seed).permutation(samples.n)  # ties are broken at random
        return in_order(
            shuffled[np.argsort(values[shuffled], kind="stable")], _equal(samples.n, self.N)
        )


@dataclass(frozen=True)
class Natural:
    """The clients that the data name themselves: writers, speakers, people, hospitals.

    `at_least` leaves out clients with fewer samples.
    """

    at_least: int = 1

    def split(self, samples: Samples, seed: int) -> Parts:
        if samples.natural is None:
            raise InvalidInput(
                "Natural: these data name no clients; use a partition, or give a client for every sample"
            )
        return by_name(samples.natural, self.at_least)


def as_parts(clients: Any, samples: Samples, seed: int) -> Parts:
    """From a partition, from lists of sample numbers, or from one client name a sample."""
    if isinstance(clients, type):
        raise InvalidInput(f"clients must be an object such as ud.IID(100), got {clients!r}")
    if hasattr(clients, "split") and not hasattr(clients, "tolist"):
        return _checked(clients.split(samples, seed), samples.n)
    if isinstance(clients, Sequence) and clients and all(np.ndim(part) == 0 for part in clients):
        clients = np.asarray(clients)
    if hasattr(clients, "tolist"):
        names = np.asarray(clients)
        if names.dtype == object:
            absent = [i for i, name in enumerate(names.flat) if name is None or name != name]
            if absent:
                raise InvalidInput(
                    f"clients: sample {absent[0]} has no client: drop it or name one"
                )
            names = names.astype(str)
        if names.shape != (samples.n,):
            raise InvalidInput(
                f"clients: got an array of shape {list(names.shape)} for {samples.n} samples; "
                "give one client a sample, or a list with the sample numbers of each client"
            )
        if names.dtype.kind == "f" and not np.isfinite(names).all():
            missing = int(np.flatnonzero(~np.isfinite(names))[0])
            raise InvalidInput(f"clients: sample {missing} has no client: drop it or name one")
        return by_name(names)
    if not isinstance(clients, Sequence) or not clients:
        raise InvalidInput(
            "clients must be a partition such as ud.Dirichlet(100, alpha=0.2), an array with one client a sample, "
            f"or a list with the sample numbers of each client; got {clients!r}"
        )
    lists = [np.asarray(part) for part in clients]
    for i, part in enumerate(lists):
        if part.dtype == bool and part.shape == (samples.n,):
            lists[i] = np.flatnonzero(part)
        elif part.ndim != 1:
            raise InvalidInput(
                f"client {i}: give a list of sample numbers, got {part.ndim} dimensions"
            )
        elif len(part) and part.dtype.kind not in "iu":
            raise InvalidInput(f"client {i}: sample numbers must be whole, got {part.dtype}")
    return _checked(listed([part.astype(np.int64) for part in lists]), samples.n)


def _checked(parts: Parts, n: int) -> Parts:
    """What anybody's partition or list must satisfy."""
    if parts.N == 0 or parts.sizes.min() < 1:
        empty = 0 if parts.N == 0 else int(np.argmin(parts.sizes))
        raise InvalidInput(f"client {empty} has no samples: leave it out")
    outside = (parts.index < 0) | (parts.index >= n)
    if outside.any():
        where = int(np.argmax(outside))
        client = int(np.argmax((parts.starts <= where) & (where < parts.starts + parts.sizes)))
        raise InvalidInput(f"client {client} names a sample outside 0 to {n - 1}")
    return parts


def _check_clients(name: str, N: int) -> None:
    check_value(name, "N", N, int, within="[1, inf)")


def _random(seed: int) -> np.random.Generator:
    return generator(Purpose.PARTITION, Key(seed, 0))


def _equal(n: int, N: int) -> np.ndarray:
    """Sizes that sum to n and differ by at most one."""
    return np.full(N, n // N, dtype=np.int64) + (np.arange(N) < n % N)


def _pools(samples: Samples, random: np.random.Generator, name: str) -> list[np.ndarray]:
    """The samples of each class, shuffled."""
    if samples.labels is None:
        raise InvalidInput(f"{name} needs one integer label a sample; use IID or lists of your own")
    order = random.permutation(samples.n)
    labels = samples.labels[order]
    order = order[np.argsort(labels, kind="stable")]
    _, counts = np.unique(labels, return_counts=True)
    return np.split(order, np.cumsum(counts)[:-1])


def _take(
    size: int, mixture: np.ndarray, left: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """How many samples to take of each class: a multinomial draw, what is not there drawn again from the rest."""
    take = np.zeros_like(left)
    while (missing := size - take.sum()) > 0:  # at least one class runs out each time
        open_ = np.where(left > take, mixture, 0.0)
        if open_.sum() <= 0:  # the mixture has no weight on what is left
            open_ = (left - take).astype(float)
        drawn = random.multinomial(missing, open_ / open_.sum())
        take = np.minimum(take + drawn, left)
    return take


def _one_class_each(pools: Sequence[np.ndarray], N: int) -> Parts:
    sizes = np.array([len(pool) for pool in pools])
    if len(pools) > N:
        raise InvalidInput(
            f"Dirichlet(alpha=0) gives a client one class: {len(pools)} classes need as many clients, got {N}"
        )
    clients = np.ones(len(pools), dtype=int)
    for _ in range(N - len(pools)):  # the next client goes where clients have most to share
        clients[np.argmax(sizes / clients)] += 1
    dealt = zip(pools, clients, strict=True)
    return listed([part for pool, k in dealt for part in np.array_split(pool, k)])


def by_name(names: np.ndarray, at_least: int = 1) -> Parts:
    """A client for every name, in the order of the names; those with fewer samples than `at_least` are left out."""
    order = np.argsort(names, kind="stable")
    found, counts = np.unique(names, return_counts=True)
    parts = in_order(order, counts)
    keep = parts.sizes >= at_least
    if not keep.any():
        raise InvalidInput(f"Natural: no client has {at_least} samples, the most is {counts.max()}")
    return Parts(order, parts.starts[keep], parts.sizes[keep], found[keep])


def _enough(n: int, N: int) -> None:
    if not 1 <= N <= n:
        raise InvalidInput(f"{n} samples can be dealt to 1 to {n} clients, got {N}")
