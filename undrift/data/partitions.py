"""The partitions that come with the package: which client holds which sample, from a seed and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from undrift.core.errors import InvalidInput, setting
from undrift.core.hyper import hyper
from undrift.core.rng import Key, Purpose, generator
from undrift.data.assignment import ClientIndices, Samples, group_by_client, partition

RETRIES = 1000  # of a draw that leaves a client with too little, before it is called hopeless


@partition("iid", exact=False)
class IID:
    """Shuffled and dealt out; sizes differ by at most one.

    With `size`, every client holds that many samples and clients may share some: any number of clients over any data.
    With shared=False they share none, and what is left belongs to nobody.
    """

    N: int = hyper(within="[1, inf)")
    size: int | None = hyper(default=None, within="[1, inf)")
    shared: bool = hyper(default=True, among=(False, True))

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        n, random = samples.n, _random(seed)
        order = random.permutation(n)
        if self.size is None:
            _check_enough(n, self.N)
            return ClientIndices.from_sizes(order, _equal_sizes(n, self.N))
        if self.size > n:
            raise InvalidInput(f"IID: a client cannot hold {self.size} of {n} samples")
        if not self.shared:
            if self.N * self.size > n:
                raise InvalidInput(f"IID: {self.N} clients of {self.size} samples share some, there are {n}")
            return ClientIndices.from_sizes(order, np.full(self.N, self.size))
        starts = random.integers(n, size=self.N)
        return ClientIndices(np.concatenate([order, order]), starts, np.full(self.N, self.size))


@partition("dirichlet")
class Dirichlet:
    """Every client has its own mixture of classes, drawn from a Dirichlet distribution, and (nearly) as many samples.

    Samples are taken from the classes' pools without replacement; a class that is used up leaves the mixtures (Hsu, Qi &
    Brown 2019; Zaccone et al. 2025).  Large alpha: IID.  alpha = 0: one class per client.

    concentration   "alpha": Dir(alpha, ..., alpha), as most code has it
                    "alpha*p": Dir(alpha p), p the classes' shares of the samples, as those papers print it: with C
                    classes of one size, alpha/C each, so that alpha = 1 here is alpha = C there
    """

    N: int = hyper(within="[1, inf)")
    alpha: float = hyper(within="[0, inf)")
    concentration: str = hyper(default="alpha", among=("alpha", "alpha*p"))

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        _check_enough(samples.n, self.N)
        random = _random(seed)
        pools = _shuffled_classes(samples, random, "Dirichlet")
        if self.alpha == 0:
            return _one_class_each(pools, self.N)
        counts = np.array([len(pool) for pool in pools])
        scale = 1.0 if self.concentration == "alpha" else counts / counts.sum()
        mixtures = random.dirichlet(np.full(len(pools), self.alpha) * scale, size=self.N)
        lists, used = [], np.zeros_like(counts)
        for size, mixture in zip(_equal_sizes(samples.n, self.N), mixtures, strict=True):
            take = _draw_counts(int(size), mixture, counts - used, random)
            dealt = zip(pools, used, take, strict=True)
            lists.append(np.concatenate([pool[u : u + k] for pool, u, k in dealt]))
            used = used + take
        return ClientIndices.from_lists(lists)


@partition("class-dirichlet")
class ClassDirichlet:
    """Every class is dealt to clients in proportions drawn from Dirichlet(alpha): mixtures *and* sizes differ.

    As in Yurochkin et al. 2019, used by Wang et al. 2020 (alpha = 0.1) and Sun et al. 2024 (0.5): a client that has its
    share of all samples gets no more of the next class, and the draw is repeated until each has `min_size` samples.
    """

    N: int = hyper(within="[1, inf)")
    alpha: float = hyper(within="(0, inf)")
    min_size: int = hyper(default=10, within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        n, N = samples.n, self.N
        _check_enough(n, N)
        if self.min_size * N > n:
            raise InvalidInput(
                f"ClassDirichlet: {N} clients of at least {self.min_size} samples need {self.min_size * N}, there are {n}"
            )
        random = _random(seed)
        pools = _shuffled_classes(samples, random, "ClassDirichlet")
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
                return ClientIndices.from_lists([np.concatenate(parts) for parts in dealt])
        raise InvalidInput(
            f"ClassDirichlet: in {RETRIES} draws with alpha={self.alpha} some client of {N} always had fewer than "
            f"{self.min_size} samples: take a larger alpha, fewer clients or a smaller min_size"
        )


@partition("shards")
class Shards:
    """Sorted by label and cut into N * each shards; every client is dealt `each` of them (McMahan et al. 2017)."""

    N: int = hyper(within="[1, inf)")
    each: int = hyper(default=2, within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        count = self.N * self.each
        if count > samples.n:
            raise InvalidInput(f"Shards: {samples.n} samples cannot be cut into {count} shards")
        random = _random(seed)
        shards = np.array_split(np.concatenate(_shuffled_classes(samples, random, "Shards")), count)
        deal = random.permutation(count).reshape(self.N, self.each)
        return ClientIndices.from_lists([np.concatenate([shards[s] for s in row]) for row in deal])


@partition("classes-per-client")
class ClassesPerClient:
    """Every client holds samples of exactly `classes` classes; a class is shared evenly by those who have it."""

    N: int = hyper(within="[1, inf)")
    classes: int = hyper(within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        _check_enough(samples.n, self.N)
        random = _random(seed)
        pools = _shuffled_classes(samples, random, "ClassesPerClient")
        C, k = len(pools), self.classes
        if not 1 <= k <= C or self.N * k < C:
            raise InvalidInput(
                f"ClassesPerClient: {self.N} clients of {k} classes cannot hold {C} classes; "
                f"take from {-(-C // self.N)} to {C}"
            )
        # dealt in turn from shuffled rounds of all classes, so that each class has (nearly) as many clients
        deck = np.concatenate([random.permutation(C) for _ in range(-(-self.N * k // C) + 1)])
        holders: list[list[int]] = [[] for _ in range(C)]
        at = 0
        for client in range(self.N):
            for _ in range(k):
                later = next(j for j in range(at, len(deck)) if holders[deck[j]][-1:] != [client])
                deck[at], deck[later] = deck[later], deck[at]
                holders[deck[at]].append(client)
                at += 1
        lists: list[list[np.ndarray]] = [[] for _ in range(self.N)]
        for c, (pool, clients) in enumerate(zip(pools, holders, strict=True)):
            if not clients or len(pool) < len(clients):
                raise InvalidInput(f"ClassesPerClient: class {c} has {len(pool)} samples for {len(clients)} clients")
            for client, part in zip(clients, np.array_split(pool, len(clients)), strict=True):
                lists[client].append(part)
        return ClientIndices.from_lists([np.concatenate(parts) for parts in lists])


@partition("similarity")
class Similarity:
    """s % of every client's samples are IID, the rest sorted by label (Karimireddy et al. 2020)."""

    N: int = hyper(within="[1, inf)")
    percent: float = hyper(within="[0, 100]")

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        _check_enough(samples.n, self.N)
        random = _random(seed)
        by_label = np.concatenate(_shuffled_classes(samples, random, "Similarity"))
        mixed = random.random(samples.n) < self.percent / 100
        iid = random.permutation(by_label[mixed[by_label]])
        sorted_ = by_label[~mixed[by_label]]
        # sorted samples fill up to equal sizes, so the larger IID shares meet the smaller sorted ones
        iid_sizes = _equal_sizes(len(iid), self.N)
        sorted_sizes = _equal_sizes(samples.n, self.N) - iid_sizes
        iid_parts = np.split(iid, np.cumsum(iid_sizes)[:-1])
        sorted_parts = np.split(sorted_, np.cumsum(sorted_sizes)[:-1])
        pairs = zip(iid_parts, sorted_parts, strict=True)
        return ClientIndices.from_lists([np.concatenate(pair) for pair in pairs])


