"""LIBSVM's sparse text format, and its data sets a9a, w8a and mushrooms."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.core.bounds import check_memory
from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.registry import Data, dataset

_SOURCE = "LIBSVM data sets (Chang & Lin)"
_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataset("a9a", about=f"a9a, {_SOURCE}, from UCI Adult; CC BY 4.0")
def a9a(test: bool = False) -> Data:
    """LIBSVM's a9a: float32 [32561, 123], labels 0 and 1; test=True: also the 16,281 rows of a9a.t."""
    return _read_binary("a9a", 123, test)


@dataset("w8a", about=f"w8a, {_SOURCE}; no licence stated")
def w8a(test: bool = False) -> Data:
    """LIBSVM's w8a: float32 [49749, 300], labels 0 and 1; test=True: also the 14,951 rows of w8a.t."""
    return _read_binary("w8a", 300, test)


@dataset("mushrooms", about=f"mushrooms, {_SOURCE}, from UCI; CC BY 4.0")
def mushrooms() -> Data:
    """LIBSVM's mushrooms: float32 [8124, 112]; its labels 1 and 2 become 0 and 1."""
    return _read_binary("mushrooms", 112, False)


def libsvm(path: str | Path, features: int | None = None) -> tuple[Tensor, Tensor]:
    """A file in LIBSVM's format, packed with gzip or not: float32 [n, features] and the labels as they are, float32 [n].

    Lines are `label index:value index:value ...`, indices from 1 in any order; features not named are 0.  Without
    `features` there are as many as the largest index.
    """
    # not scikit-learn's reader: it refuses unsorted indices, names no line, and takes a second to import
    path = Path(path)
    rows, columns, values, labels = [], [], [], []
    for number, line in enumerate(store.read_text(path).splitlines(), start=1):
        label, *pairs = line.partition("#")[0].split() or [""]
        if not label:
            continue
        try:
            labels.append(float(label))
            named = [pair.split(":") for pair in pairs]
            indices = [int(index) for index, _ in named]
            values += [float(value) for _, value in named]
        except ValueError as error:
            raise InvalidInput(
                f"{path}, line {number}: lines are `label index:value ...`, got {line[:60]!r}"
            ) from error
        index, times = next(iter(Counter(indices).most_common(1)), (0, 0))
        if times > 1:
            raise InvalidInput(f"{path}, line {number}: index {index} is there twice: each may be given once")
        columns += indices
        rows += [len(labels) - 1] * len(pairs)
    if not labels:
        raise InvalidInput(f"{path} has no rows: get it again")
    largest = float(np.finfo(np.float32).max)
    if not all(abs(value) <= largest for value in (*values, *labels)):
        raise InvalidInput(f"{path} has NaN or Inf, or numbers beyond float32: clean the file")
    low, high = min(columns, default=1), max(columns, default=0)
    width = high if features is None else features
    if low < 1:
        raise InvalidInput(f"{path}: indices are counted from 1, got {low}")
    if high > width:
        raise InvalidInput(f"{path}: an index is {high}, allowed are 1 to {width}")
    check_memory(f"{path}: {len(labels)} rows of {width} features", 4.0 * len(labels) * width, "is an index wrong?")
    X = np.zeros((len(labels), width), dtype=np.float32)
    X[rows, np.array(columns, dtype=np.int64) - 1] = values
    return torch.from_numpy(X), torch.tensor(labels, dtype=torch.float32)


def _read_binary(name: str, features: int, test: bool) -> Data:
    """A data set of two classes, which become 0 and 1 in the order of their labels."""
    names = [name, f"{name}.t"] if test else [name]
    aliases = ("{}.txt", "{}.libsvm", "{}.libsvm.gz", "tabular/{}.libsvm.gz")
    files = [store.find(name, file, url=_URL, aliases=aliases) for file in names]
    tables = [libsvm(file, features) for file in files]
    kinds = tables[0][1].unique()  # sorted
    if len(kinds) != 2:
        raise InvalidInput(f"{files[0]}: labels {kinds.tolist()[:5]} are not two classes")
    for file, (_, labels) in zip(files, tables, strict=True):
        if not bool(torch.isin(labels, kinds).all()):
            raise InvalidInput(f"{file}: labels must be {kinds.tolist()}, as in {files[0].name}")
    pairs = [(X, (labels == kinds[1]).long()) for X, labels in tables]
    checksums = store.checksums(files)
    return Data(name, pairs[0], pairs[1] if test else None, classes=2, checksums=checksums)
