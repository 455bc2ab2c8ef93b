"""The data sets by name: `load("mnist")`.

    data = load("mnist-writers")
    problem = ud.federate(data, model=..., loss=..., clients=ud.Natural())

Readers are imported when they are asked for, and with them h5py, Pillow and scikit-learn.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, unknown

Read = TypeVar("Read", bound=Callable[..., Any])

IGNORED = -100  # a target to leave out, as torch's losses have it


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, read: one copy, compact; `prepare` makes model inputs of a batch.

    train, test     inputs and targets; uint8 images, integer codes or float32 tables; class targets are int64
    clients         the natural client of every training sample, 0 to n - 1, or None if there is none
    test_clients    likewise for test samples; -1 is a client that is not in train
    client_names    what the source calls client 0, 1, ...
    classes         how many, None for regression
    prepare         what turns a batch of stored inputs, with any leading dimensions, into model inputs
    checksums       name -> sha256 of the files that were read
    about           source and licence
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None
    clients: Tensor | None = None
    test_clients: Tensor | None = None
    client_names: tuple[str, ...] = ()
    classes: int | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    checksums: dict[str, str] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        _check_pair(self.name, "train", self.train, self.classes)
        _check_clients(self.name, "clients", self.clients, self.train, 0, len(self.client_names))
        if self.test is not None:
            _check_pair(self.name, "test", self.test, self.classes)
        _check_clients(
            self.name, "test_clients", self.test_clients, self.test, -1, len(self.client_names)
        )


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and which function reads it (of which module here, or itself)."""

    module: str
    function: str | Callable[..., Data]
    about: str


_UCI = "UCI Machine Learning Repository"
_LIBSVM = "LIBSVM data sets (Chang & Lin)"
_VISION = "split of Hsu, Qi & Brown 2020; the images have licences of their own"

DATASETS: dict[str, Source] = {
    "mnist": Source(
        "images", "mnist", "MNIST (LeCun, Cortes, Burges); commonly given as CC BY-SA 3.0"
    ),
    "fashion-mnist": Source(
        "images", "fashion_mnist", "Fashion-MNIST (Zalando Research); MIT licence"
    ),
    "mnist-writers": Source(
        "images",
        "mnist_writers",
        "MNIST by writer: MNIST (LeCun, Cortes, Burges), commonly given as CC BY-SA 3.0; "
        "writers from QMNIST (Yadav & Bottou 2019), BSD licence",
    ),
    "cifar10": Source(
        "images",
        "cifar10",
        "CIFAR-10 (Krizhevsky 2009), binary version; no licence stated, cite the report",
    ),
    "cifar100": Source(
        "images",
        "cifar100",
        "CIFAR-100 (Krizhevsky 2009), binary version; no licence stated, cite the report",
    ),
    "gldv2": Source("images", "gldv2", f"Google Landmarks v2 by photographer, {_VISION}"),
    "inaturalist": Source("images", "inaturalist", f"iNaturalist 2017 by user, {_VISION}"),
    "shakespeare": Source(
        "text",
        "shakespeare",
        "LEAF Shakespeare by speaking role, from Project Gutenberg etext 100; "
        "that edition is not for commercial distribution",
    ),
    "tinyshakespeare": Source(
        "text", "tinyshakespeare", "tinyshakespeare of char-rnn (Karpathy); public domain"
    ),
    "stackoverflow": Source(
        "text", "stackoverflow", "Stack Overflow by user, published by TFF; CC BY-SA 3.0"
    ),
    "digits": Source(
        "tables",
        "digits",
        f"the digits of scikit-learn: test part of {_UCI}, Optical Digits; CC BY 4.0",
    ),
    "hapt": Source(
        "tables",
        "hapt",
        f"HAPT smartphone activity by person (Reyes-Ortiz et al.), {_UCI}; CC BY 4.0, "
        "the authors' note says no commercial use",
    ),
    "heart": Source("tables", "heart", f"Heart Disease by hospital, {_UCI}; CC BY 4.0"),
    "parkinsons": Source(
        "tables", "parkinsons", f"Parkinson's Telemonitoring by patient, {_UCI}; CC BY 4.0"
    ),
    "adult": Source("tables", "adult", f"Adult, {_UCI}; CC BY 4.0"),
    "a9a": Source("tables", "a9a", f"a9a, {_LIBSVM}, from UCI Adult; CC BY 4.0"),
    "w8a": Source("tables", "w8a", f"w8a, {_LIBSVM}; no licence stated"),
    "synthetic": Source(
        "synthetic",
        "synthetic",
        "Synthetic(a, b) of LEAF and FedProx (Li et al. 2020): made, not read",
    ),
    "mushrooms": Source("tables", "mushrooms", f"mushrooms, {_LIBSVM}, from UCI; CC BY 4.0"),
}


