"""Readers of tables and signals: small files in the original layouts, and damaged ones."""

import gzip
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.data_files import write
from undrift.core.errors import InvalidInput
from undrift.data.datasets import uci
from undrift.data.datasets.libsvm import libsvm
from undrift.data.registry import load


def small_hapt() -> dict[str, str]:
    """RawData of two people: 2,400 rows each, one segment of walking, one of lying, some rows without a label."""
    random = np.random.default_rng(2)
    files, labels = {}, []
    for experiment, person in ((1, 1), (2, 3)):
        for sensor in ("acc", "gyro"):
            rows = random.standard_normal((2400, 3)).round(6)
            files[f"{sensor}_exp{experiment:02d}_user{person:02d}.txt"] = "\n".join(
                " ".join(f"{v:.6f}" for v in row) for row in rows
            )
        labels += [f"{experiment} {person} 1 11 1290", f"{experiment} {person} 6 1400 2400"]
    return files | {"labels.txt": "\n".join(labels)}


@pytest.mark.parametrize("layout", ["folder", "zip"])
def test_hapt_layouts(home: Path, layout: str) -> None:
    files = small_hapt()
    if layout == "folder":
        for name, content in files.items():
            write(home / "hapt" / "RawData" / name, content)
    else:
        with zipfile.ZipFile(home / "HAPT Data Set.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"RawData/{name}", content)
    data = load("hapt")
    assert data.test is not None and data.clients is not None
    # 1,280 rows are 19 windows, 1,001 rows are 14
    assert len(data.train[0]) + len(data.test[0]) == 2 * (19 + 14)
    assert data.client_names == ("1", "3") and len(data.checksums) == (5 if layout == "folder" else 1)
    acc = np.loadtxt(io.StringIO(files["acc_exp01_user01.txt"]))
    gyro = np.loadtxt(io.StringIO(files["gyro_exp01_user01.txt"]))
    first = np.concatenate([acc, gyro], axis=1)[10 : 10 + 128].T
    assert np.allclose(data.test[0][0].numpy(), first, atol=1e-6) and int(data.test[1][0]) == 0
    assert set(data.train[1].tolist()) == {0, 5}


def test_hapt_gone_wrong(home: Path) -> None:
    folder = home / "hapt" / "RawData"
    for name, wrong, message in [
        ("labels.txt", "1 1 13 11 1290", "labels go from 13 to 13, allowed are 1 to 12"),
        ("labels.txt", "1 1 1 11 2401", "line 1: rows 11 to 2401, .* 1 to 2400"),
        ("labels.txt", "1 1 1 11", "labels.txt: lines must have 5 finite numbers, got 4"),
        ("labels.txt", "1 1 1.5 11 200", "are integers"),
        ("labels.txt", "1 1 1 11 20", "no segment has 128 rows"),
        ("labels.txt", "", "labels.txt is empty"),
        ("labels.txt", "9 1 1 11 200", "acc_exp09_user01.txt cannot be read"),
        ("acc_exp01_user01.txt", "1 2 x", "acc_exp01_user01.txt is not a table of numbers"),
        ("acc_exp01_user01.txt", "1 2 nan", "3 finite numbers, got 3 columns and NaN"),
        ("gyro_exp01_user01.txt", "1 2 3", "has 2400 rows and gyro_exp01_user01.txt 1"),
    ]:
        for file, content in (small_hapt() | {name: wrong}).items():
            write(folder / file, content)
        with pytest.raises(InvalidInput, match=message):
            load("hapt")
    for file in folder.iterdir():
        file.unlink()
    write(home / "HAPT Data Set.zip", b"PK\3\4 and then nothing")
    with pytest.raises(InvalidInput, match="HAPT Data Set.zip is truncated or damaged"):
        load("hapt")
    with zipfile.ZipFile(home / "HAPT Data Set.zip", "w") as archive:
        archive.writestr("Train/labels.txt", "")
    with pytest.raises(InvalidInput, match="does not contain RawData/labels.txt"):
        load("hapt")


def test_hapt_compact_gone_wrong(home: Path) -> None:
    path = home / "hapt_int16.npz"
    good: dict[str, Any] = {
        "x": np.zeros((6, 300), dtype=np.int16),
        "seg_len": np.array([300], dtype=np.int32),
        "seg_label": np.array([2], dtype=np.uint8),
        "seg_user": np.array([1], dtype=np.uint8),
    }
    for change, message in [
        ({"x": np.zeros((6, 299))}, r"shape \[6, 299\], the segments have 300 rows"),
        ({"seg_label": np.array([0])}, "labels go from 0 to 0"),
        ({"seg_user": np.array([0])}, "people are numbered from 1"),
        ({"seg_user": np.array([1, 2])}, "1 lengths, 1 labels and 2 users"),
    ]:
        np.savez(path, **(good | change))
        with pytest.raises(InvalidInput, match=message):
            load("hapt")
    write(path, path.read_bytes()[:200])
    with pytest.raises(InvalidInput, match="not a whole npz file"):
        load("hapt")
    np.savez(path, x=good["x"])
    with pytest.raises(InvalidInput, match="not a whole npz file with x, seg_len"):
        load("hapt")


HEART_ROW = "63.0,1.0,4.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,?,?,?,3"


def test_heart_layout(home: Path) -> None:
    for i, hospital in enumerate(uci.HOSPITALS):
        healthy = HEART_ROW.replace("63.0", f"{30 + i}").replace("?,3", "?,0")
        unknown = HEART_ROW.replace("233.0", "?")
        rows = [HEART_ROW, healthy, unknown, HEART_ROW.replace("4.0", "1")]
        write(home / "heart" / f"processed.{hospital}.data", "\n".join(rows) + "\n")
    data = load("heart")
    assert data.clients is not None and data.test is not None
    assert data.clients.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and len(data.test[0]) == 4
    assert data.train[0].isfinite().all()  # columns that do not vary too
    features, labels = uci.read_hospital(home / "heart" / "processed.va.data")
    assert features[0].tolist() == [63, 1, 0, 0, 1, 145, 233, 1, 0, 1, 150, 0, 2.3]
    assert labels.tolist() == [1, 0, 1]


def test_heart_gone_wrong(home: Path) -> None:
    for row, message in [
        (HEART_ROW + ",1", "line 1: 15 columns, there must be 14"),
        (HEART_ROW.replace("150.0", "nan"), "line 1, column 7: not a number: 'nan'"),
        (HEART_ROW.replace("150.0", ""), "line 1, column 7: not a number: ''"),
        (HEART_ROW.replace("?,3", "?,5"), "the last column is 0 to 4, got 5"),
        (HEART_ROW.replace("4.0", "9.0"), "column 2 is one of"),
        (HEART_ROW.replace("145.0", "?"), "has no complete row"),
        ("\n", "va.data is empty"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            uci.read_hospital(write(home / "va.data", row))


def small_parkinsons(change: Callable[[list[str]], list[str]] = lambda lines: lines) -> str:
    voice = [f"voice{i}" for i in range(16)]
    header = ["subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", *voice]
    random = np.random.default_rng(3)
    rows = [[str(7 + i // 5), *(f"{v:.4f}" for v in random.standard_normal(21))] for i in range(10)]
    return "\n".join(change([",".join(row) for row in (header, *rows)])) + "\n"


def test_parkinsons_layout(home: Path) -> None:
    write(home / "parkinsons" / "parkinsons_updrs.data", small_parkinsons())
    data = load("parkinsons")
    assert data.classes is None and data.clients is not None and data.test is not None
    assert data.client_names == ("7", "8") and data.clients.tolist() == [0] * 4 + [1] * 4
    assert data.train[0].shape == (8, 19) and data.test[1].shape == (2, 1)


def test_parkinsons_gone_wrong(home: Path) -> None:
    changes: list[tuple[Callable[[list[str]], list[str]], str]] = [
        (lambda lines: [*lines[:3], lines[3][1:]], "line 4, column subject#: not a number: ''"),
        (lambda lines: [*lines[:3], "7" + ",nan" * 21], "line 4, column age: not a number: 'nan'"),
        (lambda lines: [*lines[:3], "7,1"], "line 4: 2 columns, there must be 22"),
        (lambda lines: lines[1:], "first line must name 22 columns with subject#"),
        (lambda lines: lines[:1], "has no rows"),
    ]
    for change, message in changes:
        write(home / "parkinsons_updrs.data", small_parkinsons(change))
        with pytest.raises(InvalidInput, match=message):
            load("parkinsons")


ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K"
)


def test_adult_layout(home: Path) -> None:
    other = ADULT_ROW.replace("State-gov", "?").replace("39", "41").replace("<=", ">")
    write(home / "adult" / "adult.data", f"{ADULT_ROW}\n{other}\n\n")
    write(home / "adult" / "adult.test", f"|1x3 Cross validator\n{other}.\n\n")
    data = load("adult")
    assert data.test is not None
    assert data.train[0].shape == (2, 6 + 9) and data.train[1].tolist() == [0, 1]
    assert data.train[0][:, 0].tolist() == [-1, 1]  # age
    assert data.train[0][:, 1:3].tolist() == [[0, 1], [1, 0]]  # ?, State-gov
    assert torch.equal(data.test[0][0], data.train[0][1]) and data.test[1].tolist() == [1]


def test_adult_gone_wrong(home: Path) -> None:
    write(home / "adult.data", ADULT_ROW)
    for row, message in [
        (ADULT_ROW.replace("39", "x"), "adult.test, line 1, column age: not a number: 'x'"),
        (ADULT_ROW.replace("White", ""), "line 1: no race; unknown is written ?"),
        (ADULT_ROW.replace("White", "Blue"), "race 'Blue' is not in adult.data"),
        (ADULT_ROW.replace("<=50K", "50K"), "income is one of <=50K, >50K, got '50K'"),
        (ADULT_ROW.replace(", Male", ""), "14 columns, there must be 15"),
    ]:
        write(home / "adult.test", row)
        with pytest.raises(InvalidInput, match=re.escape(message)):
            load("adult")


def test_libsvm_format(home: Path) -> None:
    path = write(home / "f", gzip.compress(b"+1 1:0.5 3:2\n\n-1 # nothing\n2.5 2:1e-1 # a comment\n"))
    X, y = ud.libsvm(path)
    assert X.tolist() == [[0.5, 0, 2], [0, 0, 0], [0, pytest.approx(0.1), 0]]
    assert ud.libsvm(write(home / "g", "1 3:3 1:1\n"))[0].tolist() == [[1, 0, 3]]
    assert y.tolist() == [1, -1, 2.5] and ud.libsvm(str(path), features=5)[0].shape == (3, 5)
    for content, message in [
        ("", "f has no rows"),
        ("1 0:1", "indices are counted from 1, got 0"),
        ("1 1:1\n1 x:1", "f, line 2: lines are `label index:value ...`, got '1 x:1'"),
        ("1 1", "line 1"),
        ("a 1:1", "line 1"),
        ("1 1:nan", "f has NaN or Inf"),
        ("inf 1:1", "f has NaN or Inf"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            ud.libsvm(write(home / "f", content))
    with pytest.raises(InvalidInput, match="an index is 3, allowed are 1 to 2"):
        ud.libsvm(write(home / "f", "1 3:1"), features=2)


def test_libsvm_sets_with_their_test_file(home: Path) -> None:
    write(home / "a9a" / "a9a", "-1 3:1\n+1 123:1\n")
    assert load("a9a").test is None
    write(home / "a9a" / "a9a.t", "+1 1:1\n")
    data = load("a9a", test=True)
    assert data.test is not None and data.test[1].tolist() == [1]
    assert data.train[1].tolist() == [0, 1] and data.train[0].shape == (2, 123)
    write(home / "a9a" / "a9a.t", "0 1:1\n")
    with pytest.raises(InvalidInput, match=r"a9a.t: labels must be \[-1.0, 1.0\]"):
        load("a9a", test=True)
    write(home / "mushrooms" / "mushrooms", "1 1:1\n")
    with pytest.raises(InvalidInput, match="are not two classes"):
        load("mushrooms")


def test_digits_are_all_there_once() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    assert data.test is not None and data.prepare is not None
    both = torch.cat([data.train[0], data.test[0]]).flatten(1)
    whole = torch.from_numpy(load_digits().data).to(torch.uint8)  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(both.tolist()) == sorted(whole.tolist())
    assert float(data.prepare(data.train[0]).max()) == 1.0
    assert data.train[1][:8].tolist() == load("digits").train[1][:8].tolist()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 1:1 1000000000000:1", "of 1000000000000 features would take .* GiB of memory.*: is an index wrong"),
        ("1 3:1 2:1 3:4", "line 1: index 3 is there twice"),
        ("1 1:1e39", "beyond float32"),
    ],
)
def test_libsvm_numbers_that_cannot_be(line: str, said: str, home: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        libsvm(write(home / "f", line + "\n"))


def test_synthetic_clients_that_do_not_fit_into_memory() -> None:
    with pytest.raises(InvalidInput, match=r"Synthetic: 1000000000 clients would take .* GiB of memory"):
        load("synthetic", clients=10**9)
