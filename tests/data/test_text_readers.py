"""Readers of text: small files in the original layouts, and damaged ones."""

import gzip
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.data_files import same, write
from undrift.core.errors import InvalidInput
from undrift.data.datasets import shakespeare
from undrift.data.registry import load


def sentence_of(n: int, offset: int = 0) -> str:
    return "".join(shakespeare.ALPHABET[1 + (i * 7 + offset) % 79] for i in range(n))


def leaf_json(users: dict[str, Any], counts: list[int]) -> str:
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": users})


def sampled(n: int, offset: int) -> dict[str, list[str]]:
    said = sentence_of(80 + n, offset)
    return {"x": [said[i : i + 80] for i in range(n)], "y": [said[i + 80] for i in range(n)]}


def test_leaf_raw_layout(home: Path) -> None:
    said = {"A": sentence_of(100), "B": sentence_of(81), "C": sentence_of(83, 5), "D": "too short"}
    users = {name: {"raw": words} for name, words in said.items()}
    assert " " in said["C"]  # line ends and runs of spaces count as one space
    users["C"] = {"raw": said["C"].replace(" ", "  \n")}
    write(home / "shakespeare" / "all_data.json", leaf_json(users, [20, 1, 3, 0]))
    data = load("shakespeare")
    assert data.test is not None and data.prepare is not None
    assert data.clients is not None and data.test_clients is not None
    assert data.client_names == ("A", "C")  # the others have fewer than two windows
    assert data.clients.tolist() == [0] * 18 + [1] * 2
    assert data.test_clients.tolist() == [0, 0, 1]
    last = data.prepare(data.test[0])[-1].tolist()
    assert "".join(shakespeare.ALPHABET[c] for c in last) == said["C"][2:82]
    assert shakespeare.ALPHABET[int(data.test[1][-1])] == said["C"][82]
    path = home / "shakespeare" / "all_data.json"
    assert same(data, load("shakespeare", path=path))


def test_leaf_sampled_layout(home: Path) -> None:
    folder = home / "shakespeare" / "data"
    train = {"A": sampled(3, 0), "B": sampled(2, 9)}
    write(folder / "train" / "1.json", leaf_json(train, [3, 2]))
    write(folder / "train" / "2.json", leaf_json({"C": sampled(1, 30), "A": sampled(2, 50)}, [1, 2]))
    test = {"B": sampled(1, 2), "E": sampled(2, 3), "F": sampled(0, 0)}
    write(folder / "test" / "1.json", leaf_json(test, [1, 2, 0]))
    data = load("shakespeare")
    assert data.test is not None and data.prepare is not None
    assert data.clients is not None and data.test_clients is not None
    assert data.client_names == ("A", "B", "C")
    assert data.clients.tolist() == [0, 0, 0, 0, 0, 1, 1, 2]
    assert data.test_clients.tolist() == [1, -1, -1]
    read = data.prepare(data.train[0]).tolist()
    assert "".join(shakespeare.ALPHABET[c] for c in read[4]) == sampled(2, 50)["x"][1]
    assert shakespeare.ALPHABET[int(data.train[1][4])] == sampled(2, 50)["y"][1]
    assert set(data.checksums) == {"train/1.json", "train/2.json", "test/1.json"}
    assert same(data, load("shakespeare", path=folder))


def test_leaf_gone_wrong(home: Path) -> None:
    path = home / "shakespeare" / "all_data.json"
    good = sampled(3, 0)
    for content, message in [
        ("{", "all_data.json is not in LEAF's form"),
        ("[]", "not in LEAF's form"),
        ('{"users": ["A"], "num_samples": [1], "user_data": {}}', "KeyError: 'A'"),
        (leaf_json({"A": good}, []), "1 users and 0 num_samples"),
        (leaf_json({"A": good}, [4]), "A has 3 windows of 80 characters, num_samples says 4"),
        (leaf_json({"A": {"raw": "short"}}, [7]), "A has 0 windows"),
        (leaf_json({"A": {"words": "x"}}, [1]), "must have lists x and y, or raw text"),
        (leaf_json({"A": {"raw": 5}}, [1]), "raw must be text, got int"),
        (leaf_json({"A": good | {"y": ["a"]}}, [3]), "3 windows x and 1 next characters y"),
        (leaf_json({"A": good | {"y": ["a", "bc", "d"]}}, [3]), "sample 1 has 80 .* then 2"),
        (leaf_json({"A": {"raw": "é" * 90}}, [10]), "the character 'é' is not one of the 80"),
        (leaf_json({"A": {"raw": "$" * 90}}, [10]), r"the character '\$'"),
        (leaf_json({"A": {"raw": "short"}}, [0]), "no role has windows of 80"),
    ]:
        write(path, content)
        with pytest.raises(InvalidInput, match=message):
            load("shakespeare")
    write(path, gzip.compress(b"{}" * 99)[:-9])
    with pytest.raises(InvalidInput, match="truncated or damaged"):
        load("shakespeare")
    with pytest.raises(InvalidInput, match="has no .*json files"):
        load("shakespeare", path=home / "nowhere")
    with pytest.raises(InvalidInput, match="length must be 1 or more"):
        load("shakespeare", length=0)


