"""Readers of images: MNIST and its kin, CIFAR, and tables of image files (GLDv2, iNaturalist)."""

import csv
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.registry import DATASETS, Data

# published by the homes of the files
MD5: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4",
        "qmnist-test-labels-idx2-int.gz": "5b5b05890a5e13444e108efe57b788aa",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "cifar10": {
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    "cifar100": {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
}
MNIST_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
QMNIST_HOME = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
FASHION_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"
VISION_HOME = (
    "the tables are linked from "
    "https://github.com/google-research/google-research/tree/master/federated_vision_datasets"
)

IDX_TYPES = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}
WRITER = 2  # column of the QMNIST tables; column 0 is the class
PIXELS = (3, 32, 32)  # of CIFAR
IMAGE_FOLDERS = ("train", "train_val_images", "images")
TABLE_FOLDERS = {"gldv2": "landmarks-user-160k", "inaturalist": "inaturalist-user-120k"}  # unzipped


@dataclass(frozen=True)
class Normalise:
    """Stored numbers [..., C, H, W] to float32: over `scale`, minus mean, over std, channel by channel.

    >>> Normalise((0.5,), (0.5,))(torch.tensor([[[0, 255]]], dtype=torch.uint8))
    tensor([[[-1.,  1.]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0

    def __call__(self, batch: Tensor) -> Tensor:
        mean, std = (
            torch.tensor(v, dtype=torch.float32, device=batch.device)[:, None, None]
            for v in (self.mean, self.std)
        )
        return (batch.float() / self.scale - mean) / std


@dataclass(frozen=True)
class ImageFiles:
    """Row numbers to images [..., 3, size, size], read from their files, so that data may be larger than memory.

    The shorter side is scaled to `size`, the middle is cut out, and channels are normalised (ImageNet's numbers).
    """

    paths: tuple[Path, ...] = field(repr=False)
    size: int = 224
    normalise: Normalise = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    def __call__(self, batch: Tensor) -> Tensor:
        pixels = [_pixels(self.paths[row], self.size) for row in batch.flatten().tolist()]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(batch.device)
        return self.normalise(images).reshape(*batch.shape, 3, self.size, self.size)


def mnist() -> Data:
    """MNIST: uint8 [60000, 1, 28, 28] and [10000, 1, 28, 28], 10 classes, no natural clients."""
    train, test, read = _idx_pairs("mnist", MNIST_HOME, "MNIST/raw")
    return Data(
        "mnist",
        train,
        test,
        classes=10,
        prepare=Normalise((0.1307,), (0.3081,)),
        checksums=store.checksums(read),
        about=DATASETS["mnist"].about,
    )


def fashion_mnist() -> Data:
    """Fashion-MNIST: as MNIST, with clothes."""
    train, test, read = _idx_pairs("fashion-mnist", FASHION_HOME, "FashionMNIST/raw")
    return Data(
        "fashion-mnist",
        train,
        test,
        classes=10,
        prepare=Normalise((0.2860,), (0.3530,)),
        checksums=store.checksums(read),
        about=DATASETS["fashion-mnist"].about,
    )


def mnist_writers() -> Data:
    """MNIST with its writers as clients: 539 of them, 19 to 131 digits each.

    The test digits are by other writers, so that all `test_clients` are -1; `writers` reads who they are.
    """
    train, test, read = _idx_pairs("mnist", MNIST_HOME, "MNIST/raw")
    tables = [_mnist_file(f"qmnist-{part}-labels-idx2-int.gz") for part in ("train", "test")]
    train_writers, test_writers = (
        writers(path, pair[1].numpy()) for path, pair in zip(tables, (train, test), strict=True)
    )
    names, clients = np.unique(train_writers, return_inverse=True)
    return Data(
        "mnist-writers",
        train,
        test,
        torch.from_numpy(clients.astype(np.int64)),
        torch.from_numpy(numbers_of(test_writers, names)),
        tuple(str(name) for name in names),
        classes=10,
        prepare=Normalise((0.1307,), (0.3081,)),
        checksums=store.checksums([*read, *tables]),
        about=DATASETS["mnist-writers"].about,
    )


def writers(path: Path, labels: np.ndarray) -> np.ndarray:
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
    if (rows[:, WRITER] < 0).any():
        row = int(np.flatnonzero(rows[:, WRITER] < 0)[0])
        raise InvalidInput(f"{path}: row {row} has no writer: get the QMNIST table again")
    return rows[:, WRITER]


def numbers_of(values: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The place of each value in the sorted names, -1 for one that is not there.

    >>> numbers_of(np.array([30, 10, 20]), np.array([10, 30])).tolist()
    [1, 0, -1]
    """
    place = np.searchsorted(names, values).clip(max=len(names) - 1)
    return np.where(names[place] == values, place, -1).astype(np.int64)


def read_idx(path: Path) -> np.ndarray:
    """An array in the idx format of MNIST (bytes or 32-bit integers), packed with gzip or not."""
    content = store.read_bytes(path)
    kind, dimensions = (content[2], content[3]) if len(content) >= 4 else (0, 0)
    if content[:2] != b"\0\0" or kind not in IDX_TYPES or dimensions == 0:
        raise InvalidInput(
            f"{path} is not an idx file: it begins with {content[:4].hex() or 'nothing'}, "
            "allowed are 0000 08 (bytes) and 0000 0c (integers), then the number of dimensions"
        )
    begin = 4 + 4 * dimensions
    if len(content) < begin:
        raise InvalidInput(f"{path} ends within its header: get it again")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, offset=4))
    dtype = IDX_TYPES[kind]
    if len(content) - begin != math.prod(shape) * dtype.itemsize:
        raise InvalidInput(
            f"{path}: the header promises {list(shape)} numbers of {dtype.itemsize} bytes, "
            f"but {len(content) - begin} bytes follow: get it again"
        )
    array = np.frombuffer(content, dtype, offset=begin).reshape(shape)
    return array.astype(
        dtype.newbyteorder("=")
    )  # a copy: what comes from bytes cannot be written to


