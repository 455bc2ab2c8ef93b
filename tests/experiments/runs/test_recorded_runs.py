"""What stays of a run: the same bytes again, nothing lost, nothing overwritten, faults said."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file

import undrift as ud
from tests.support.killed_runs import EVERY_7, ROUNDS, settings
from undrift.core.records import record
from undrift.experiments.runs import files, running
from undrift.experiments.runs.checkpoint import Checkpoints, Unusable
from undrift.experiments.runs.files import Draft, Lines, holds, lock, read_lines, write_aside
from undrift.experiments.runs.recorded import Recording, recorded
from undrift.experiments.runs.tree import classes_in, from_json, to_json
from undrift.simulation.api import RunConfig
from undrift.simulation.client_states import ClientStates
from undrift.simulation.results import State


def finished(folder: Path, method: str = "scaffold") -> Path:
    folder.mkdir(exist_ok=True)
    for _ in recorded(folder, settings(method), EVERY_7):
        pass
    return folder


def stopped_after(folder: Path, rounds: int, method: str = "scaffold") -> Path:
    """A run whose reader went away after so many rounds."""
    folder.mkdir(exist_ok=True)
    playing = recorded(folder, settings(method), EVERY_7)
    assert len(list(islice(playing, rounds))) == rounds
    playing.close()  # pyright: ignore[reportAttributeAccessIssue]
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("whole"))


def same(folder: Path, whole: Path) -> bool:
    names = ("metrics.jsonl", "model.safetensors", "best.safetensors", "result.json")
    return all((folder / name).read_bytes() == (whole / name).read_bytes() for name in names)


def test_the_figures_are_the_same_bytes_again(whole: Path, tmp_path: Path) -> None:
    assert same(finished(tmp_path / "again"), whole)
    lines = list(read_lines(whole / "metrics.jsonl"))
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))


def test_the_record_is_that_of_ud_run(whole: Path) -> None:
    s = settings("scaffold")
    result = ud.run(
        s.algorithm,
        s.problem,
        rounds=s.rounds,
        participation=s.participation,
        local=s.local,
        engine="batched",
    )
    model = load_file(whole / "model.safetensors")
    for name, value in result.model().state_dict().items():
        assert torch.equal(model[name], value)
    assert result.best is not None
    about = json.loads((whole / "result.json").read_text())["best"]
    assert (about["round"], about["value"]) == (result.best.round, result.best.value)
    lines = list(read_lines(whole / "metrics.jsonl"))
    assert [line["accuracy"] for line in lines] == [r.metrics["accuracy"] for r in result.history]
    assert [line["bytes_up"] for line in lines] == [r.bytes_up for r in result.history]


@pytest.mark.parametrize("rounds", [1, 6, 7, 8, ROUNDS - 1, ROUNDS])
def test_a_run_whose_reader_goes_away_goes_on(rounds: int, whole: Path, tmp_path: Path) -> None:
    folder = stopped_after(tmp_path / "run", rounds)
    assert not (folder / "result.json").exists()
    assert Checkpoints(folder / "checkpoints").rounds()[0] == rounds  # the last whole round is kept
    assert same(finished(folder), whole)


def test_visits_still_out_are_told_until_the_run_goes_on(tmp_path: Path) -> None:
    """They are recorded as far as they came; a run that is made longer records how they ended instead."""
    method = "scaffold, late"
    short = replace(settings(method), rounds=25)
    folders = [tmp_path / name for name in ("short", "longer", "whole")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[:2]:
        for _ in recorded(folder, short, EVERY_7):
            pass
    lines = list(read_lines(folders[0] / "visits.jsonl"))
    out = [line for line in lines if line["fate"] == "still out"]
    end = list(read_lines(folders[0] / "metrics.jsonl"))[-1]
    assert len(out) == end["timing"]["in_flight"] > 0
    for line in out:
        assert line["dispatched"] <= line["begins"] <= line["ends"] <= line["returns"]
        assert line["returns"] == end["virtual_seconds"]
    assert sorted(line["order"] for line in lines) == list(range(1, len(lines) + 1))
    for folder in folders[1:]:
        for _ in recorded(folder, settings(method), EVERY_7):
            pass
    assert same(folders[1], folders[2])
    visits = [(folder / "visits.jsonl").read_bytes() for folder in folders[1:]]
    assert visits[0] == visits[1] and visits[0].count(b"still out") > 0
    again = (folders[0] / "visits.jsonl").read_bytes()
    for _ in recorded(
        folders[0], short, EVERY_7
    ):  # finished already: there is nothing to do but to end
        raise AssertionError
    assert (folders[0] / "visits.jsonl").read_bytes() == again


def test_two_checkpoints_are_kept_and_what_they_need(whole: Path) -> None:
    folder = whole / "checkpoints"
    rounds = Checkpoints(folder).rounds()
    assert rounds[0] == ROUNDS and len(rounds) == 2
    needed = {
        f["name"]
        for r in rounds
        for f in json.loads((folder / f"{r:08d}.json").read_text())["clients"]
    }
    there = {path.name for path in folder.iterdir()}
    assert there == needed | {f"{r:08d}.{kind}" for r in rounds for kind in ("json", "safetensors")}


def damage_cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def damage_gone(path: Path) -> None:
    path.unlink()


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_cut, damage_flip, damage_gone, damage_empty])
@pytest.mark.parametrize(
    "which", ["00000020.safetensors", "00000020.json", "clients-00000020-0.safetensors"]
)
def test_a_damaged_checkpoint_is_said_and_the_one_before_used(
    damage: Callable[[Path], None],
    which: str,
    whole: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = stopped_after(tmp_path / "run", 20)
    newest, before = Checkpoints(folder / "checkpoints").rounds()
    assert newest == 20
    damage(folder / "checkpoints" / which)
    playing = recorded(folder, settings("scaffold"), EVERY_7)
    assert next(iter(playing)).round == before + 1
    if not (which.endswith("json") and damage is damage_gone):
        assert "the checkpoint of round 20 cannot be used" in caplog.text
    for _ in playing:
        pass
    assert same(folder, whole)


def test_with_no_usable_checkpoint_nothing_is_touched(tmp_path: Path) -> None:
    folder = stopped_after(tmp_path / "run", 20)
    for path in (folder / "checkpoints").glob("0*.json"):
        damage_flip(path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ud.InvalidInput, match="round 20: .* round .*: .* start anew"):
        next(iter(recorded(folder, settings("scaffold"), EVERY_7)))
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_killed_before_its_first_checkpoint_a_run_begins_anew(whole: Path, tmp_path: Path) -> None:
    folder = stopped_after(tmp_path / "run", 5)
    shutil.rmtree(folder / "checkpoints")
    assert same(finished(folder), whole)


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


@pytest.mark.parametrize("file", [r"clients-(\d+)-.*", r"(\d+)\.safetensors", r"(\d+)\.json"])
def test_a_write_that_fails_once_ends_the_run_and_loses_nothing(
    file: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files._beside  # where every write begins

    def fails(path: Path) -> Path:
        found = re.fullmatch(file, path.name)
        if found and int(found[1]) > 7:  # any after the first
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path)

    folder = tmp_path / "run"
    folder.mkdir()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(files, "_beside", fails)
        for _ in recorded(folder, settings("scaffold"), EVERY_7):
            pass
    assert Checkpoints(folder / "checkpoints").rounds() == [7]
    assert same(finished(folder), whole)


def test_lines_that_were_lost_are_recorded_again(whole: Path, tmp_path: Path) -> None:
    folder = stopped_after(tmp_path / "run", 20)
    lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    (folder / "metrics.jsonl").write_bytes(
        b"\n".join(lines[:15]) + b"\n"
    )  # a disk that lost the end
    assert same(finished(folder), whole)


def test_a_checkpoint_of_another_method_is_not_used(tmp_path: Path) -> None:
    folder = stopped_after(tmp_path / "run", 20, "scaffold")
    fresh = settings("fedhbm")
    x = fresh.problem.x0
    state = State(0, fresh.algorithm.server(x), ClientStates(fresh.algorithm.client(x)))
    with pytest.raises(Unusable):
        Checkpoints(folder / "checkpoints").read(20, state)


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.support.killed_runs import EVERY_7, settings
from undrift.experiments.runs.recorded import recorded
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
try:
    for r in recorded(folder, settings("scaffold"), EVERY_7):
        if r.round == 20:  # from here on no file may grow beyond what its lines are now
            size = (folder / "metrics.jsonl").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, size + 300))
except OSError as error:
    sys.exit(f"{error.errno} at {r.round}")
"""


