"""Damage to the files of sweeps, choices and references: found by `undrift verify`, made good when they are resumed."""

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.small_sweep import FEW, experiment
from undrift.core.errors import InvalidInput
from undrift.experiments.choosing import open_choosing, prepare_choosing
from undrift.experiments.choosing.choosing import carry_out, conclude
from undrift.experiments.runs import files
from undrift.experiments.runs.directory import open_directory
from undrift.experiments.runs.files import (
    CHECKSUMS,
    copy_of,
    is_as_written,
    marks_in,
    read_json,
    write_json,
    write_marked,
)
from undrift.experiments.runs.running import members, prepare_directory, run_experiment
from undrift.experiments.runs.verify import forget_damaged
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import Space
from undrift.experiments.sweeps.sweeping import open_sweep, run_sweep
from undrift.experiments.verify import verify


def spoil(path: Path, old: bytes | None = None, new: bytes = b"") -> None:
    """Change a file: a bit in its middle, or these bytes."""
    content, middle = path.read_bytes(), path.stat().st_size // 2
    if old is None:
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    else:
        changed = content.replace(old, new, 1)
    assert changed != content
    path.write_bytes(changed)


def damaged(folder: Path) -> list[str]:
    return [str(finding.path.relative_to(folder)) for finding in verify(folder) if not finding.sound]


# sweeps


def sweep(folder: Path) -> None:
    """A sweep, begun or resumed as `undrift resume` does."""
    if (folder / "sweep.toml").exists():
        described, plan = open_sweep(folder)
    else:
        described, plan = experiment("fedavg", "scaffold-m"), Plan(Space("few", common=FEW), trials=2, sampler="grid")
    list(run_sweep(described, plan, folder))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "sweep"
    sweep(folder)
    return folder


@pytest.fixture
def broken(swept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(swept, tmp_path / "sweep"))


def text_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("sweep.toml", "trials.csv", "best.toml")}


@pytest.mark.parametrize(
    "name", ["sweep.toml", ".sweep.toml.copy", "trials.csv", "best.toml", CHECKSUMS, f".{CHECKSUMS}.copy"]
)
def test_a_damaged_file_of_a_sweep_is_found_and_written_anew(name: str, swept: Path, broken: Path) -> None:
    assert damaged(broken) == []
    spoil(broken / name)
    assert damaged(broken) == ([] if name == f".{CHECKSUMS}.copy" else [name])
    sweep(broken)
    assert damaged(broken) == [] and text_of(broken) == text_of(swept)