def labelled_images(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Two idx files as uint8 [n, 1, h, w] and int64 [n]."""
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise InvalidInput(f"{images}: images are bytes [n, h, w], got shape {list(pixels.shape)}")
    if classes.ndim != 1 or len(classes) != len(pixels):
        raise InvalidInput(
            f"{labels} has labels of shape {list(classes.shape)} for the {len(pixels)} images of {images}: "
            "the two files do not belong together"
        )
    _check_labels(labels, classes, 10)
    return torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(classes.astype(np.int64))


def cifar10() -> Data:
    """CIFAR-10, binary version: uint8 [50000, 3, 32, 32] and [10000, 3, 32, 32], no natural clients.

    Read from the folder cifar-10-batches-bin, or else from cifar-10-binary.tar.gz.
    """
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    contents, read = _cifar_files(
        "cifar10", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", files
    )
    pairs = [cifar_records(*item, label_bytes=1, label=0, classes=10) for item in contents.items()]
    images, labels = (torch.cat(parts) for parts in zip(*pairs[:-1], strict=True))
    return Data(
        "cifar10",
        (images, labels),
        pairs[-1],
        classes=10,
        prepare=Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        checksums=store.checksums(read),
        about=DATASETS["cifar10"].about,
    )


def cifar100(labels: str = "fine") -> Data:
    """CIFAR-100, binary version: as CIFAR-10, with 100 "fine" or 20 "coarse" classes.

    Read from the folder cifar-100-binary, or else from cifar-100-binary.tar.gz.
    """
    if labels not in ("fine", "coarse"):
        raise InvalidInput(f"cifar100: labels must be 'fine' or 'coarse', got {labels!r}")
    label, classes = (1, 100) if labels == "fine" else (0, 20)
    contents, read = _cifar_files(
        "cifar100", "cifar-100-binary", "cifar-100-binary.tar.gz", ["train.bin", "test.bin"]
    )
    train, test = (
        cifar_records(*item, label_bytes=2, label=label, classes=classes)
        for item in contents.items()
    )
    return Data(
        "cifar100",
        train,
        test,
        classes=classes,
        prepare=Normalise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        checksums=store.checksums(read),
        about=DATASETS["cifar100"].about,
    )


def cifar_records(
    name: str, content: bytes, *, label_bytes: int, label: int, classes: int
) -> tuple[Tensor, Tensor]:
    """Records of CIFAR's binary version: label bytes, of which `label` is the one wanted, then the pixels."""
    size = label_bytes + math.prod(PIXELS)
    if len(content) == 0 or len(content) % size:
        raise InvalidInput(
            f"{name}: {len(content)} bytes are not a number of records of {size} bytes: get it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, label].astype(np.int64)
    _check_labels(name, labels, classes)
    pixels = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *PIXELS)
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def members(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of the files of these names in a tar archive, in whatever folder they are there."""
    wanted = {name: b"" for name in names}
    found: set[str] = set()
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                file = tar.extractfile(member) if name in wanted else None
                if file is not None:
                    wanted[name] = file.read()
                    found.add(name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise store.damaged(archive, error) from error
    if absent := sorted(set(wanted) - found):
        raise InvalidInput(
            f"{archive} does not contain {', '.join(absent)}: get the binary version"
        )
    return wanted


def gldv2(
    train: str = "federated_train.csv",
    test: str | None = "test.csv",
    images: str | Path | None = None,
    size: int = 224,
) -> Data:
    """Google Landmarks v2 by photographer: a mapping table beside the images, which are read batch by batch.

    train, test   tables with the columns user_id (train only), image_id, class; test=None: no test data
    images        the folder with a/b/c/abc....jpg; by default the sub-folder `train` or `images` of the data set
    size          images come as [3, size, size]

    The published tables of Landmarks-User-160k have 164,172 images of 2,028 classes by 1,262 photographers.
    """
    return _image_tables("gldv2", train, test, images, size, lambda folder: _landmark)


def inaturalist(
    train: str = "federated_train_user_120k.csv",
    test: str | None = "test.csv",
    images: str | Path | None = None,
    size: int = 224,
) -> Data:
    """iNaturalist 2017 by user or place: a mapping table beside the images, which are read batch by batch.

    train, test   tables with the columns user_id (train only), image_id, class; test=None: no test data
    images        the folder of images; by default the sub-folder `train_val_images` or `images` of the data set
    size          images come as [3, size, size]

    An image_id is a path in that folder, or the name of a file somewhere in it, with or without its ending.
    The published tables of iNaturalist-User-120k have 120,300 images of 1,203 classes by 9,275 users.
    """
    return _image_tables("inaturalist", train, test, images, size, _by_path_or_stem)


def image_table(path: Path, *, users: bool) -> tuple[list[str], np.ndarray, list[str]]:
    """The columns image_id, class and, if asked for, user_id of a mapping table."""
    try:
        rows = list(csv.DictReader(StringIO(store.read_text(path))))
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a table of commas ({error}): get it again") from error
    columns = ["image_id", "class", *(["user_id"] if users else [])]
    if not rows:
        raise InvalidInput(f"{path} has no rows: get the mapping table again")
    for number, row in enumerate(rows, start=2):  # line 1 is the header
        for column in columns:
            if not (row.get(column) or "").strip():
                raise InvalidInput(
                    f"{path}, line {number}: no {column}; every row needs {', '.join(columns)}"
                )
        if not row["class"].strip().isdecimal():
            raise InvalidInput(
                f"{path}, line {number}: class must be 0, 1, 2, ..., got {row['class']!r}"
            )
    classes = np.array([int(row["class"]) for row in rows], dtype=np.int64)
    ids = [row["image_id"].strip() for row in rows]
    return ids, classes, [row["user_id"].strip() for row in rows] if users else []


def _mnist_file(name: str) -> Path:
    home = QMNIST_HOME if name.startswith("qmnist") else MNIST_HOME
    md5 = MD5.get("mnist", {}).get(name)
    aliases = [f"{folder}/raw/{name}" for folder in ("MNIST", "QMNIST")]
    return store.find("mnist", name, md5=md5, url=home + name, aliases=aliases)


def _idx_pairs(
    dataset: str, home: str, folder: str
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], list[Path]]:
    """Train, test and the files they were read from."""
    names = [
        f"{part}-{what}.gz"
        for part in ("train", "t10k")
        for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    paths = [
        store.find(
            dataset,
            name,
            md5=MD5.get(dataset, {}).get(name),
            url=home + name,
            aliases=[f"{folder}/{name}"],  # where torchvision keeps it
        )
        for name in names
    ]
    return labelled_images(paths[0], paths[1]), labelled_images(paths[2], paths[3]), paths


def _check_labels(source: object, labels: np.ndarray, classes: int) -> None:
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        row = int(np.flatnonzero((labels < 0) | (labels >= classes))[0])
        raise InvalidInput(
            f"{source}: sample {row} has label {labels[row]}, allowed are 0 to {classes - 1}: get it again"
        )


def _cifar_files(
    dataset: str, folder: str, archive: str, files: Sequence[str]
) -> tuple[dict[str, bytes], list[Path]]:
    """The contents of the binary files, and the files on disk they were read from."""
    md5 = MD5.get(dataset, {})
    there = [store.look(dataset, (f"{folder}/{name}", name)) for name in files]
    paths = [path for path in there if path is not None]
    if len(paths) == len(files):
        for path in paths:
            store.verify(path, md5=md5.get(path.name))
        return {path.name: path.read_bytes() for path in paths}, paths
    path = store.find(
        dataset,
        archive,
        md5=md5.get(archive),
        url=CIFAR_HOME + archive,
        home=f"its files, unpacked in a folder {folder}, will do too",
    )
    return members(path, files), [path]


Locate = Callable[[str], Path | None]  # image_id -> path within the folder of images


def _image_tables(
    dataset: str,
    train: str,
    test: str | None,
    images: str | Path | None,
    size: int,
    locator: Callable[[Path], Locate],
) -> Data:
    if size < 1:
        raise InvalidInput(f"{dataset}: size must be 1 or more pixels, got {size}")
    tables = [
        store.find(dataset, train, aliases=[f"{TABLE_FOLDERS[dataset]}/{train}"], home=VISION_HOME)
    ]
    folder = _image_folder(dataset, images)
    ids, labels, users = image_table(tables[0], users=True)
    names, clients = np.unique(users, return_inverse=True)
    classes, n, held_out = int(labels.max()) + 1, len(ids), None
    if test:
        # test.csv is a name that anything may have: only the one beside the training table will do
        tables.append(tables[0].parent / test)
        if not tables[1].is_file():
            raise store.DataMissing(
                f"{dataset}: {test} is not beside {tables[0]}; {VISION_HOME}; or give test=None"
            )
        more, test_labels, _ = image_table(tables[1], users=False)
        _check_labels(tables[1], test_labels, classes)
        ids += more
        held_out = torch.arange(n, len(ids)), torch.from_numpy(test_labels)
    locate = locator(folder)
    paths = tuple(folder / (locate(image_id) or "") for image_id in ids)
    absent = [id_ for id_, path in zip(ids, paths, strict=True) if not path.is_file()]
    if absent:
        raise InvalidInput(
            f"{dataset}: {len(absent)} of {len(paths)} images are not in {folder}, the first is {absent[0]!r}: "
            "get them, or give their folder with images=..."
        )
    return Data(
        dataset,
        (torch.arange(n), torch.from_numpy(labels)),
        held_out,
        torch.from_numpy(clients.astype(np.int64)),
        None,  # the published test tables name no users
        tuple(str(name) for name in names),
        classes=classes,
        prepare=ImageFiles(paths, size),
        checksums=store.checksums(tables),
        about=DATASETS[dataset].about,
    )


def _image_folder(dataset: str, given: str | Path | None) -> Path:
    if given is not None:
        if not Path(given).is_dir():
            raise InvalidInput(f"{dataset}: images={str(given)!r} is not a folder")
        return Path(given)
    folder = store.look_folder(dataset, IMAGE_FOLDERS)
    if folder is None:
        raise store.DataMissing(
            f"{dataset}: no folder of images ({', '.join(IMAGE_FOLDERS)}) in "
            f"{', '.join(str(p) for p in store.folders(dataset) if p.name == dataset)}: "
            "make one or give it with images=..."
        )
    return folder


def _landmark(image_id: str) -> Path:
    """abc123 lies in a/b/c."""
    if len(image_id) < 3 or not image_id.isalnum():
        raise InvalidInput(f"gldv2: image_id must be letters and digits, got {image_id!r}")
    return Path(*image_id[:3], f"{image_id}.jpg")


def _by_path_or_stem(folder: Path) -> Locate:
    files = [
        Path(base, name).relative_to(folder)
        for base, _, names in sorted(os.walk(folder))
        for name in sorted(names)
    ]
    known: dict[str, list[Path]] = {}
    for file in files:
        for name in dict.fromkeys(
            (file.as_posix(), file.with_suffix("").as_posix(), file.stem, file.name)
        ):
            known.setdefault(name, []).append(file)

    def locate(image_id: str) -> Path | None:
        matches = known.get(image_id, [])
        if len(matches) > 1:
            raise InvalidInput(
                f"inaturalist: image_id {image_id!r} is both {matches[0]} and {matches[1]} in {folder}: "
                "give paths in the table"
            )
        return matches[0] if matches else None

    return locate


def _pixels(path: Path, size: int) -> np.ndarray:
    """The middle of an image as uint8 [size, size, 3]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InvalidInput("reading image files needs Pillow: pip install pillow") from error
    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidInput(
            f"{path} is not an image that can be read ({error}): get it again"
        ) from error
    scale = size / min(rgb.size)
    width, height = (max(size, round(side * scale)) for side in rgb.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = rgb.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + size, top + size)))