@partition("quantity-skew")
class QuantitySkew:
    """IID samples, sizes in proportions drawn from Dirichlet(alpha); everyone has at least one."""

    N: int = hyper(within="[1, inf)")
    alpha: float = hyper(within="(0, inf)")

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        _check_enough(samples.n, self.N)
        random = _random(seed)
        order = random.permutation(samples.n)
        share = random.dirichlet(np.full(self.N, self.alpha))
        spare = samples.n - self.N
        sizes = 1 + np.diff(np.round(np.cumsum([0, *share]) / share.sum() * spare)).astype(np.int64)
        return ClientIndices.from_sizes(order, sizes)


@partition("feature-skew")
class FeatureSkew:
    """Sorted by one column of the inputs and cut: the first client has the smallest values."""

    N: int = hyper(within="[1, inf)")
    column: int = hyper(within="[0, inf)")

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        _check_enough(samples.n, self.N)
        if samples.column is None:
            raise InvalidInput("FeatureSkew needs inputs with columns, [n, features]")
        values = samples.column(self.column)
        shuffled = _random(seed).permutation(samples.n)  # ties are broken at random
        order = shuffled[np.argsort(values[shuffled], kind="stable")]
        return ClientIndices.from_sizes(order, _equal_sizes(samples.n, self.N))


