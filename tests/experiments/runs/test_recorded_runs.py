"""What stays of a run: the same bytes again, nothing lost, nothing overwritten, faults said."""

import errno
import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from tests.faults.harness import in_fork
from tests.faults.runs import EVERY_3, ROUNDS, config
from tests.support.run_directories import read_lines
from undrift.core.records import children
from undrift.experiments.runs import files, running
from undrift.experiments.runs.checkpoint import Checkpoints, Unusable
from undrift.experiments.runs.directory import read_times
from undrift.experiments.runs.recorded import Recording, recorded
from undrift.simulation.api import RunConfig
from undrift.simulation.client_states import ClientStates
from undrift.simulation.results import State

STOPPED = 8  # the round after which some runs are stopped, with checkpoints of rounds 6 and 8


def finished(folder: Path, method: str = "scaffold") -> Path:
    folder.mkdir(exist_ok=True)
    for _ in recorded(folder, config(method), EVERY_3):
        pass
    return folder


def stopped_after(folder: Path, rounds: int, method: str = "scaffold") -> Path:
    """A run whose reader went away after so many rounds."""
    folder.mkdir(exist_ok=True)
    playing = recorded(folder, config(method), EVERY_3)
    assert len(list(islice(playing, rounds))) == rounds
    playing.close()  # pyright: ignore[reportAttributeAccessIssue]
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped_after(tmp_path_factory.mktemp("half"), STOPPED)


@pytest.fixture
def stopped(half: Path, tmp_path: Path) -> Path:
    """A run that ended too early."""
    return shutil.copytree(half, tmp_path / "run")


def same(folder: Path, whole: Path) -> bool:
    names = ("metrics.jsonl", "model.safetensors", "best.safetensors", "result.json")
    return all((folder / name).read_bytes() == (whole / name).read_bytes() for name in names)


def test_the_figures_are_the_same_bytes_again(whole: Path, tmp_path: Path) -> None:
    assert same(finished(tmp_path / "again"), whole)
    lines = read_lines(whole / "metrics.jsonl")
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))


def test_the_record_is_that_of_ud_run(whole: Path) -> None:
    s = config("scaffold")
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
    lines = read_lines(whole / "metrics.jsonl")
    assert [line["accuracy"] for line in lines] == [r.metrics["accuracy"] for r in result.history]
    assert [line["bytes_up"] for line in lines] == [r.bytes_up for r in result.history]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, ROUNDS - 1, ROUNDS])
def test_a_run_whose_reader_goes_away_goes_on(rounds: int, whole: Path, tmp_path: Path) -> None:
    folder = stopped_after(tmp_path / "run", rounds)
    assert not (folder / "result.json").exists()
    assert Checkpoints(folder / "checkpoints").rounds()[0] == rounds  # the last whole round is kept
    assert same(finished(folder), whole)


