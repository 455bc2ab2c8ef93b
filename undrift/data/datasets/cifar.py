"""CIFAR-10 and CIFAR-100 in their binary version (the Python version is a pickle)."""

import lzma
import math
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.datasets.common import check_labels
from undrift.data.registry import Data, dataset
from undrift.data.transforms import Normalise

# as published with the files
_CHECKSUMS: dict[str, str] = {
    "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
    "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
    "cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8",
}
_URL = "https://www.cs.toronto.edu/~kriz/"
IMAGE_SHAPE = (3, 32, 32)


@dataset("cifar10", about="CIFAR-10 (Krizhevsky 2009), binary version; no licence stated, cite the report")
def cifar10() -> Data:
    """CIFAR-10, binary version: uint8 [50000, 3, 32, 32] and [10000, 3, 32, 32], no natural clients.

    Read from the folder cifar-10-batches-bin, or else from cifar-10-binary.tar.gz.
    """
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    contents, files = _read_files("cifar10", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", names)
    *batches, test = (read_records(*item, label_bytes=1, label=0, classes=10) for item in contents.items())
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    prepare = Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    checksums = store.checksums(files)
    return Data("cifar10", (images, labels), test, classes=10, prepare=prepare, checksums=checksums)


@dataset("cifar100", about="CIFAR-100 (Krizhevsky 2009), binary version; no licence stated, cite the report")
def cifar100(labels: str = "fine") -> Data:
    """CIFAR-100, binary version: as CIFAR-10, with 100 "fine" or 20 "coarse" classes.

    Read from the folder cifar-100-binary, or else from cifar-100-binary.tar.gz.
    """
    if labels not in ("fine", "coarse"):
        raise InvalidInput(f"cifar100: labels must be 'fine' or 'coarse', got {labels!r}")
    label, classes = (1, 100) if labels == "fine" else (0, 20)
    contents, files = _read_files("cifar100", "cifar-100-binary", "cifar-100-binary.tar.gz", ["train.bin", "test.bin"])
    train, test = (read_records(*item, label_bytes=2, label=label, classes=classes) for item in contents.items())
    prepare = Normalise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    checksums = store.checksums(files)
    return Data("cifar100", train, test, classes=classes, prepare=prepare, checksums=checksums)


def read_records(name: str, content: bytes, *, label_bytes: int, label: int, classes: int) -> tuple[Tensor, Tensor]:
    """Records of the binary version: label bytes, of which `label` is the one wanted, then the pixels."""
    size = label_bytes + math.prod(IMAGE_SHAPE)
    if len(content) == 0 or len(content) % size:
        raise InvalidInput(f"{name}: {len(content)} bytes are not a number of records of {size} bytes: get it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, label].astype(np.int64)
    check_labels(name, labels, classes)
    pixels = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *IMAGE_SHAPE)
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def _read_files(dataset: str, folder: str, archive: str, names: Sequence[str]) -> tuple[dict[str, bytes], list[Path]]:
    """The contents of the binary files, and the files on disk they were read from."""
    located = [store.locate(dataset, (f"{folder}/{name}", name)) for name in names]
    files = [path for path in located if path is not None]
    if len(files) == len(names):
        for path in files:
            store.verify_checksum(path, _CHECKSUMS.get(path.name))
        return {path.name: store.read_bytes(path) for path in files}, files
    path = store.find(
        dataset,
        archive,
        known_hash=_CHECKSUMS.get(archive),
        url=_URL + archive,
        hint=f"its files, unpacked in a folder {folder}, will do too",
    )
    return _read_tar(path, names), [path]


def _read_tar(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of the files of these names, in whatever folder of the archive they are."""
    contents = dict.fromkeys(names, b"")
    absent = set(contents)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if name in contents and (file := tar.extractfile(member)) is not None:
                    store.check_unpacked(archive, member.size)
                    contents[name] = file.read()
                    absent.discard(name)
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise store.damaged(archive, error) from error
    if absent:
        raise InvalidInput(f"{archive} does not contain {', '.join(sorted(absent))}: get the binary version")
    return contents
