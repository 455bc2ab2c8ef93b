"""Tables of the UCI repository: Heart Disease by hospital, Parkinson's Telemonitoring by patient, Adult."""

import math
from pathlib import Path

import numpy as np
import torch

from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.datasets.common import hold_out, number_clients, split_train_test, standardise
from undrift.data.registry import Data, dataset

_SOURCE = "UCI Machine Learning Repository; CC BY 4.0"
_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
PACKED = ("{}.gz", "tabular/{}.gz")  # other names of the files

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART_COLUMNS = 14
HEART_KINDS = {2: (1, 2, 3, 4), 6: (0, 1, 2)}  # kind of chest pain, kind of electrocardiogram
HEART_USED = range(10)  # 10 to 12 are missing in most hospitals

PARKINSONS = f"Parkinson's Telemonitoring by patient, {_SOURCE}"
SCORES = ("total_UPDRS", "motor_UPDRS")

ADULT_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income"
).split()
ADULT_NUMBERS = "age fnlwgt education-num capital-gain capital-loss hours-per-week".split()
ADULT_LABELS = {"<=50K": 0, ">50K": 1}

LARGEST = 1e30  # of a number: beyond, float32 and standard deviations overflow

_Row = tuple[int, list[str]]  # line number and cells


@dataset("heart", about=f"Heart Disease by hospital, {_SOURCE}", clients=4)
def heart() -> Data:
    """Heart Disease by hospital: float32 [740, 13] in all, disease or not, 4 clients, as in FLamby's Fed-Heart-Disease.

    Columns 10 to 12, which most hospitals do not have, and then rows with a missing value are left out.  Chest pain and
    electrocardiogram are one-hot without their first kind, which makes 13 features.  All features are standardised with
    mean and standard deviation of the training rows of all hospitals together: a federation would have to share these two.
    Two thirds of each hospital's rows, drawn with a fixed seed, are for training.
    """
    names = [f"processed.{hospital}.data" for hospital in HOSPITALS]
    url, aliases = f"{_URL}heart-disease/", ("heart_{}", "tabular/heart_{}")
    files = [store.find("heart", name, url=url, aliases=aliases) for name in names]
    tables = [read_hospital(file) for file in files]
    X, Y = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    clients = np.repeat(np.arange(len(tables)), [len(labels) for _, labels in tables])
    test = hold_out(clients, 1 / 3)
    X, _, _ = standardise(X, train=~test)
    return split_train_test("heart", X, Y, clients, HOSPITALS, test, files, classes=2)


