"""MNIST, Fashion-MNIST, and MNIST with its writers (from QMNIST) as clients: files in the idx format."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.datasets.common import check_labels, look_up_clients, number_clients
from undrift.data.registry import Data, dataset
from undrift.data.transforms import Normalise

# as published with the files
_CHECKSUMS: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        "qmnist-train-labels-idx2-int.gz": "md5:0058f8dd561b90ffdd0f734c6a30e5e4",
        "qmnist-test-labels-idx2-int.gz": "md5:5b5b05890a5e13444e108efe57b788aa",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
}
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
QMNIST_URL = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

IDX_TYPES = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}
WRITER = 2  # column of the QMNIST tables; column 0 is the class
NORMALISE = Normalise((0.1307,), (0.3081,))


@dataset("mnist", about="MNIST (LeCun, Cortes, Burges); commonly given as CC BY-SA 3.0")
def mnist() -> Data:
    """MNIST: uint8 [60000, 1, 28, 28] and [10000, 1, 28, 28], 10 classes, no natural clients."""
    train, test, files = _read_split("mnist", MNIST_URL, "MNIST")
    checksums = store.checksums(files)
    return Data("mnist", train, test, classes=10, prepare=NORMALISE, checksums=checksums)


@dataset("fashion-mnist", about="Fashion-MNIST (Zalando Research); MIT licence")
def fashion_mnist() -> Data:
    """Fashion-MNIST: as MNIST, with clothes."""
    train, test, files = _read_split("fashion-mnist", FASHION_URL, "FashionMNIST")
    prepare, checksums = Normalise((0.2860,), (0.3530,)), store.checksums(files)
    return Data("fashion-mnist", train, test, classes=10, prepare=prepare, checksums=checksums)


@dataset(
    "mnist-writers",
    about="MNIST by writer: MNIST (LeCun, Cortes, Burges), commonly given as CC BY-SA 3.0; "
    "writers from QMNIST (Yadav & Bottou 2019), BSD licence",
    clients=539,
)
def mnist_writers() -> Data:
    """MNIST with its writers as clients: 539 of them, 19 to 131 digits each.

    The test digits are by other writers, so that all `test_clients` are -1; `read_writers` reads who they are.
    """
    train, test, files = _read_split("mnist", MNIST_URL, "MNIST")
    tables = [
        _find("mnist", f"qmnist-{part}-labels-idx2-int.gz", QMNIST_URL, "MNIST", "QMNIST") for part in ("train", "test")
    ]
    clients, names = number_clients(read_writers(tables[0], train[1].numpy()))
    return Data(
        "mnist-writers",
        train,
        test,
        torch.from_numpy(clients),
        look_up_clients(read_writers(tables[1], test[1].numpy()), names),
        names,
        classes=10,
        prepare=NORMALISE,
        checksums=store.checksums([*files, *tables]),
    )


def read_writers(path: Path, labels: np.ndarray) -> np.ndarray:
    """The NIST writer of each MNIST digit, from a QMNIST table, whose first rows are MNIST's.

    labels   MNIST's own, which the table must repeat
    """
    table = read_idx(path)
    if table.ndim != 2 or table.shape[1] <= WRITER or len(table) < len(labels):
        raise InvalidInput(
            f"{path}: a table of shape {list(table.shape)} has no writers for {len(labels)} digits: "
            "get the QMNIST table again"
        )
    rows = table[: len(labels)]
    wrong = np.flatnonzero(rows[:, 0] != labels)
    if len(wrong):
        raise InvalidInput(
            f"{path}: {len(wrong)} classes are not those of the MNIST labels, the first in row {wrong[0]}: "
            "the two files do not belong together"
        )
    unknown = np.flatnonzero(rows[:, WRITER] < 0)
    if len(unknown):
        raise InvalidInput(f"{path}: row {unknown[0]} has no writer: get the QMNIST table again")
    return rows[:, WRITER]


def read_idx(path: Path) -> np.ndarray:
    """An array in the idx format of MNIST (bytes or 32-bit integers), packed with gzip or not."""
    content = store.read_bytes(path)
    kind, dimensions = (content[2], content[3]) if len(content) >= 4 else (0, 0)
    if content[:2] != b"\0\0" or kind not in IDX_TYPES or not 0 < dimensions <= 4:
        raise InvalidInput(
            f"{path} is not an idx file: it begins with {content[:4].hex() or 'nothing'}, "
            "allowed are 0000 08 (bytes) and 0000 0c (integers), then the number of dimensions, 1 to 4"
        )
    begin, dtype = 4 + 4 * dimensions, IDX_TYPES[kind]
    if len(content) < begin:
        raise InvalidInput(f"{path} ends within its header: get it again")
    shape = tuple(np.frombuffer(content, ">u4", dimensions, offset=4).tolist())
    if len(content) - begin != math.prod(shape) * dtype.itemsize:
        raise InvalidInput(
            f"{path}: the header promises {list(shape)} numbers of {dtype.itemsize} bytes, "
            f"but {len(content) - begin} bytes follow: get it again"
        )
    array = np.frombuffer(content, dtype, offset=begin).reshape(shape)
    return array.astype(dtype.newbyteorder("="))  # a copy, because bytes are read-only


def read_images(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Two idx files as uint8 [n, 1, h, w] and int64 [n]."""
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise InvalidInput(f"{images}: images are bytes [n, h, w], got shape {list(pixels.shape)}")
    if classes.ndim != 1 or len(classes) != len(pixels):
        raise InvalidInput(
            f"{labels} has labels of shape {list(classes.shape)} for the {len(pixels)} images of {images}: "
            "the two files do not belong together"
        )
    check_labels(labels, classes, 10)
    return torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(classes.astype(np.int64))


def _read_split(
    dataset: str, url: str, torchvision: str
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], list[Path]]:
    """Train, test and the files they were read from."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    names = [f"{part}-{kind}.gz" for part in ("train", "t10k") for kind in kinds]
    files = [_find(dataset, name, url, torchvision) for name in names]
    return read_images(*files[:2]), read_images(*files[2:]), files


def _find(dataset: str, name: str, url: str, *torchvision: str) -> Path:
    """A file, which may also be in a folder where torchvision keeps it."""
    aliases = [f"{folder}/raw/{name}" for folder in torchvision]
    known_hash = _CHECKSUMS.get(dataset, {}).get(name)
    return store.find(dataset, name, known_hash=known_hash, url=url, aliases=aliases)
