"""How samples are assigned to clients: by a partition, by lists, or by a client per sample; always checked.

`@partition("name")` makes a class a partition; those that come with the package are in `undrift.data.partitions`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any, Protocol, TypeVar, dataclass_transform, overload, runtime_checkable

import numpy as np

from undrift.core.errors import InvalidInput, check_name, named
from undrift.core.hyper import check_fields, hyper

P = TypeVar("P")

PARTITIONS: dict[str, type[Any]] = {}
RESERVED = {"partition", "seed", "weights"}  # words of [clients] in an experiment


@dataclass(frozen=True)
class Samples:
    """What a partition may look at."""

    n: int
    labels: np.ndarray | None = None  # one integer per sample
    column: Callable[[int], np.ndarray] | None = None  # a feature's values
    natural: np.ndarray | None = None  # the client that the data themselves name


@dataclass(frozen=True)
class ClientIndices:
    """Client i holds `index[starts[i] : starts[i] + sizes[i]]`: three arrays, however many clients.

    >>> clients = ClientIndices.from_lists([np.array([4, 0]), np.array([2])])
    >>> clients.N, clients.of(0)
    (2, array([4, 0]))
    """

    index: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    names: np.ndarray | None = None  # what the data call each client, where they do
    partition: str = ""  # how samples were dealt, for descriptions

    @staticmethod
    def from_sizes(index: np.ndarray, sizes: Sequence[int] | np.ndarray) -> "ClientIndices":
        """The first client holds the first samples of the index, and so on."""
        sizes = np.asarray(sizes, dtype=np.int64)
        return ClientIndices(index, np.cumsum(sizes) - sizes, sizes)

    @staticmethod
    def from_lists(lists: Sequence[np.ndarray]) -> "ClientIndices":
        """From the samples of each client."""
        return ClientIndices.from_sizes(np.concatenate(lists), [len(part) for part in lists])

    @property
    def N(self) -> int:
        return len(self.starts)

    def held(self, n: int) -> np.ndarray:
        """Which of n samples some client holds, as a mask."""
        held = np.zeros(n, dtype=bool)
        edges = np.zeros(len(self.index) + 1, dtype=np.int64)
        np.add.at(edges, self.starts, 1)
        np.add.at(edges, self.starts + self.sizes, -1)
        held[self.index[np.cumsum(edges)[:-1] > 0]] = True
        return held

    def of(self, client: int) -> np.ndarray:
        """The samples of one client."""
        start = self.starts[client]
        return self.index[start : start + self.sizes[client]]


@runtime_checkable
class Partition(Protocol):
    """Anything that deals samples to clients; what `split` returns may be all that `assign_clients` takes."""

    def split(self, samples: Samples, seed: int) -> Any: ...


@runtime_checkable
class SupportsArray(Protocol):
    """A numpy array, a tensor, a pandas column."""

    def __array__(self) -> np.ndarray: ...


def assign_clients(clients: Any, samples: Samples, seed: int = 0) -> ClientIndices:
    """The samples of each client, from a partition, from lists of sample numbers, or from one client name per sample.

    >>> assign_clients(["ann", "bob", "ann"], Samples(3)).of(0)
    array([0, 2])
    """
    if isinstance(clients, type):
        raise InvalidInput(f"clients must be an object such as ud.IID(100), got {clients!r}")
    if isinstance(clients, SupportsArray):
        return group_by_client(_check_names(np.asarray(clients), samples.n))
    if isinstance(clients, Partition) and not isinstance(clients, str):
        return replace(assign_clients(clients.split(samples, seed), samples), partition=repr(clients))
    if isinstance(clients, ClientIndices):
        return _check_indices(clients, samples.n)
    if not isinstance(clients, Sequence) or isinstance(clients, str) or not clients:
        raise InvalidInput(
            "clients must be a partition such as ud.Dirichlet(100, alpha=0.2), an array with one client per sample, "
            f"or a list with the sample numbers of each client; got {clients!r}"
        )
    if all(np.ndim(part) == 0 for part in clients):
        return assign_clients(np.asarray(clients), samples)
    lists = [_check_list(i, np.asarray(part), samples.n) for i, part in enumerate(clients)]
    return _check_indices(ClientIndices.from_lists(lists), samples.n)


def group_by_client(names: np.ndarray, at_least: int = 1) -> ClientIndices:
    """A client for every name, in the order of the names; those with fewer samples than `at_least` are left out."""
    order = np.argsort(names, kind="stable")
    unique, counts = np.unique(names, return_counts=True)
    indices = ClientIndices.from_sizes(order, counts)
    keep = indices.sizes >= at_least
    if not keep.any():
        raise InvalidInput(f"Natural: no client has {at_least} samples, the most is {counts.max()}")
    return ClientIndices(order, indices.starts[keep], indices.sizes[keep], unique[keep])


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(hyper, field))
def partition(name: type[P]) -> type[P]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(hyper, field))
def partition(name: str | None = None, *, exact: bool = True) -> Callable[[type[P]], type[P]]: ...
def partition(name: Any = None, *, exact: bool = True) -> Any:
    """Make a class a partition that experiments know by name: a frozen dataclass of checked parameters.

    Its method `split(samples, seed)` returns a list with the sample numbers of each client, or an array with the client of
    each sample.  `samples` has n, labels (or None), column(j) and natural (the data's own clients, or None).  A parameter
    called N or number is the number of clients, `number` in an experiment's TOML.

    What `split` returns is checked: N clients, none of them empty, and every sample held by exactly one of them.  With
    exact=False clients may share samples, and samples may be left out.  Without a name, `@partition`, it is called as the class.

    >>> @partition("sorted")
    ... class Sorted:
    ...     '''The first client has the smallest labels.'''
    ...
    ...     N: int = hyper(within="[1, inf)")
    ...
    ...     def split(self, samples, seed):
    ...         return np.array_split(np.argsort(samples.labels, kind="stable"), self.N)
    >>> data = Samples(5, labels=np.array([1, 0, 2, 0, 1]))
    >>> Sorted(2).split(data, seed=0).of(0)
    array([1, 3, 0])
    >>> Sorted(6).split(data, seed=0)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: partition 'sorted': client 5 has no samples: leave it out
    >>> PARTITIONS.pop("sorted").__name__
    'Sorted'
    """

    def register(name: str, cls: type[P]) -> type[P]:
        _check_class(name, cls)
        split, own_check = cls.split, vars(cls).get("__post_init__")  # pyright: ignore[reportAttributeAccessIssue]

        def check_parameters(self: Any) -> None:
            check_fields(self)
            if own_check is not None:
                own_check(self)

        @wraps(split)
        def checked_split(self: Any, samples: Samples, seed: int) -> ClientIndices:
            try:
                returned = split(self, samples, seed)
            except InvalidInput:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise InvalidInput(f"partition {name!r} failed: {reason}") from error
            try:
                return _check_split(returned, samples, vars(self), exact)
            except InvalidInput as error:
                raise InvalidInput(f"partition {name!r}: {error}") from None

        cls.__post_init__, cls.split = check_parameters, checked_split  # pyright: ignore[reportAttributeAccessIssue]
        cls.__repr__ = _without_defaults
        PARTITIONS[name] = dataclass(frozen=True, repr=False)(cls)
        return cls

    return named("partition", name, register)


def _without_defaults(self: Any) -> str:
    values = {f.name: (vars(self)[f.name], f.default) for f in fields(self)}
    # which of several conventions is in use is always printed
    given = {name: value for name, (value, default) in values.items() if value != default or isinstance(value, str)}
    return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _check_class(name: str, cls: Any) -> None:
    """What can be made a partition, and registered under this name."""
    if not isinstance(cls, type) or not issubclass(cls, Partition):
        raise InvalidInput(f"partition {name!r} must be a class with split(self, samples, seed)")
    if "__dataclass_fields__" in vars(cls):
        raise InvalidInput(f"partition {name!r}: leave out @dataclass, @ud.partition adds it")
    if taken := RESERVED & vars(cls).get("__annotations__", {}).keys():
        raise InvalidInput(f"partition {name!r}: {min(taken)} is a word of experiments, name the parameter otherwise")
    check_name("partition", name, PARTITIONS.get(name), cls)


def _check_split(returned: Any, samples: Samples, parameters: Mapping[str, Any], exact: bool) -> ClientIndices:
    """What `split` returned, as indices: as many clients as were asked for, every sample held once if `exact`."""
    if isinstance(returned, list | tuple) and not returned:
        raise InvalidInput("split returned no clients")
    if not isinstance(returned, ClientIndices | SupportsArray | list | tuple):
        raise InvalidInput(
            "split must return a list with the sample numbers of each client, or an array with the client of each "
            f"sample, got {type(returned).__name__}"
        )
    indices = assign_clients(returned, samples)
    N = parameters.get("N", parameters.get("number", indices.N))
    if indices.N != N:
        raise InvalidInput(f"{N} clients were asked for, split returned {indices.N}")
    if exact:
        _check_exact(indices, samples.n)
    return indices


def _check_exact(indices: ClientIndices, n: int) -> None:
    """Raise InvalidInput unless every sample is held by exactly one client."""
    gaps = np.repeat(indices.starts - np.cumsum(indices.sizes) + indices.sizes, indices.sizes)
    holders = np.bincount(indices.index[gaps + np.arange(len(gaps))], minlength=n)
    wrong = np.flatnonzero(holders != 1)
    if len(wrong):
        held = f"{holders[wrong[0]]} clients" if holders[wrong[0]] else "no client"
        raise InvalidInput(
            f"{len(wrong)} of {n} samples are not held by exactly one client, the first is sample {wrong[0]}, "
            f"held by {held}: deal every sample once, or register with exact=False"
        )


def _check_names(names: np.ndarray, n: int) -> np.ndarray:
    absent = np.zeros(names.shape, dtype=bool)
    if names.dtype == object:
        absent = np.array([name is None or name != name for name in names.flat])
    elif names.dtype.kind == "f":
        absent = ~np.isfinite(names)
    if absent.any():
        raise InvalidInput(f"clients: sample {int(np.argmax(absent))} has no client: drop it or name one")
    if names.shape != (n,):
        raise InvalidInput(
            f"clients: got an array of shape {list(names.shape)} for {n} samples; "
            "give one client per sample, or a list with the sample numbers of each client"
        )
    return names.astype(str) if names.dtype == object else names


def _check_list(client: int, samples: np.ndarray, n: int) -> np.ndarray:
    """Sample numbers of a client, or a mask of its samples, as int64."""
    if samples.dtype == bool and samples.shape == (n,):
        return np.flatnonzero(samples)
    if samples.ndim != 1:
        raise InvalidInput(f"client {client}: give a list of sample numbers, got {samples.ndim} dimensions")
    if len(samples) and samples.dtype.kind not in "iu":
        raise InvalidInput(f"client {client}: sample numbers must be whole, got {samples.dtype}")
    return samples.astype(np.int64)


def _check_indices(indices: ClientIndices, n: int) -> ClientIndices:
    """What any partition or list must satisfy: nobody is empty, no sample is outside the data."""
    if indices.N == 0 or indices.sizes.min() < 1:
        empty = 0 if indices.N == 0 else int(np.argmin(indices.sizes))
        raise InvalidInput(f"client {empty} has no samples: leave it out")
    outside = (indices.index < 0) | (indices.index >= n)
    if outside.any():
        where = int(np.argmax(outside))
        holds = (indices.starts <= where) & (where < indices.starts + indices.sizes)
        raise InvalidInput(f"client {int(np.argmax(holds))} names a sample outside 0 to {n - 1}")
    return indices
