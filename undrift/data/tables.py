"""Readers of tables and signals: HAPT, Heart Disease, Parkinson's, Adult, LIBSVM files, digits."""

import math
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.rng import Key, Purpose, generator
from undrift.data import store
from undrift.data.images import Normalise
from undrift.data.registry import DATASETS, Data

SPLIT_SEED = (
    2024  # of every split that the sources do not publish; changing it changes the data sets
)
UCI_HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
LIBSVM_HOME = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"

WINDOW, HOP = 128, 64  # rows of a HAPT window, and from one to the next
# what an integer of the compact HAPT file stands for: g, and rad/s
SENSOR_UNITS = np.array([1 / 720] * 3 + [10.00841617584229 / 32768] * 3)

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART_COLUMNS = 14
HEART_KINDS = {2: (1, 2, 3, 4), 6: (0, 1, 2)}  # kind of chest pain, kind of electrocardiogram
HEART_USED = range(10)  # 10 to 12 are missing in most hospitals

ADULT_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income"
).split()
ADULT_NUMBERS = {
    "age",
    "fnlwgt",
    "education-num",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
}
ADULT_LABELS = {"<=50K": 0, ">50K": 1}


def digits() -> Data:
    """The 1,797 digits of scikit-learn: uint8 [1500, 1, 8, 8] to train and [297, 1, 8, 8] to test, values 0 to 16.

    Shuffled with a fixed seed; no natural clients, no file.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)  # pyright: ignore[reportAttributeAccessIssue]
    labels = torch.from_numpy(bunch.target.astype(np.int64))  # pyright: ignore[reportAttributeAccessIssue]
    order = torch.from_numpy(_random(0).permutation(len(images)))
    train, test = order[:1500], order[1500:]
    return Data(
        "digits",
        (images[train], labels[train]),
        (images[test], labels[test]),
        classes=10,
        prepare=Normalise((0.0,), (1.0,), scale=16.0),
        about=DATASETS["digits"].about,
    )


def hapt() -> Data:
    """HAPT activity by person: float32 [n, 6, 128], 12 classes, 30 clients.

    Channels are accelerometer x, y, z in g and gyroscope x, y, z in rad/s, 128 rows at 50 Hz, as recorded (not
    standardised).  Each labelled segment is cut into windows with half overlap, 10,929 in all.  Of each person's windows,
    in the order of time, five in a row of every fifty are for testing, so that only the outer two share half their rows
    with training windows; which five goes on from person to person, as all of them did the same things in turn.  Read from UCI's folder RawData, its zip, or a compact npz of the same rows.
    """
    labels = store.look("hapt", ["RawData/labels.txt", "HAPT Data Set/RawData/labels.txt"])
    if labels is not None:
        signals, segments, read = *hapt_raw(labels.parent), sorted(labels.parent.glob("*.txt"))
    else:
        path = store.find(
            "hapt",
            "HAPT Data Set.zip",
            url=f"{UCI_HOME}00341/HAPT%20Data%20Set.zip",
            aliases=["hapt_int16.npz", "har/hapt_int16.npz"],
        )
        read = [path]
        signals, segments = hapt_npz(path) if path.suffix == ".npz" else hapt_raw(path)
    cut = [
        (begin, label, person)
        for end, (rows, label, person) in zip(segments[:, 0].cumsum(), segments, strict=True)
        for begin in range(end - rows, end - WINDOW + 1, HOP)
    ]
    if not cut:
        raise InvalidInput(f"{read[0]}: no segment has {WINDOW} rows")
    begins, classes, people = np.array(cut).T
    X = signals[begins[:, None] + np.arange(WINDOW)].transpose(0, 2, 1)
    names, clients = np.unique(people, return_inverse=True)
    test = (_rank_within(clients) // 5 + clients) % 10 == 0
    return _split("hapt", X, classes - 1, clients, test, [str(name) for name in names], 12, read)


def hapt_raw(source: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labelled rows [n, 6], and a row (length, label 1 to 12, person) a segment; from the folder RawData or the zip."""
    open_ = _files_of(source)
    table = _matrix(f"{source}, labels.txt", open_("labels.txt"), 5)
    segments = table.astype(np.int64)
    if (segments != table).any():
        raise InvalidInput(
            f"{source}, labels.txt: experiment, user, label, start, end are integers"
        )
    recordings: dict[tuple[int, int], np.ndarray] = {}
    parts = []
    for number, (experiment, person, _, start, end) in enumerate(segments.tolist(), start=1):
        key = experiment, person
        if key not in recordings:
            recordings[key] = _recording(source, open_, *key)
        rows = recordings[key]
        if not 1 <= start <= end <= len(rows):
            raise InvalidInput(
                f"{source}, labels.txt, line {number}: rows {start} to {end}, "
                f"but the recording has rows 1 to {len(rows)}"
            )
        parts.append(rows[start - 1 : end])
    lengths = np.array([len(part) for part in parts])
    known = np.stack([lengths, segments[:, 2], segments[:, 1]], axis=1)
    return np.concatenate(parts), _checked_segments(source, known)


