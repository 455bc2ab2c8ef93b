"""Files of a run: whole under their names, lines cut back, one process in a directory, records as tensors and JSON."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

import undrift as ud
from tests.support.run_directories import read_lines
from undrift.core.records import record
from undrift.experiments.runs.files import Draft, Lines, holds, lock, write_aside
from undrift.experiments.runs.tree import classes_in, from_json, to_json


@pytest.mark.parametrize("direct", [True, False])
def test_a_draft_is_a_safetensors_file_again_and_again(
    direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    draft = Draft()
    for size in (1, 1000, 4096, 7):  # it grows, and a smaller file leaves nothing of a larger one
        content = {
            "flags": torch.arange(size) % 3 == 0,
            "rows": torch.randn(size, 5),
            "nothing": torch.empty(0, 3, dtype=torch.float64),
            "number": torch.tensor(1.5, dtype=torch.float64),
            "clients": torch.arange(size),
        }
        draft.fill(content)
        written, crc = draft.write(tmp_path / "file")
        data = (tmp_path / "file").read_bytes()
        assert (len(data), zlib.crc32(data)) == (written, crc)
        found = load(data)
        assert found.keys() == content.keys()
        assert all(torch.equal(found[name], t) for name, t in content.items())


def test_one_directory_one_process(tmp_path: Path) -> None:
    held = lock(tmp_path)
    with pytest.raises(ud.InvalidInput, match="in use by another process"):
        lock(tmp_path)
    held.release()
    lock(tmp_path).release()


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ("{gone}\n{here}\n", "the one that began, {gone}, is gone; what it started may still run, else remove"),
        (
            "{gone}\nfar-away\n",
            "process {gone} on far-away: wait for it, or stop it there first; if it is gone, remove",
        ),
        ("", "another process: wait for it, or stop it first"),
        ("\xff", "another process: wait for it, or stop it first"),
    ],
)
def test_who_holds_a_lock_is_told(left: str, said: str, tmp_path: Path) -> None:
    """As of a process that is gone and whose children still hold it."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    words = {"gone": ended.pid, "here": socket.gethostname()}
    held = lock(tmp_path)
    (tmp_path / ".lock").write_bytes(left.format(**words).encode("latin-1"))
    try:
        with pytest.raises(ud.InvalidInput, match=re.escape(said.format(**words))):
            lock(tmp_path)
    finally:
        held.release()


def test_a_file_under_its_name_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_aside(path, b"old")

    def no_room(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space"):
        write_aside(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_lines_can_be_cut_back(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "x.jsonl")
    lines.add({"a": 1})
    mark = lines.mark()
    lines.add({"a": 2})
    lines.close()
    assert holds(tmp_path / "x.jsonl", mark)
    again = Lines(tmp_path / "x.jsonl", mark["bytes"], mark["crc32"])
    again.add({"a": 3})
    again.close()
    with (tmp_path / "x.jsonl").open("ab") as file:
        file.write(b'{"a": 4')  # being written when the process was killed
    assert [line["a"] for line in read_lines(tmp_path / "x.jsonl")] == [1, 3]
    assert not holds(tmp_path / "x.jsonl", {"bytes": mark["bytes"], "crc32": 1})


# records as tensors and JSON


@record
class Leaf:
    x: torch.Tensor
    name: str | None


@record
class Node:
    parts: tuple[Leaf, ...]
    count: int


plain_values = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
leaves = st.builds(lambda n, s: Leaf(torch.arange(n), s), st.integers(0, 4), st.none() | st.text())
trees = st.recursive(
    plain_values | leaves,
    lambda inner: (
        st.lists(inner).map(tuple) | st.builds(lambda parts, n: Node(tuple(parts), n), st.lists(leaves), st.integers())
    ),
)


@given(trees)
def test_records_come_back_as_they_were(tree: object) -> None:
    found: dict[str, torch.Tensor] = {}
    shape = json.loads(json.dumps(to_json(tree, found, "t")))
    kinds = classes_in([Node((), 0), Leaf(torch.zeros(1), None)])
    back = from_json(shape, found, kinds)
    other: dict[str, torch.Tensor] = {}
    assert to_json(back, other, "t") == to_json(tree, {}, "t")
    assert found.keys() == other.keys() and all(torch.equal(found[k], other[k]) for k in found)


def test_a_record_holds_no_code() -> None:
    with pytest.raises(TypeError, match="plain values"):
        to_json((print,), {}, "t")