def test_visits_still_out_are_told_until_the_run_goes_on(tmp_path: Path) -> None:
    """They are recorded as far as they came; a run that is made longer records how they ended instead."""
    method = "scaffold, late"
    short = replace(config(method), rounds=STOPPED)
    folders = [tmp_path / name for name in ("short", "longer", "whole")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[:2]:
        for _ in recorded(folder, short, EVERY_3):
            pass
    lines = read_lines(folders[0] / "visits.jsonl")
    out = [line for line in lines if line["fate"] == "still out"]
    end = read_lines(folders[0] / "metrics.jsonl")[-1]
    assert len(out) == end["timing"]["in_flight"] > 0
    for line in out:
        assert line["dispatched"] <= line["begins"] <= line["ends"] <= line["returns"]
        assert line["returns"] == end["virtual_seconds"]
    assert sorted(line["order"] for line in lines) == list(range(1, len(lines) + 1))
    for folder in folders[1:]:
        for _ in recorded(folder, config(method), EVERY_3):
            pass
    assert same(folders[1], folders[2])
    visits = [(folder / "visits.jsonl").read_bytes() for folder in folders[1:]]
    assert visits[0] == visits[1] and visits[0].count(b"still out") > 0
    again = (folders[0] / "visits.jsonl").read_bytes()
    for _ in recorded(folders[0], short, EVERY_3):  # finished already: there is nothing to do but to end
        raise AssertionError
    assert (folders[0] / "visits.jsonl").read_bytes() == again


def test_two_checkpoints_are_kept_and_what_they_need(whole: Path) -> None:
    folder = whole / "checkpoints"
    rounds = Checkpoints(folder).rounds()
    assert rounds[0] == ROUNDS and len(rounds) == 2
    needed = {f["name"] for r in rounds for f in json.loads((folder / f"{r:08d}.json").read_text())["clients"]}
    needed |= {f"{r:08d}.{kind}" for r in rounds for kind in ("json", "safetensors")}
    there = {path.name for path in folder.iterdir()}
    assert there == needed | {copied(name) for name in needed}
    assert all((folder / name).read_bytes() == (folder / copied(name)).read_bytes() for name in needed)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (whole / "model.safetensors").stat().st_mode & 0o777 == 0o600


def copied(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    return f"{stem}.copy.{kind}"


def test_files_of_others_neither_stop_a_run_nor_are_deleted(whole: Path, stopped: Path) -> None:
    place = stopped / "checkpoints"
    for name in ("notes.txt", "0foo.json", "1.json", "clients.safetensors", ".hidden"):
        (place / name).write_text("mine")
    (place / "99999998.json").mkdir()
    before = {path.name for path in place.iterdir() if not path.name.startswith(("000", "clients-"))}
    assert same(finished(stopped), whole)
    assert before <= {path.name for path in place.iterdir()}


def test_half_written_files_follow_no_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in (
        ".result.json.part",
        ".model.safetensors.part",
        "checkpoints/.00000003.json.part",
        ".times.jsonl.part",
    ):
        (tmp_path / "run" / name).symlink_to(mine)
    finished(tmp_path / "run")
    assert mine.read_text() == "precious"


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


DAMAGES = [damage_cut, damage_flip, damage_gone, damage_empty]
PARTS = ["00000008.safetensors", "00000008.json", "clients-00000008-0.safetensors"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize("copy", [False, True])
def test_a_file_that_is_damaged_is_replaced_by_its_copy(
    damage: Callable[[Path], None],
    which: str,
    copy: bool,
    whole: Path,
    stopped: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage(stopped / "checkpoints" / (copied(which) if copy else which))
    playing = recorded(stopped, config("scaffold"), EVERY_3)
    assert next(iter(playing)).round == STOPPED + 1
    assert ("its copy is used" in caplog.text) is (not copy)
    for _ in playing:
        pass
    assert same(stopped, whole)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", PARTS)
def test_a_damaged_checkpoint_is_said_and_the_one_before_used(
    damage: Callable[[Path], None],
    which: str,
    whole: Path,
    stopped: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    newest, before = Checkpoints(stopped / "checkpoints").rounds()
    assert newest == STOPPED
    damage(stopped / "checkpoints" / which)
    damage(stopped / "checkpoints" / copied(which))
    playing = recorded(stopped, config("scaffold"), EVERY_3)
    assert next(iter(playing)).round == before + 1
    if not (which.endswith("json") and damage is damage_gone):
        assert "the checkpoint of round 8 cannot be used" in caplog.text
    for _ in playing:
        pass
    assert same(stopped, whole)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["metrics.jsonl", ".metrics.jsonl.copy", "times.jsonl"])
def test_what_was_recorded_is_rebuilt(
    damage: Callable[[Path], None], which: str, whole: Path, stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(stopped / which)
    playing = recorded(stopped, config("scaffold"), EVERY_3)
    assert next(iter(playing)).round == STOPPED + 1
    assert ("its copy is used" in caplog.text) is (which == "metrics.jsonl")
    for _ in playing:
        pass
    assert same(stopped, whole)
    assert (stopped / ".metrics.jsonl.copy").read_bytes() == (whole / ".metrics.jsonl.copy").read_bytes()
    times = read_times(stopped / "times.jsonl")
    assert list(times) == list(range(1, ROUNDS + 1)) and None not in list(times.values())[STOPPED:]


def test_a_state_of_another_shape_is_not_used(tmp_path: Path) -> None:
    """The checksums are right, but what they protect is not of this run."""
    folder = stopped_after(tmp_path / "run", STOPPED, "fedadam")
    other, like = Checkpoints(tmp_path / "other"), config("fedadam")
    saved = Checkpoints(folder / "checkpoints").read(STOPPED, like.first_state(None, folder))
    names = [name for name, value in (children(saved.state.server) or {}).items() if name != "x"]
    for name in names:
        wrong = replace(saved.state, server=replace(saved.state.server, **{name: torch.zeros(3)}))
        other.save(wrong, saved.best, {}, wait=True)
        with pytest.raises(Unusable, match="other shapes"):
            other.read(STOPPED, like.first_state(None, folder))
    assert names


def test_with_no_usable_checkpoint_nothing_is_touched(stopped: Path) -> None:
    for path in (stopped / "checkpoints").glob("0*.json"):  # and the copies
        damage_flip(path)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(ud.InvalidInput, match="round 8: .* round .*: .* start anew"):
        next(iter(recorded(stopped, config("scaffold"), EVERY_3)))
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}


def test_killed_before_its_first_checkpoint_a_run_begins_anew(whole: Path, tmp_path: Path) -> None:
    folder = stopped_after(tmp_path / "run", 5)
    shutil.rmtree(folder / "checkpoints")
    assert same(finished(folder), whole)


@pytest.mark.parametrize("file", [r"clients-(\d+)-.*", r"(\d+)\.safetensors", r"(\d+)\.json"])
def test_a_write_that_fails_once_ends_the_run_and_loses_nothing(
    file: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files._aside  # where every write begins

    def fails(path: Path, *how: int) -> AbstractContextManager[int]:
        found = re.fullmatch(file, path.name)
        if found and int(found[1]) > 3:  # any after the first
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *how)

    folder = tmp_path / "run"
    folder.mkdir()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(files, "_aside", fails)
        for _ in recorded(folder, config("scaffold"), EVERY_3):
            pass
    assert Checkpoints(folder / "checkpoints").rounds() == [3]
    assert same(finished(folder), whole)


def test_lines_that_were_lost_are_recorded_again(whole: Path, stopped: Path) -> None:
    for name in ("metrics.jsonl", ".metrics.jsonl.copy"):
        lines = (stopped / name).read_bytes().split(b"\n")
        (stopped / name).write_bytes(b"\n".join(lines[:7]) + b"\n")  # a disk that lost the end
    assert same(finished(stopped), whole)


def test_a_checkpoint_of_another_method_is_not_used(stopped: Path) -> None:
    fresh = config("fedhbm")
    x = fresh.problem.x0
    state = State(0, fresh.algorithm.server(x), ClientStates(fresh.algorithm.client(x)))
    with pytest.raises(Unusable):
        Checkpoints(stopped / "checkpoints").read(STOPPED, state)


def test_a_full_disk_ends_the_run_and_loses_nothing(whole: Path, tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    folder.mkdir()

    def run() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            for r in recorded(folder, config("scaffold"), EVERY_3):
                if r.round == STOPPED:  # from here on no file may grow beyond what its lines are now
                    size = (folder / "metrics.jsonl").stat().st_size + 300
                    said.write_text(f"{r.round}")
                    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        except OSError as error:
            os._exit(error.errno or 1)

    _, status = os.waitpid(in_fork(run), 0)
    assert os.waitstatus_to_exitcode(status) in (errno.EFBIG, errno.ENOSPC) and said.read_text() == f"{STOPPED}"
    assert not list((folder / "checkpoints").glob(".*")), "nothing half-written stays"
    assert same(finished(folder), whole)


def test_a_run_that_diverges_is_recorded_as_far_as_it_went(tmp_path: Path) -> None:
    s = config("fedavg")
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


# states larger than memory


def test_states_beyond_their_budget_lie_in_a_file_and_are_the_same(tmp_path: Path) -> None:
    small = config("scaffold")
    a_client = small.problem.x0.numel() * 4
    tight = Recording(checkpoint_every=3, state_memory=3 * a_client)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    states = None
    for r in recorded(tmp_path / "a", small, tight):
        states = r.state.clients
    for r in recorded(tmp_path / "b", small, EVERY_3):
        assert not r.state.clients.mapped
    assert states is not None and states.mapped
    assert same(tmp_path / "a", tmp_path / "b")


def test_runs_side_by_side_share_the_memory_for_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []

    def noted(path: Path, config: Any, given: Recording, logs: Any = None) -> Iterator[Any]:
        told.append(given.state_memory)
        raise InterruptedError
        yield

    monkeypatch.setattr(running, "recorded", noted)
    monkeypatch.setattr(running, "half_of_memory", lambda: 12)
    words: dict[str, Any] = {"algorithm": {"name": "fedavg"}, "rounds": 1}
    for name, more in (("usual", {}), ("own", {"state_memory": 5})):
        made = running.prepare_directory(ud.Experiment(**{**words, **more}), tmp_path / name)
        with pytest.raises(InterruptedError):
            list(running.run_one(made, at_a_time=3))
    assert told == [4, 5]
    monkeypatch.setattr(running.sys, "executable", "echo")
    told_to_share = [worker.process.communicate()[0].split()[-1] for worker in running.start_workers(3, threads=1)]
    assert told_to_share == ["3", "3", "3"]