def test_a_changed_plan_of_a_sweep_is_not_taken_for_the_one_it_was(
    broken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A digit of a step size: the trials that were left would have had it."""
    spoil(broken / "sweep.toml", b"steps = 2", b"steps = 3")
    assert open_sweep(broken)[0].local.steps == 2 and "its copy is used" in caplog.text
    spoil(broken / ".sweep.toml.copy", b"steps = 2", b"steps = 3")
    with pytest.raises(
        InvalidInput, match=r"sweep.toml is damaged or was changed, and so is its copy\): start a new sweep"
    ):
        open_sweep(broken)


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


WRONG = {
    "a quality": "update trial_user_attributes set value_json = '[0.99]' where key = 'qualities' and trial_id = 1",
    "a value": "update trial_values set value = 0.99 where trial_id = 2",
    "a parameter": "update trial_params set param_value = 1 - param_value where trial_id = 1",
    "a trial that is gone": "delete from trials where trial_id = 4",
    "a trial of another method": "update trials set study_id = 1 where trial_id = 4",
    "a direction": "update study_directions set direction = 'MINIMIZE' where study_id = 1",
    "a name": "update studies set study_name = 'fedavh' where study_id = 1",
}


@pytest.mark.parametrize("what", [*WRONG, "a page"])
def test_a_damaged_database_is_replaced_by_its_copy(
    what: str, swept: Path, broken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "a page":
        content = bytearray((broken / "sweep.db").read_bytes())
        content[100] ^= 4  # the kind of the first page
        (broken / "sweep.db").write_bytes(content)
    else:
        change(broken / "sweep.db", WRONG[what])
    if what not in ("a direction",):  # of which only a sweep knows which is right
        assert damaged(broken) == ["sweep.db"]
    sweep(broken)
    assert "its copy is used" in caplog.text and damaged(broken) == [] and text_of(broken) == text_of(swept)


@pytest.mark.parametrize("what", [*sorted(WRONG.keys() - {"a trial that is gone"}), "a page"])  # a copy may be behind
def test_a_damaged_copy_of_a_database_condemns_only_itself(
    what: str, swept: Path, broken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = copy_of(broken / "sweep.db")
    if what == "a page":
        content = bytearray(copy.read_bytes())
        content[100] ^= 4
        copy.write_bytes(content)
    else:
        change(copy, WRONG[what])
    if what not in ("a direction",):
        assert damaged(broken) == [".sweep.db.copy"]
    sweep(broken)
    assert "it is written anew" in caplog.text and damaged(broken) == [] and text_of(broken) == text_of(swept)


def test_trials_that_the_copy_does_not_have_yet_are_no_damage(broken: Path, swept: Path) -> None:
    for table in ("trials", "trial_params", "trial_values", "trial_user_attributes"):
        change(copy_of(broken / "sweep.db"), f"delete from {table} where trial_id = 4")
    assert damaged(broken) == []
    change(broken / "sweep.db", WRONG["a value"])
    sweep(broken)  # the last trial is run again
    assert text_of(broken) == text_of(swept)


def test_without_a_sound_copy_a_database_is_refused(broken: Path) -> None:
    for path in (broken / "sweep.db", copy_of(broken / "sweep.db")):
        change(path, WRONG["a value"])
    assert damaged(broken) == ["sweep.db", ".sweep.db.copy"]
    with pytest.raises(
        InvalidInput, match=r"trial 1 of scaffold-m is not what was written\).*remove it, and the trials are run"
    ):
        sweep(broken)
    for path in (broken / "sweep.db", copy_of(broken / "sweep.db")):
        path.unlink()
    sweep(broken)
    assert damaged(broken) == []


def test_an_experiment_that_was_changed_is_run_with_a_warning(
    broken: Path, undrift: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    path = broken / "best.toml"
    assert undrift("run", path, "--dry").code == 0 and "was changed" not in caplog.text
    spoil(path, b"steps = 2", b"steps = 3")
    assert undrift("run", path, "--dry").code == 0
    assert "best.toml was changed since it was written, or is damaged: it is run as it is" in caplog.text


# choices


SETTLED = {"trials": 1, "seeds": 1, "rounds": 2}


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "choice"
    ready = prepare_choosing(experiment("fedavg", "scaffold-m"), given=SETTLED, directory=folder)
    list(carry_out(ready, folder))
    conclude(ready, folder)
    return folder


@pytest.mark.parametrize(
    "name", ["plan.json", ".plan.json.copy", "finals/fedavg.json", "choice.json", "chosen.toml", "sweep/best.toml"]
)
def test_a_damaged_file_of_a_choice_is_found_and_made_again(
    name: str, choice: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(choice, tmp_path / "choice"))
    assert damaged(folder) == []
    before = ud.load_choice(folder)
    spoil(folder / name)
    assert damaged(folder) == ([] if name == ".plan.json.copy" else [name])
    if name == "choice.json":
        with pytest.raises(
            InvalidInput, match="choice.json .*: give what `undrift choose` wrote; `undrift resume` of its"
        ):
            ud.load_choice(folder)
    ready = open_choosing(folder)
    ended = [each.label for each in carry_out(ready, folder)]
    assert ended == (["fedavg"] if name == "finals/fedavg.json" else [])
    assert conclude(ready, folder).contenders == before.contenders
    assert ("copy is used" in caplog.text) is (name == "plan.json")
    assert ("runs are run again" in caplog.text) is (name == "finals/fedavg.json")
    assert damaged(folder) == []


def test_a_choice_that_was_killed_as_it_began_goes_on(tmp_path: Path) -> None:
    write_json(tmp_path / ".plan.json.copy", {})
    prepare_choosing(experiment("fedavg"), given=SETTLED, directory=tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be used"):
        prepare_choosing(experiment("fedavg"), given=SETTLED, directory=tmp_path)


# references


def compared(folder: Path) -> None:
    if not folder.exists():
        prepare_directory(experiment("fedavg", rounds=2, reference=["fine-tuned"]), folder)
    whole = open_directory(folder)
    forget_damaged(members(whole))
    assert not [update.error for update in run_experiment(whole) if update.error]


def test_what_a_reference_began_with_is_checked_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compared(tmp_path / "run")
    folder = tmp_path / "run" / "fine-tuned" / "seed-0"
    about, model = read_json(folder / "reference.json"), (folder / "model.safetensors").read_bytes()
    compared(tmp_path / "run")  # once more, with nothing to do
    assert read_json(folder / "reference.json") == about and about["kind"] == "fine-tuned" and about["gradients"]
    for name in ("reference.json", "start.safetensors"):
        spoil(folder / name)
        assert [Path(each).name for each in damaged(tmp_path / "run")] == [name]
        compared(tmp_path / "run")
        assert damaged(tmp_path / "run") == [] and read_json(folder / "reference.json") == about
        assert (folder / "model.safetensors").read_bytes() == model
    assert "it is written anew" in caplog.text


# files whose checksums are beside them


def test_between_two_versions_both_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_marked(tmp_path, {"a.csv": b"1"})
    really = files.write_aside

    def killed(path: Path, *given: Any, **settings: Any) -> None:
        if path.name == "a.csv":
            raise ZeroDivisionError
        really(path, *given, **settings)

    with monkeypatch.context() as patch:  # killed after it was said what is going to be written
        patch.setattr(files, "write_aside", killed)
        with pytest.raises(ZeroDivisionError):
            write_marked(tmp_path, {"a.csv": b"2"})
    assert is_as_written(tmp_path / "a.csv")
    write_marked(tmp_path, {"a.csv": b"2"})
    assert is_as_written(tmp_path / "a.csv") and len(marks_in(tmp_path)["a.csv"]) == 2
    (tmp_path / "a.csv").write_bytes(b"3")
    assert not is_as_written(tmp_path / "a.csv")
    assert is_as_written(tmp_path / "other.csv")  # of which nothing is known


def test_checksums_that_are_lost_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_marked(tmp_path, {"a.csv": b"1"})
    for path in (tmp_path / CHECKSUMS, copy_of(tmp_path / CHECKSUMS)):
        path.write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        assert is_as_written(tmp_path / "a.csv") and "taken as it is" in caplog.text
    with pytest.raises(InvalidInput, match="no run in"):
        list(verify(tmp_path / "nothing"))