def hapt_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The same from the compact file: integer counts x [6, n], and seg_len, seg_label, seg_user a segment."""
    names = ("x", "seg_len", "seg_label", "seg_user")
    try:
        # opened here: numpy leaves a damaged file open
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            x, *columns = (file[name] for name in names)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(
            f"{path} is not a whole npz file with {', '.join(names)} ({error}): get it again"
        ) from error
    lengths, labels, people = columns
    if x.ndim != 2 or len(x) != 6 or lengths.ndim != 1 or lengths.sum() != x.shape[1]:
        raise InvalidInput(
            f"{path}: x has shape {list(x.shape)}, the segments have {int(lengths.sum())} rows; "
            "x must be [6, all rows]"
        )
    if not len(lengths) == len(labels) == len(people):
        raise InvalidInput(
            f"{path}: {len(lengths)} lengths, {len(labels)} labels and {len(people)} users of segments"
        )
    segments = np.stack([column.astype(np.int64) for column in columns], axis=1)
    return (x.T * SENSOR_UNITS).astype(np.float32), _checked_segments(path, segments)


def heart() -> Data:
    """Heart Disease by hospital: float32 [740, 13] in all, disease or not, 4 clients, as in FLamby's Fed-Heart-Disease.

    Columns 10 to 12, which most hospitals do not have, and then rows with a missing value are left out.  Chest pain and
    electrocardiogram are one-hot without their first kind, which makes 13 features.  All features are standardised with
    mean and standard deviation of the training rows of all hospitals together: a federation would have to share these two.
    Two thirds of each hospital's rows, drawn with a fixed seed, are for training.
    """
    paths = [
        store.find(
            "heart",
            f"processed.{hospital}.data",
            url=f"{UCI_HOME}heart-disease/processed.{hospital}.data",
            aliases=[
                f"heart_processed.{hospital}.data",
                f"tabular/heart_processed.{hospital}.data",
            ],
        )
        for hospital in HOSPITALS
    ]
    tables = [heart_rows(path) for path in paths]
    X = np.concatenate([features for features, _ in tables])
    Y = np.concatenate([labels for _, labels in tables])
    clients = np.repeat(np.arange(len(tables)), [len(labels) for _, labels in tables])
    test = _held_out(clients, 1 / 3)
    mean, std = _moments(X[~test])
    return _split("heart", (X - mean) / std, Y, clients, test, HOSPITALS, 2, paths)


def heart_rows(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The complete rows of one hospital: 13 features as they are, and 0 (healthy) or 1."""
    used = [*HEART_USED, HEART_COLUMNS - 1]
    features, labels = [], []
    for number, cells in _cells(path, HEART_COLUMNS):
        if any(cells[column] == "?" for column in used):
            continue
        values = [_number(path, number, str(column), cells[column]) for column in used]
        if values[-1] not in (0, 1, 2, 3, 4):
            raise InvalidInput(f"{path}, line {number}: the last column is 0 to 4, got {cells[-1]}")
        row: list[float] = []
        for column in HEART_USED:
            if column not in HEART_KINDS:
                row.append(values[column])
                continue
            kinds = HEART_KINDS[column]
            if values[column] not in kinds:
                raise InvalidInput(
                    f"{path}, line {number}: column {column} is one of {kinds}, got {cells[column]}"
                )
            row += [float(values[column] == kind) for kind in kinds[1:]]
        features.append(row)
        labels.append(int(values[-1] > 0))
    if not features:
        raise InvalidInput(f"{path} has no complete row: get it again")
    return np.array(features), np.array(labels)


