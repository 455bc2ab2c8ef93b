"""Human activity from smartphones by person (UCI HAPT): signals of an accelerometer and a gyroscope in windows."""

import re
import struct
import zipfile
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np

from undrift.core.errors import InvalidInput, first_line
from undrift.data import store
from undrift.data.datasets.common import number_clients, split_train_test
from undrift.data.registry import Data, dataset

_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/00341/HAPT%20Data%20Set.zip"
UNZIPPING = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, struct.error)  # what it may raise
WINDOW, HOP = 128, 64  # rows of a window, and from one to the next
# what an integer of the compact file stands for: g, and rad/s
SENSOR_UNITS = np.array([1 / 720] * 3 + [10.00841617584229 / 32768] * 3)


@dataset(
    "hapt",
    about="HAPT smartphone activity by person (Reyes-Ortiz et al.), UCI Machine Learning Repository; "
    "CC BY 4.0, the authors' note says no commercial use",
    clients=30,
)
def hapt() -> Data:
    """HAPT activity by person: float32 [n, 6, 128], 12 classes, 30 clients.

    Channels are accelerometer x, y, z in g and gyroscope x, y, z in rad/s, 128 rows at 50 Hz, as recorded (not
    standardised).  Each labelled segment is cut into windows with half overlap, 10,929 in all.  Of each person's windows,
    in the order of time, five in a row of every fifty are for testing, so that only the outer two share half their rows
    with training windows; which five shifts from person to person, as all of them did the same things in turn.  Read from
    UCI's folder RawData, its zip, or a compact npz of the same rows.
    """
    labels = store.locate("hapt", ["RawData/labels.txt", "HAPT Data Set/RawData/labels.txt"])
    if labels is not None:
        source, files = labels.parent, sorted(labels.parent.glob("*.txt"))
    else:
        aliases = ["hapt_int16.npz", "har/hapt_int16.npz"]
        source = store.find("hapt", "HAPT Data Set.zip", url=_URL, aliases=aliases)
        files = [source]
    signals, segments = read_npz(source) if source.suffix == ".npz" else read_raw(source)
    windows = [
        (begin, label, person)
        for end, (rows, label, person) in zip(segments[:, 0].cumsum(), segments, strict=True)
        for begin in range(end - rows, end - WINDOW + 1, HOP)
    ]
    if not windows:
        raise InvalidInput(f"{files[0]}: no segment has {WINDOW} rows")
    begins, classes, people = np.array(windows).T
    X = signals[begins[:, None] + np.arange(WINDOW)].transpose(0, 2, 1)
    clients, names = number_clients(people)
    test = (_rank_within(clients) // 5 + clients) % 10 == 0
    return split_train_test("hapt", X, classes - 1, clients, names, test, files, classes=12)


def read_raw(source: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labelled rows [n, 6], and (length, label 1 to 12, person) of each segment; from the folder RawData or the zip."""
    table = _read_matrix(source, "labels.txt", 5)
    if (np.abs(table) > 2**31).any() or ((segments := table.astype(np.int64)) != table).any():
        raise InvalidInput(f"{source}, labels.txt: experiment, user, label, start, end are integers")
    recordings: dict[tuple[int, int], np.ndarray] = {}
    parts = []
    for number, (experiment, person, _, start, end) in enumerate(segments.tolist(), start=1):
        key = experiment, person
        if key not in recordings:
            recordings[key] = _read_recording(source, *key)
        rows = recordings[key]
        if not 1 <= start <= end <= len(rows):
            raise InvalidInput(
                f"{source}, labels.txt, line {number}: rows {start} to {end}, "
                f"but the recording has rows 1 to {len(rows)}"
            )
        parts.append(rows[start - 1 : end])
    lengths = [len(part) for part in parts]
    columns = np.stack([lengths, segments[:, 2], segments[:, 1]], axis=1)
    return np.concatenate(parts), _check_segments(source, columns)


def read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The same from the compact file: integer counts x [6, n], and seg_len, seg_label, seg_user of each segment."""
    names = ("x", "seg_len", "seg_label", "seg_user")
    try:
        # opened here: numpy leaves a damaged file open
        with path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
            store.check_unpacked(path, sum(entry.file_size for entry in archive.infolist()))
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                x, *columns = (file[name] for name in names)
    except InvalidInput:
        raise
    except (OSError, ValueError, KeyError, EOFError, MemoryError, *UNZIPPING) as error:
        said = first_line(error)[:80]
        raise InvalidInput(f"{path} is not a whole npz file with {', '.join(names)} ({said}): get it again") from error
    if x.dtype.kind not in "iuf" or not all(part.dtype.kind in "iu" for part in columns):
        raise InvalidInput(f"{path}: {', '.join(names)} must be numbers, the last three whole ones: get it again")
    lengths, labels, people = columns
    if any(part.ndim != 1 or not len(part) for part in columns) or (lengths < 1).any():
        raise InvalidInput(f"{path}: segments need a length of 1 or more, a label and a user each: get it again")
    if x.ndim != 2 or len(x) != 6 or lengths.sum() != x.shape[1]:
        raise InvalidInput(
            f"{path}: x has shape {list(x.shape)}, the segments have {int(lengths.sum())} rows; x must be [6, all rows]"
        )
    if not len(lengths) == len(labels) == len(people):
        raise InvalidInput(f"{path}: {len(lengths)} lengths, {len(labels)} labels and {len(people)} users of segments")
    segments = np.stack([column.astype(np.int64) for column in columns], axis=1)
    return (x.T * SENSOR_UNITS).astype(np.float32), _check_segments(path, segments)


def _read_recording(source: Path, experiment: int, person: int) -> np.ndarray:
    """The rows of one experiment: accelerometer, gyroscope."""
    names = [f"{sensor}_exp{experiment:02d}_user{person:02d}.txt" for sensor in ("acc", "gyro")]
    acc, gyro = (_read_matrix(source, name, 3) for name in names)
    if len(acc) != len(gyro):
        raise InvalidInput(f"{source}: {names[0]} has {len(acc)} rows and {names[1]} {len(gyro)}: get them again")
    return np.concatenate([acc, gyro], axis=1).astype(np.float32)


def _read_matrix(source: Path, name: str, width: int) -> np.ndarray:
    """A file of RawData with `width` numbers on each line."""
    content = _read_file(source, name)
    if not content.strip():
        raise InvalidInput(f"{source}, {name} is empty: get it again")
    try:
        table = np.loadtxt(BytesIO(content), ndmin=2)
    except ValueError as error:
        raise InvalidInput(f"{source}, {name} is not a table of numbers ({error}): get it again") from error
    if table.shape[1] != width or not np.isfinite(table).all():
        raise InvalidInput(
            f"{source}, {name}: lines must have {width} finite numbers, got {table.shape[1]} columns"
            + ("" if np.isfinite(table).all() else " and NaN or Inf")
        )
    return table


def _read_file(source: Path, name: str) -> bytes:
    """A file of RawData, be that a folder or in a zip."""
    if source.is_dir():
        return store.read_bytes(source / name)
    pattern = re.compile(rf"(^|/)RawData/{re.escape(name)}$")
    try:
        with zipfile.ZipFile(source) as archive:
            (entry,) = (each for each in archive.infolist() if pattern.search(each.filename))
            store.check_unpacked(source, entry.file_size)
            return archive.read(entry)
    except InvalidInput:
        raise
    except ValueError as error:  # none, or several
        raise InvalidInput(f"{source} does not contain RawData/{name}: get it again") from error
    except (OSError, EOFError, *UNZIPPING) as error:
        raise store.damaged(source, error) from error


def _check_segments(source: Path, segments: np.ndarray) -> np.ndarray:
    _, labels, people = segments.T
    if labels.min() < 1 or labels.max() > 12:
        raise InvalidInput(f"{source}: labels go from {labels.min()} to {labels.max()}, allowed are 1 to 12")
    if people.min() < 1:
        raise InvalidInput(f"{source}: people are numbered from 1, got {people.min()}")
    return segments


def _rank_within(clients: np.ndarray) -> np.ndarray:
    """The position of each sample among those of its client, from 0."""
    rank = np.zeros(len(clients), dtype=np.int64)
    for client in np.unique(clients):
        samples = np.flatnonzero(clients == client)
        rank[samples] = np.arange(len(samples))
    return rank