def test_a_full_disk_ends_the_run_and_loses_nothing(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    told = subprocess.run(
        [sys.executable, "-c", FULL, str(folder)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert told.stderr.startswith(str(errno.EFBIG)) or told.stderr.startswith(str(errno.ENOSPC))
    assert not list((folder / "checkpoints").glob(".*")), "nothing half-written stays"
    assert same(finished(folder), whole)


def test_a_run_that_diverges_is_recorded_as_far_as_it_went(tmp_path: Path) -> None:
    s = settings("fedavg")
    wild = RunConfig(
        s.algorithm,
        s.problem,
        40,
        s.participation,
        ud.Local(steps=5, lr=1e30, weight_decay=1.0),
        engine="batched",
    )
    assert len(list(recorded(tmp_path, wild))) < 40
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["rounds"] < 40 and "finite" in result["stopped"]


def test_one_directory_one_process(tmp_path: Path) -> None:
    held = lock(tmp_path)
    with pytest.raises(ud.InvalidInput, match="in use by another process"):
        lock(tmp_path)
    held.release()
    lock(tmp_path).release()


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
        st.lists(inner).map(tuple)
        | st.builds(lambda parts, n: Node(tuple(parts), n), st.lists(leaves), st.integers())
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


# states larger than memory


def test_states_beyond_their_budget_lie_in_a_file_and_are_the_same(tmp_path: Path) -> None:
    small = settings("scaffold")
    a_client = small.problem.x0.numel() * 4
    tight = Recording(checkpoint_every=7, state_memory=3 * a_client)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    states = None
    for r in recorded(tmp_path / "a", small, tight):
        states = r.state.clients
    for r in recorded(tmp_path / "b", small, EVERY_7):
        assert not r.state.clients.mapped
    assert states is not None and states.mapped
    assert same(tmp_path / "a", tmp_path / "b")


def test_a_mapped_table_takes_no_memory_of_the_process(tmp_path: Path) -> None:
    """A gigabyte of states under a limit of memory that could not hold it."""
    code = """
import resource, sys, torch
from pathlib import Path
from undrift.core.records import record
from undrift.experiments.runs import checkpoint
from undrift.simulation.client_states import ClientStates
@record
class C:
    c: torch.Tensor
states = ClientStates(C(torch.zeros(250_000)), budget=10**7, folder=Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_DATA, (600 * 2**20, 600 * 2**20))
for first in range(0, 1000, 10):
    rows = torch.full((10, 250_000), float(first))
    states.scatter(range(first, first + 10), C(rows))
assert states.mapped and float(states.gather([995]).c[0, 7]) == 990.0 and float(states.gather([2000]).c.sum()) == 0
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_a_disk_too_small_for_states_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    states = ClientStates(Leaf(torch.zeros(4), None), budget=1, folder=tmp_path)
    with pytest.raises(ud.InvalidInput, match="on disk in .*No space left"):
        states.scatter([0, 1], Leaf(torch.zeros(2, 4), None))


def test_runs_side_by_side_share_the_memory_for_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int | None] = []

    def noted(path: Path, config: Any, given: Recording, logs: Any = None) -> Iterator[Any]:
        told.append(given.state_memory)
        raise InterruptedError
        yield

    monkeypatch.setattr(running, "recorded", noted)
    monkeypatch.setattr(running, "half_of_memory", lambda: 12)
    words: dict[str, Any] = {"algorithm": {"name": "fedavg"}, "rounds": 1}
    for name, more in (("usual", {}), ("own", {"state_memory": 5})):
        made = running.prepared(ud.Experiment(**{**words, **more}), tmp_path / name)
        with pytest.raises(InterruptedError):
            list(running.one_run(made.path, at_a_time=3))
    assert told == [4, 5]
    monkeypatch.setattr(running.sys, "executable", "echo")
    process = running._started(1, 3)
    assert process.communicate()[0].split()[-1] == "3"