def parkinsons() -> Data:
    """Parkinson's Telemonitoring by patient: regress total_UPDRS on 19 features; 42 clients.

    Features are age, sex, time and the 16 of the voice; motor_UPDRS, which nearly gives the target away, is not one.
    Features and the target, float32 [n, 1], are standardised with mean and standard deviation of the training rows of all
    patients together; `about` has those of the target.  Four fifths of each patient's rows, drawn with a fixed seed, are for
    training.
    """
    path = store.find(
        "parkinsons",
        "parkinsons_updrs.data",
        url=f"{UCI_HOME}parkinsons/telemonitoring/parkinsons_updrs.data",
        aliases=["parkinsons_updrs.data.gz", "tabular/parkinsons_updrs.data.gz"],
    )
    (_, header), *rows = _cells(path)
    required = ("subject#", "total_UPDRS", "motor_UPDRS")
    if len(header) != 22 or not set(required) <= set(header):
        raise InvalidInput(
            f"{path}: the first line must name 22 columns with {', '.join(required)}, got {len(header)}"
        )
    for number, cells in rows:
        _check_width(path, number, cells, len(header))
    table = np.array(
        [
            [_number(path, number, *cell) for cell in zip(header, cells, strict=True)]
            for number, cells in rows
        ]
    )
    if len(table) == 0:
        raise InvalidInput(f"{path} has no rows: get it again")
    patients = table[:, header.index("subject#")].astype(np.int64)
    features = [i for i, name in enumerate(header) if name not in required]
    names, clients = np.unique(patients, return_inverse=True)
    test = _held_out(clients, 1 / 5)
    X, y = table[:, features], table[:, [header.index("total_UPDRS")]]
    mean, std = _moments(X[~test])
    y_mean, y_std = _moments(y[~test])
    return _split(
        "parkinsons",
        (X - mean) / std,
        ((y - y_mean) / y_std).astype(np.float32),
        clients,
        test,
        [str(name) for name in names],
        None,
        [path],
        f"; targets are (total_UPDRS - {y_mean[0]:.6g}) / {y_std[0]:.6g}",
    )


def adult() -> Data:
    """Adult: does a person earn more than 50,000?  float32 [32561, 108] to train, [16281, 108] to test.

    Six numbers, standardised by the training rows, then the eight other columns one-hot, `?` being a category like others.
    No natural clients.
    """
    paths = [
        store.find(
            "adult",
            name,
            url=f"{UCI_HOME}adult/{name}",
            aliases=[f"{name}.gz", f"tabular/{name}.gz"],
        )
        for name in ("adult.data", "adult.test")
    ]
    (train, y), (test, test_y) = (_adult_columns(path) for path in paths)
    blocks, test_blocks = [], []
    for name in ADULT_COLUMNS[:-1]:
        if name in ADULT_NUMBERS:
            mean, std = _moments(train[name][:, None])
            blocks.append((train[name][:, None] - mean) / std)
            test_blocks.append((test[name][:, None] - mean) / std)
            continue
        kinds = np.unique(train[name])
        if len(new := np.setdiff1d(test[name], kinds)):
            raise InvalidInput(f"{paths[1]}: {name} {str(new[0])!r} is not in {paths[0].name}")
        blocks.append(train[name][:, None] == kinds)
        test_blocks.append(test[name][:, None] == kinds)
    X, test_X = (
        torch.from_numpy(np.concatenate(part, axis=1).astype(np.float32))
        for part in (blocks, test_blocks)
    )
    return Data(
        "adult",
        (X, torch.from_numpy(y)),
        (test_X, torch.from_numpy(test_y)),
        classes=2,
        checksums=store.checksums(paths),
        about=DATASETS["adult"].about,
    )


def a9a(test: bool = False) -> Data:
    """LIBSVM's a9a: float32 [32561, 123], labels 0 and 1; test=True: also the 16,281 rows of a9a.t."""
    return _libsvm_set("a9a", 123, test)


def w8a(test: bool = False) -> Data:
    """LIBSVM's w8a: float32 [49749, 300], labels 0 and 1; test=True: also the 14,951 rows of w8a.t."""
    return _libsvm_set("w8a", 300, test)


def mushrooms() -> Data:
    """LIBSVM's mushrooms: float32 [8124, 112]; its labels 1 and 2 become 0 and 1."""
    return _libsvm_set("mushrooms", 112, False)