@partition("natural", exact=False)
class Natural:
    """The clients that the data name themselves: writers, speakers, people, hospitals.

    at_least   clients with fewer samples are left out
    at_most    of a client with more, so many are drawn
    choose     so many clients are drawn; all if None

    Zaccone et al. 2025, C.1, have Shakespeare by role as Natural(at_least=2000, at_most=2000, choose=100), and IID as
    IID(100, size=2000, shared=False).
    """

    at_least: int = hyper(default=1, within="[1, inf)")
    at_most: int | None = hyper(default=None, within="[1, inf)")
    choose: int | None = hyper(default=None, within="[1, inf)")

    def split(self, samples: Samples, seed: int) -> ClientIndices:
        if samples.natural is None:
            raise InvalidInput(
                f"{setting('Natural', clients__partition='natural')}: these data name no clients; use a partition, "
                "or give a client for every sample"
            )
        parts, random = group_by_client(samples.natural, self.at_least), _random(seed)
        if self.choose is not None:
            if self.choose > parts.N:
                raise InvalidInput(
                    f"Natural: {parts.N} clients have at least {self.at_least} samples, asked for are {self.choose}"
                )
            some = np.sort(random.choice(parts.N, self.choose, replace=False))
            names = None if parts.names is None else parts.names[some]
            parts = ClientIndices(parts.index, parts.starts[some], parts.sizes[some], names)
        if self.at_most is None:
            return parts
        lists = [np.sort(random.permutation(parts.of(i))[: self.at_most]) for i in range(parts.N)]
        return replace(ClientIndices.from_lists(lists), names=parts.names)


def _random(seed: int) -> np.random.Generator:
    return generator(Purpose.PARTITION, Key(seed, 0))


def _check_enough(n: int, N: int) -> None:
    if not 1 <= N <= n:
        raise InvalidInput(f"{n} samples can be dealt to 1 to {n} clients, got {setting(f'{N}', clients__number=N)}")


def _equal_sizes(n: int, N: int) -> np.ndarray:
    """Sizes that sum to n and differ by at most one."""
    return np.full(N, n // N, dtype=np.int64) + (np.arange(N) < n % N)


def _shuffled_classes(samples: Samples, random: np.random.Generator, name: str) -> list[np.ndarray]:
    """The samples of each class, shuffled."""
    if samples.labels is None:
        raise InvalidInput(f"{name} needs one integer label per sample; use IID or your own lists")
    order = random.permutation(samples.n)
    labels = samples.labels[order]
    order = order[np.argsort(labels, kind="stable")]
    _, counts = np.unique(labels, return_counts=True)
    return np.split(order, np.cumsum(counts)[:-1])


def _draw_counts(size: int, mixture: np.ndarray, left: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """How many samples to take of each class: a multinomial draw, what is not there drawn again from the rest."""
    take = np.zeros_like(left)
    while (missing := size - take.sum()) > 0:  # at least one class runs out each time
        available = np.where(left > take, mixture, 0.0)
        if available.sum() <= 0:  # the mixture has no weight on what is left
            available = (left - take).astype(float)
        drawn = random.multinomial(missing, available / available.sum())
        take = np.minimum(take + drawn, left)
    return take


def _one_class_each(pools: Sequence[np.ndarray], N: int) -> ClientIndices:
    sizes = np.array([len(pool) for pool in pools])
    if len(pools) > N:
        raise InvalidInput(
            f"Dirichlet(alpha=0) gives a client one class: {len(pools)} classes need as many clients, got {N}"
        )
    clients = np.ones(len(pools), dtype=int)
    for _ in range(N - len(pools)):  # the next client goes where clients have most to share
        clients[np.argmax(sizes / clients)] += 1
    dealt = zip(pools, clients, strict=True)
    return ClientIndices.from_lists([part for pool, k in dealt for part in np.array_split(pool, k)])