def dataset(name: str, about: str = "") -> Callable[[Read], Read]:
    """Register a function that returns a `Data` as a data set that `load` and experiments know by name.

    >>> @dataset("coin", about="an example")
    ... def coin(tosses: int = 4) -> Data:
    ...     inputs = torch.zeros(tosses, 1)
    ...     return Data("coin", (inputs, torch.arange(tosses) % 2), None, classes=2)
    >>> load("coin", tosses=6).train[1]
    tensor([0, 1, 0, 1, 0, 1])
    >>> DATASETS.pop("coin").about
    'an example'
    """

    def register(read: Read) -> Read:
        known = DATASETS.get(name)
        if known and getattr(known.function, "__qualname__", None) != read.__qualname__:
            raise InvalidInput(f"there is a data set {name!r} already: choose another name")
        DATASETS[name] = Source("", read, about)
        return read

    return register


def reader(name: str) -> Callable[..., Data]:
    """The function that reads a data set; its parameters are the options."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    source = DATASETS[name]
    if callable(source.function):
        return source.function
    return getattr(import_module(f"undrift.data.{source.module}"), source.function)


def load(name: str, **options: Any) -> Data:
    """Read a data set; its files are found, checked and, where they have a home on the web, downloaded.

    Options are those of the reader, e.g. load("cifar100", labels="coarse").

    >>> data = load("digits")
    >>> list(data.train[0].shape), list(data.test[0].shape), data.classes
    ([1500, 1, 8, 8], [297, 1, 8, 8], 10)
    >>> data.prepare(data.train[0][:2]).dtype
    torch.float32
    """
    read = reader(name)
    check_options(name, options)
    return read(**options)


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse an option that a data set's reader does not have."""
    allowed = signature(reader(name)).parameters
    for option in options:
        if option not in allowed:
            if not allowed:
                raise InvalidInput(f"{name} has no options, got {option!r}: leave it out")
            raise unknown(f"option of {name}:", option, allowed)


def _check_pair(name: str, part: str, pair: tuple[Tensor, Tensor], classes: int | None) -> None:
    inputs, targets = pair
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise InvalidInput(
            f"{name}: {part} has {len(inputs)} inputs and {len(targets)} targets: give one target an input"
        )
    for what, values in (("inputs", inputs), ("targets", targets)):
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise InvalidInput(f"{name}: {part} {what} have NaN or Inf: clean the source file")
    if classes is None:
        return
    if targets.dtype != torch.int64:
        raise InvalidInput(f"{name}: class targets must be int64, {part} has {targets.dtype}")
    real = targets[targets != IGNORED]
    low, high = int(real.min()), int(real.max())
    if low < 0 or high >= classes:
        raise InvalidInput(
            f"{name}: {part} labels go from {low} to {high}, allowed are 0 to {classes - 1}"
        )


def _check_clients(
    name: str,
    what: str,
    clients: Tensor | None,
    pair: tuple[Tensor, Tensor] | None,
    low: int,
    n: int,
) -> None:
    if clients is None:
        return
    if pair is None or clients.dtype != torch.int64 or clients.shape != (len(pair[0]),):
        raise InvalidInput(
            f"{name}: {what} must be int64, one a sample, got {clients.dtype} of shape {list(clients.shape)}"
        )
    if int(clients.min()) < low or int(clients.max()) >= n:
        raise InvalidInput(
            f"{name}: {what} go from {int(clients.min())} to {int(clients.max())} for {n} client names"
        )
