"""Google Landmarks v2 by photographer and iNaturalist by user: mapping tables beside folders of image files."""

import csv
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.core.bounds import check_memory
from undrift.core.errors import InvalidInput, first_line
from undrift.core.hyper import check_value
from undrift.data import store
from undrift.data.datasets.common import check_labels, number_clients
from undrift.data.registry import Data, dataset
from undrift.data.transforms import Normalise

LICENCE = "split of Hsu, Qi & Brown 2020; the images have licences of their own"
_HINT = (
    "the tables are linked from "
    "https://github.com/google-research/google-research/tree/master/federated_vision_datasets"
)
MOST_CLASSES, LARGEST_SIDE = 1_000_000, 4096
DAMAGED = (struct.error, IndexError, TypeError, EOFError)  # what Pillow may raise besides
IMAGE_FOLDERS = ("train", "train_val_images", "images")

Locate = Callable[[str], Path | None]  # image_id -> path within the folder of images


@dataclass(frozen=True)
class ImageFiles:
    """Row numbers to images [..., 3, size, size], read from their files, so that data may be larger than memory.

    The shorter side is scaled to `size`, the middle is cut out, and channels are normalised (ImageNet's numbers).
    """

    paths: tuple[Path, ...] = field(repr=False)
    size: int = 224
    normalise: Normalise = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    def __call__(self, batch: Tensor) -> Tensor:
        pixels = [_read_pixels(self.paths[row], self.size) for row in batch.flatten().tolist()]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(batch.device)
        return self.normalise(images).reshape(*batch.shape, 3, self.size, self.size)


@dataset("gldv2", about=f"Google Landmarks v2 by photographer, {LICENCE}", clients=1262)
def gldv2(
    train: str = "federated_train.csv", test: str | None = "test.csv", images: str | Path | None = None, size: int = 224
) -> Data:
    """Google Landmarks v2 by photographer: a mapping table beside the images, which are read batch by batch.

    train, test   tables with the columns user_id (train only), image_id, class; test=None: no test data
    images        the folder with a/b/c/abc....jpg; by default the sub-folder `train` or `images` of the data set
    size          images come as [3, size, size]

    The published tables of Landmarks-User-160k have 164,172 images of 2,028 classes by 1,262 photographers.
    """
    return _read("gldv2", "landmarks-user-160k", train, test, images, size, lambda _: _landmark)


@dataset("inaturalist", about=f"iNaturalist 2017 by user, {LICENCE}", clients=9275)
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
    return _read("inaturalist", "inaturalist-user-120k", train, test, images, size, _index_names)


def read_mapping(path: Path, *, users: bool) -> tuple[list[str], np.ndarray, list[str]]:
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
                raise InvalidInput(f"{path}, line {number}: no {column}; every row needs {', '.join(columns)}")
        label = row["class"].strip()
        if not label.isdecimal() or len(label) > 9 or int(label) >= MOST_CLASSES:
            raise InvalidInput(
                f"{path}, line {number}: class must be 0, 1, 2, ..., below {MOST_CLASSES:,}, got {label[:40]!r}"
            )
    classes = np.array([int(row["class"]) for row in rows], dtype=np.int64)
    ids = [row["image_id"].strip() for row in rows]
    return ids, classes, [row["user_id"].strip() for row in rows] if users else []


def _read(
    dataset: str,
    unzipped: str,  # the folder of the published archive
    train: str,
    test: str | None,
    images: str | Path | None,
    size: int,
    locator: Callable[[Path], Locate],
) -> Data:
    check_value(dataset, "size", size, int, within=f"[1, {LARGEST_SIDE}]")
    tables = [store.find(dataset, train, aliases=[f"{unzipped}/{train}"], hint=_HINT)]
    folder = _image_folder(dataset, images)
    ids, labels, users = read_mapping(tables[0], users=True)
    clients, names = number_clients(users)
    classes, n, held_out = int(labels.max()) + 1, len(ids), None
    if test:
        # test.csv is a name that anything may have: only the one beside the training table will do
        tables.append(tables[0].parent / test)
        if not tables[1].is_file():
            raise store.DataMissing(f"{dataset}: {test} is not beside {tables[0]}; {_HINT}; or give test=None")
        test_ids, test_labels, _ = read_mapping(tables[1], users=False)
        check_labels(tables[1], test_labels, classes)
        ids += test_ids
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
        torch.from_numpy(clients),
        None,  # the published test tables name no users
        names,
        classes=classes,
        prepare=ImageFiles(paths, size),
        checksums=store.checksums(tables),
    )


def _image_folder(dataset: str, configured: str | Path | None) -> Path:
    if configured is not None:
        if not Path(configured).is_dir():
            raise InvalidInput(f"{dataset}: images={str(configured)!r} is not a folder")
        return Path(configured)
    folder = store.locate_folder(dataset, IMAGE_FOLDERS)
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


def _index_names(folder: Path) -> Locate:
    """Find an image of a folder by its path or its file name, with or without the ending."""
    paths: dict[str, list[Path]] = {}
    for base, _, names in sorted(os.walk(folder)):
        for path in (Path(base, name).relative_to(folder) for name in sorted(names)):
            keys = (path.as_posix(), path.with_suffix("").as_posix(), path.stem, path.name)
            for key in dict.fromkeys(keys):
                paths.setdefault(key, []).append(path)

    def locate(image_id: str) -> Path | None:
        matches = paths.get(image_id, [])
        if len(matches) > 1:
            raise InvalidInput(
                f"inaturalist: image_id {image_id!r} is both {matches[0]} and {matches[1]} in {folder}: "
                "give paths in the table"
            )
        return matches[0] if matches else None

    return locate


def _read_pixels(path: Path, size: int) -> np.ndarray:
    """The middle of an image as uint8 [size, size, 3]."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, MemoryError, *DAMAGED) as error:
        raise InvalidInput(f"{path} is not an image that can be read ({first_line(error)}): get it again") from error
    scale = size / min(rgb.size)
    width, height = (max(size, round(side * scale)) for side in rgb.size)
    check_memory(f"{path}, {rgb.width} x {rgb.height},", 3.0 * width * height, "leave it out of the table")
    left, top = (width - size) // 2, (height - size) // 2
    resized = rgb.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + size, top + size)))
