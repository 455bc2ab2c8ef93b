"""Data sets by name: `load("mnist")`, and `@dataset("name")` to add your own.

    data = ud.load("mnist-writers")
    problem = ud.federate(data, model=..., loss=..., clients=ud.Natural())

The readers are in `undrift.data.datasets`; they import h5py, Pillow and scikit-learn only when they run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, check_name, known_name, named, unknown
from undrift.data.trees import Tree, leaves, sample_count, shapes

Reader = TypeVar("Reader", bound=Callable[..., Any])

IGNORED = -100  # a target to leave out, as torch's losses have it


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A data set in memory: one compact copy; `prepare` turns a batch of it into model inputs.

    train, test     inputs and targets; uint8 images, integer codes or float32 tables, or a dict or tuple of such inputs;
                    class targets are int64
    clients         the natural client of every training sample, 0 to n - 1, or None if there is none
    test_clients    likewise for test samples; -1 is a client that is not in train
    client_names    what the source calls client 0, 1, ...
    classes         how many, None for regression
    prepare         turns a batch of stored inputs, with any leading dimensions, into model inputs
    checksums       name -> sha256 of the files that were read
    about           source and licence
    """

    name: str
    train: tuple[Tree, Tensor]
    test: tuple[Tree, Tensor] | None
    clients: Tensor | None = None
    test_clients: Tensor | None = None
    client_names: tuple[str, ...] = ()
    classes: int | None = None
    prepare: Callable[[Any], Any] | None = None
    checksums: dict[str, str] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        _check_samples(self, "train", self.train)
        if self.test is not None:
            _check_samples(self, "test", self.test)
        _check_clients(self, "clients", self.clients, self.train, lowest=0)
        _check_clients(self, "test_clients", self.test_clients, self.test, lowest=-1)

    def __repr__(self) -> str:
        inputs, targets = self.train
        tested = 0 if self.test is None else len(self.test[1])
        target = "numbers" if self.classes is None else f"{self.classes} classes"
        own = f", {len(self.client_names):,} clients of its own" if self.clients is not None else ""
        return f"Data({self.name!r}: {len(targets):,} samples of {shapes(inputs)}, {tested:,} to test, {target}{own})"


@dataclass(frozen=True)
class DatasetEntry:
    """A registered data set: the function that reads it, its source and licence, how many clients it names itself."""

    read: Callable[..., Data]
    about: str
    clients: int | None = None


DATASETS: dict[str, DatasetEntry] = {}


@overload
def dataset(name: Reader) -> Reader: ...
@overload
def dataset(name: str | None = None, about: str = "", clients: int | None = None) -> Callable[[Reader], Reader]: ...
def dataset(name: Any = None, about: str = "", clients: int | None = None) -> Any:
    """Register a function that returns a `Data` as a data set that `load` and experiments know by name.

    Without a name it is called as the function: my_data is "my-data".

    `clients` says that the data have natural clients, and how many: experiments take those by default.

    >>> @dataset("coin", about="an example")
    ... def coin(tosses: int = 4) -> Data:
    ...     inputs = torch.zeros(tosses, 1)
    ...     return Data("coin", (inputs, torch.arange(tosses) % 2), None, classes=2)
    >>> load("coin", tosses=6).train[1]
    tensor([0, 1, 0, 1, 0, 1])
    >>> DATASETS.pop("coin").about
    'an example'
    """

    def register(name: str, read: Reader) -> Reader:
        known = DATASETS.get(name)
        check_name("data set", name, known and known.read, read)
        DATASETS[name] = DatasetEntry(read, about, clients)
        return read

    return named("data set", name, register)


def load(name: str, **options: Any) -> Data:
    """Read a data set; its files are found, checked and, where they are published on the web, downloaded.

    Options are those of the reader, e.g. load("cifar100", labels="coarse").

    >>> data = load("digits")
    >>> list(data.train[0].shape), list(data.test[0].shape), data.classes
    ([1500, 1, 8, 8], [297, 1, 8, 8], 10)
    >>> data.prepare(data.train[0][:2]).dtype
    torch.float32
    """
    name = known_name("data set", name, DATASETS)
    check_options(name, options)
    entry = DATASETS[name]
    data = entry.read(**options)
    if not isinstance(data, Data):
        raise InvalidInput(f"data set {name!r}: its reader must return a ud.Data, got {type(data).__name__}")
    return data if data.about else replace(data, about=entry.about)


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse a data set that is not known, and an option that its reader does not have."""
    name = known_name("data set", name, DATASETS)
    allowed = signature(DATASETS[name].read).parameters
    for option in options:
        if not allowed:
            raise InvalidInput(f"{name} has no options, got {option!r}: leave it out")
        if option not in allowed:
            raise unknown(f"option of {name}:", option, allowed)


def _check_samples(data: Data, part: str, pair: tuple[Tree, Tensor]) -> None:
    inputs, targets = pair
    if sample_count(inputs) != len(targets) or len(targets) == 0:
        raise InvalidInput(
            f"{data.name}: {part} has {sample_count(inputs)} inputs and {len(targets)} targets: give one target per input"
        )
    for what, values in [("targets", targets), *(("inputs", each) for each in leaves(inputs))]:
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise InvalidInput(f"{data.name}: {part} {what} have NaN or Inf: clean the source file")
    if data.classes is None:
        return
    if targets.dtype != torch.int64:
        raise InvalidInput(f"{data.name}: class targets must be int64, {part} has {targets.dtype}")
    labels = targets[targets != IGNORED]
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= data.classes:
        raise InvalidInput(f"{data.name}: {part} labels go from {low} to {high}, allowed are 0 to {data.classes - 1}")


def _check_clients(
    data: Data, what: str, clients: Tensor | None, pair: tuple[Tree, Tensor] | None, lowest: int
) -> None:
    if clients is None:
        return
    if pair is None or clients.dtype != torch.int64 or clients.shape != (len(pair[1]),):
        raise InvalidInput(
            f"{data.name}: {what} must be an int64 tensor, one per sample, got {clients.dtype} of shape {list(clients.shape)}"
        )
    low, high, names = int(clients.min()), int(clients.max()), len(data.client_names)
    if low < lowest or high >= names:
        raise InvalidInput(f"{data.name}: {what} go from {low} to {high} for {names} client names")