def libsvm(path: str | Path, features: int | None = None) -> tuple[Tensor, Tensor]:
    """A file in LIBSVM's format, packed with gzip or not: float32 [n, features] and the labels as they are, float32 [n].

    Lines are `label index:value index:value ...`, indices from 1; features not named are 0.  Without `features` there are
    as many as the largest index.
    """
    path = Path(path)
    rows, columns, values, labels = [], [], [], []
    for number, line in enumerate(store.read_text(path).splitlines(), start=1):
        label, *pairs = line.partition("#")[0].split() or [""]
        if not label:
            continue
        try:
            labels.append(float(label))
            for pair in pairs:
                index, value = pair.split(":")
                columns.append(int(index) - 1)
                values.append(float(value))
        except ValueError as error:
            raise InvalidInput(
                f"{path}, line {number}: lines are `label index:value ...`, got {line[:60]!r}"
            ) from error
        rows += [len(labels) - 1] * len(pairs)
    if not labels:
        raise InvalidInput(f"{path} has no rows: get it again")
    if not (np.isfinite(values).all() and np.isfinite(labels).all()):
        raise InvalidInput(f"{path} has NaN or Inf: clean the file")
    low, high = (min(columns) + 1, max(columns) + 1) if columns else (1, 0)
    width = high if features is None else features
    if low < 1:
        raise InvalidInput(f"{path}: indices are counted from 1, got {low}")
    if high > width:
        raise InvalidInput(f"{path}: an index is {high}, allowed are 1 to {width}")
    X = np.zeros((len(labels), width), dtype=np.float32)
    X[rows, columns] = values
    return torch.from_numpy(X), torch.tensor(labels, dtype=torch.float32)


def _libsvm_set(name: str, features: int, test: bool) -> Data:
    names = [name, *([f"{name}.t"] if test else [])]
    paths = [
        store.find(
            name,
            file,
            url=LIBSVM_HOME + file,
            aliases=[f"{file}{end}" for end in (".txt", ".libsvm", ".libsvm.gz")]
            + [f"tabular/{file}.libsvm.gz"],
        )
        for file in names
    ]
    tables = [libsvm(path, features) for path in paths]
    kinds = tables[0][1].unique()  # sorted
    if len(kinds) != 2:
        raise InvalidInput(f"{paths[0]}: labels {kinds.tolist()[:5]} are not two classes")
    pairs = []
    for path, (X, labels) in zip(paths, tables, strict=True):
        if not bool(torch.isin(labels, kinds).all()):
            raise InvalidInput(f"{path}: labels must be {kinds.tolist()}, as in {paths[0].name}")
        pairs.append((X, (labels == kinds[1]).long()))
    return Data(
        name,
        pairs[0],
        pairs[1] if test else None,
        classes=2,
        checksums=store.checksums(paths),
        about=DATASETS[name].about,
    )


def _split(
    dataset: str,
    X: np.ndarray,
    Y: np.ndarray,
    clients: np.ndarray,
    test: np.ndarray,
    names: Sequence[str],
    classes: int | None,
    files: Sequence[Path],
    more: str = "",
) -> Data:
    """Train and test of data with natural clients."""

    def part(rows: np.ndarray) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = torch.from_numpy(np.ascontiguousarray(X[rows], dtype=np.float32))
        y = torch.from_numpy(Y[rows] if classes is None else Y[rows].astype(np.int64))
        return (x, y), torch.from_numpy(clients[rows].astype(np.int64))

    train, train_clients = part(~test)
    held_out, test_clients = part(test) if test.any() else (None, None)
    return Data(
        dataset,
        train,
        held_out,
        train_clients,
        test_clients,
        tuple(names),
        classes=classes,
        checksums=store.checksums(files),
        about=DATASETS[dataset].about + more,
    )


def _random(client: int) -> np.random.Generator:
    return generator(Purpose.DATA, Key(SPLIT_SEED, 0), client)


def _held_out(clients: np.ndarray, share: float) -> np.ndarray:
    """Which rows are for testing: of each client its share, drawn with the fixed seed."""
    test = np.zeros(len(clients), dtype=bool)
    for client in np.unique(clients):
        mine = np.flatnonzero(clients == client)
        test[_random(int(client)).permutation(mine)[: round(len(mine) * share)]] = True
    return test


def _rank_within(clients: np.ndarray) -> np.ndarray:
    """The how-manieth of its client each row is, from 0."""
    rank = np.zeros(len(clients), dtype=np.int64)
    for client in np.unique(clients):
        mine = clients == client
        rank[mine] = np.arange(mine.sum())
    return rank