def read_hospital(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The complete rows of one hospital: 13 features as they are, and 0 (healthy) or 1."""
    used = [*HEART_USED, HEART_COLUMNS - 1]
    features, labels = [], []
    for line, cells in _read_rows(path, HEART_COLUMNS):
        if any(cells[column] == "?" for column in used):
            continue
        *values, disease = (_to_number(path, line, column, cells[column]) for column in used)
        if disease not in (0, 1, 2, 3, 4):
            raise InvalidInput(f"{path}, line {line}: the last column is 0 to 4, got {cells[-1][:40]}")
        row: list[float] = []
        for column, value in enumerate(values):
            kinds = HEART_KINDS.get(column)
            if kinds is None:
                row.append(value)
                continue
            if value not in kinds:
                raise InvalidInput(f"{path}, line {line}: column {column} is one of {kinds}, got {cells[column][:40]}")
            row += [float(value == kind) for kind in kinds[1:]]
        features.append(row)
        labels.append(int(disease > 0))
    if not features:
        raise InvalidInput(f"{path} has no complete row: get it again")
    return np.array(features), np.array(labels)


@dataset("parkinsons", about=PARKINSONS, clients=42)
def parkinsons() -> Data:
    """Parkinson's Telemonitoring by patient: regress total_UPDRS on 19 features; 42 clients.

    Features are age, sex, time and the 16 of the voice; motor_UPDRS, which nearly gives the target away, is not one.
    Features and the target, float32 [n, 1], are standardised with mean and standard deviation of the training rows of all
    patients together; `about` has those of the target.  Four fifths of each patient's rows, drawn with a fixed seed, are for
    training.
    """
    url = f"{_URL}parkinsons/telemonitoring/"
    path = store.find("parkinsons", "parkinsons_updrs.data", url=url, aliases=PACKED)
    (_, header), *rows = _read_rows(path, 22)
    left_out = ("subject#", *SCORES)
    if not set(left_out) <= set(header):
        raise InvalidInput(
            f"{path}: the first line must name 22 columns with {', '.join(left_out)}, got {', '.join(header[:4])[:80]}, ..."
        )
    if not rows:
        raise InvalidInput(f"{path} has no rows: get it again")
    table = np.array(
        [[_to_number(path, line, *cell) for cell in zip(header, cells, strict=True)] for line, cells in rows]
    )
    clients, names = number_clients(table[:, header.index("subject#")].astype(np.int64))
    test = hold_out(clients, 1 / 5)
    X, _, _ = standardise(table[:, [c not in left_out for c in header]], train=~test)
    y, mean, std = standardise(table[:, [header.index("total_UPDRS")]], train=~test)
    about = f"{PARKINSONS}; targets are (total_UPDRS - {mean[0]:.6g}) / {std[0]:.6g}"
    return split_train_test("parkinsons", X, y, clients, names, test, [path], about=about)


@dataset("adult", about=f"Adult, {_SOURCE}")
def adult() -> Data:
    """Adult: does a person earn more than 50,000?  float32 [32561, 108] to train, [16281, 108] to test.

    Six numbers, standardised by the training rows, then the eight other columns one-hot, `?` being a category like others.
    No natural clients.
    """
    names, url = ("adult.data", "adult.test"), f"{_URL}adult/"
    files = [store.find("adult", name, url=url, aliases=PACKED) for name in names]
    (columns, y), (test_columns, test_y) = (_read_adult(file) for file in files)
    train = np.arange(len(y) + len(test_y)) < len(y)
    blocks = []
    for name, column in columns.items():
        both = np.concatenate([column, test_columns[name]])[:, None]
        if name in ADULT_NUMBERS:
            blocks.append(standardise(both, train)[0])
            continue
        kinds = np.unique(column)
        if len(new := np.setdiff1d(test_columns[name], kinds)):
            raise InvalidInput(f"{files[1]}: {name} {str(new[0])[:40]!r} is not in {files[0].name}")
        blocks.append(both == kinds)
    X = np.concatenate(blocks, axis=1).astype(np.float32)
    pair, test_pair = (
        (torch.from_numpy(X[rows]), torch.from_numpy(labels)) for rows, labels in ((train, y), (~train, test_y))
    )
    return Data("adult", pair, test_pair, classes=2, checksums=store.checksums(files))


def _read_adult(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns by name, and the labels."""
    rows = _read_rows(path, len(ADULT_COLUMNS))
    columns: dict[str, np.ndarray] = {}
    for i, name in enumerate(ADULT_COLUMNS[:-1]):
        if name in ADULT_NUMBERS:
            columns[name] = np.array([_to_number(path, n, name, cells[i]) for n, cells in rows])
            continue
        empty = [line for line, cells in rows if not cells[i]]
        if empty:
            raise InvalidInput(f"{path}, line {empty[0]}: no {name}; unknown is written ?")
        columns[name] = np.array([cells[i] for _, cells in rows])
    labels = [ADULT_LABELS.get(cells[-1].removesuffix(".")) for _, cells in rows]  # "." in test
    if None in labels:
        line, cells = rows[labels.index(None)]
        raise InvalidInput(f"{path}, line {line}: income is one of {', '.join(ADULT_LABELS)}, got {cells[-1][:40]!r}")
    return columns, np.array(labels, dtype=np.int64)


def _read_rows(path: Path, width: int) -> list[_Row]:
    """Line numbers and cells of comma-separated lines; empty lines and comments (|) are left out."""
    rows = []
    for line, text in enumerate(store.read_text(path).splitlines(), start=1):
        if not text.strip() or text.startswith("|"):
            continue
        cells = [cell.strip() for cell in text.split(",")]
        if len(cells) != width:
            raise InvalidInput(f"{path}, line {line}: {len(cells)} columns, there must be {width}: get it again")
        rows.append((line, cells))
    if not rows:
        raise InvalidInput(f"{path} is empty: get it again")
    return rows


def _to_number(path: Path, line: int, column: object, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise InvalidInput(f"{path}, line {line}, column {str(column)[:40]}: not a number: {cell[:40]!r}")
    return value