def test_tinyshakespeare_layout(home: Path) -> None:
    write(home / "tinyshakespeare" / "input.txt", "A:\nOne two.\n\nB:\nNo.\n\n\nA:\nThree.\n")
    data = load("tinyshakespeare", length=4)
    assert data.test is not None and data.prepare is not None
    assert data.client_names == ("A",) and len(data.train[0]) + len(data.test[0]) == 11
    last = data.prepare(data.test[0])[0].tolist()
    assert "".join(shakespeare.TINY_ALPHABET[c] for c in last) == "hree"
    write(home / "tinyshakespeare" / "input.txt", "A\nOne two.\n")
    with pytest.raises(InvalidInput, match="begins with 'A'; each must begin with a line `Name:`"):
        load("tinyshakespeare")


def small_stackoverflow(home: Path) -> None:
    h5py = pytest.importorskip("h5py")
    folder = home / "stackoverflow"
    write(folder / "stackoverflow.word_count", "the 9\nto 7\nof 5\nrare 1\n")
    for part, users in (
        ("train", {"0002": [b"the of to the", b"what"], "0001": [b"to", b"of", b"the"]}),
        ("test", {"0002": [b"to the"], "0003": [b"of"]}),
    ):
        with h5py.File(folder / f"stackoverflow_{part}.h5", "w") as file:
            for user, lines in users.items():
                file[f"examples/{user}/tokens"] = np.array(lines, dtype=object)
                file[f"examples/{user}/score"] = np.zeros(len(lines))


def test_stackoverflow_layout(home: Path) -> None:
    small_stackoverflow(home)
    data = load("stackoverflow", vocabulary=3, length=3)
    assert data.test is not None and data.clients is not None and data.test_clients is not None
    # 1 the, 2 to, 3 of, 4 unknown, 5 begin, 6 end
    assert data.classes == 7 and data.client_names == ("0001", "0002")
    assert data.train[0].tolist() == [[5, 2, 6], [5, 3, 6], [5, 1, 6], [5, 1, 3], [5, 4, 6]]
    no = -100  # padding, which losses leave out
    assert data.train[1].tolist() == [[2, 6, no], [3, 6, no], [1, 6, no], [1, 3, 2], [4, 6, no]]
    assert data.train[0].dtype == torch.int16 and data.train[1].dtype == torch.int64
    assert data.clients.tolist() == [0, 0, 0, 1, 1] and data.test_clients.tolist() == [1, -1]
    assert data.prepare is not None and data.prepare(data.train[0]).dtype == torch.int64
    assert set(data.checksums) == {"stackoverflow.word_count"}
    some = load("stackoverflow", vocabulary=3, length=3, clients=1, sentences=2, verify=True)
    assert some.clients is not None and some.clients.tolist() == [0, 0] and some.test is None
    assert len(some.checksums) == 3


def test_stackoverflow_gone_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stackoverflow(home)
    with pytest.raises(InvalidInput, match="has 4 words, 10000 are needed"):
        load("stackoverflow")
    for option in ("clients", "sentences", "vocabulary", "length"):
        with pytest.raises(InvalidInput, match=f"{option} must be 1 or more, got 0"):
            load("stackoverflow", **{option: 0})
    with pytest.raises(InvalidInput, match="at most 32,000"):
        load("stackoverflow", vocabulary=40_000)
    path = home / "stackoverflow" / "stackoverflow_train.h5"
    whole = path.read_bytes()
    write(path, whole[:100])
    with pytest.raises(InvalidInput, match="stackoverflow_train.h5 cannot be read"):
        load("stackoverflow", vocabulary=3)
    with importlib.import_module("h5py").File(path, "w") as file:
        file.create_dataset("examples/1/tokens", (10**12,), "S8", chunks=True)  # a file of kilobytes
    with pytest.raises(InvalidInput, match="unpacks to more than"):
        load("stackoverflow", vocabulary=3)
    write(path, whole)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InvalidInput, match="needs h5py: pip install"):
        load("stackoverflow", vocabulary=3)
    for lines in ("the 9\nthe 7\n", "the\n", "the nine\n"):
        write(home / "stackoverflow" / "stackoverflow.word_count", lines)
        with pytest.raises(InvalidInput, match="must be a new word and its count"):
            load("stackoverflow", vocabulary=2)