def _moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the columns, 1 for a column that does not vary."""
    std = rows.std(0)
    return rows.mean(0), np.where(std > 0, std, 1.0)


def _cells(path: Path, width: int | None = None) -> list[tuple[int, list[str]]]:
    """Line numbers and cells of a table of commas; empty lines and comments (|) are left out."""
    rows = []
    for number, line in enumerate(store.read_text(path).splitlines(), start=1):
        if line.strip() and not line.startswith("|"):
            rows.append((number, [cell.strip() for cell in line.split(",")]))
            if width is not None:
                _check_width(path, number, rows[-1][1], width)
    if not rows:
        raise InvalidInput(f"{path} is empty: get it again")
    return rows


def _check_width(path: Path, number: int, cells: Sequence[str], width: int) -> None:
    if len(cells) != width:
        raise InvalidInput(
            f"{path}, line {number}: {len(cells)} columns, there must be {width}: get it again"
        )


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(f"{path}, line {line}, column {column}: not a number: {cell!r}")
    return value


def _adult_columns(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns by name, and the labels."""
    rows = _cells(path, len(ADULT_COLUMNS))
    columns: dict[str, np.ndarray] = {}
    for i, name in enumerate(ADULT_COLUMNS[:-1]):
        if name in ADULT_NUMBERS:
            columns[name] = np.array([_number(path, n, name, cells[i]) for n, cells in rows])
            continue
        empty = [number for number, cells in rows if not cells[i]]
        if empty:
            raise InvalidInput(f"{path}, line {empty[0]}: no {name}; unknown is written ?")
        columns[name] = np.array([cells[i] for _, cells in rows])
    labels = []
    for number, cells in rows:
        label = cells[-1].removesuffix(".")  # the test file has a dot there
        if label not in ADULT_LABELS:
            raise InvalidInput(
                f"{path}, line {number}: income is one of {', '.join(ADULT_LABELS)}, got {cells[-1]!r}"
            )
        labels.append(ADULT_LABELS[label])
    return columns, np.array(labels, dtype=np.int64)


def _files_of(source: Path) -> Callable[[str], bytes]:
    """What reads a file of RawData, be it a folder or in a zip."""

    def from_folder(name: str) -> bytes:
        try:
            return (source / name).read_bytes()
        except OSError as error:
            raise InvalidInput(f"{source / name} cannot be read ({error}): get it again") from error

    def from_zip(name: str) -> bytes:
        try:
            with zipfile.ZipFile(source) as archive:
                (entry,) = (
                    n
                    for n in archive.namelist()
                    if re.search(rf"(^|/)RawData/{re.escape(name)}$", n)
                )
                return archive.read(entry)
        except ValueError as error:  # none, or several
            raise InvalidInput(f"{source} does not contain RawData/{name}: get it again") from error
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise store.damaged(source, error) from error

    return from_folder if source.is_dir() else from_zip


def _recording(
    source: Path, open_: Callable[[str], bytes], experiment: int, person: int
) -> np.ndarray:
    """The rows of one experiment: accelerometer, gyroscope."""
    names = [f"{sensor}_exp{experiment:02d}_user{person:02d}.txt" for sensor in ("acc", "gyro")]
    acc, gyro = (_matrix(f"{source}, {name}", open_(name), 3) for name in names)
    if len(acc) != len(gyro):
        raise InvalidInput(
            f"{source}: {names[0]} has {len(acc)} rows and {names[1]} {len(gyro)}: get them again"
        )
    return np.concatenate([acc, gyro], axis=1).astype(np.float32)


def _matrix(where: str, content: bytes, width: int) -> np.ndarray:
    """Numbers between spaces, `width` a line."""
    if not content.strip():
        raise InvalidInput(f"{where} is empty: get it again")
    try:
        table = np.loadtxt(BytesIO(content), ndmin=2)
    except ValueError as error:
        raise InvalidInput(f"{where} is not a table of numbers ({error}): get it again") from error
    if table.shape[1] != width or not np.isfinite(table).all():
        raise InvalidInput(
            f"{where}: lines must have {width} finite numbers, got {table.shape[1]} columns"
            + ("" if np.isfinite(table).all() else " and NaN or Inf")
        )
    return table


def _checked_segments(source: Path, segments: np.ndarray) -> np.ndarray:
    _, labels, people = segments.T
    if labels.min() < 1 or labels.max() > 12:
        raise InvalidInput(
            f"{source}: labels go from {labels.min()} to {labels.max()}, allowed are 1 to 12"
        )
    if people.min() < 1:
        raise InvalidInput(f"{source}: people are numbered from 1, got {people.min()}")
    return segments
