"""Wrong plans and directories are refused before anything is written."""

import sys

import pytest

from tests.support.small_sweep import SPACE, experiment
from undrift.core.errors import InvalidInput
from undrift.experiments.runs.files import lock
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import Space, SpaceRow
from undrift.experiments.sweeps.spaces import space_of
from undrift.experiments.sweeps.sweeping import open_sweep, run_sweep

# bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"trials": 0}, r"trials must lie in \[1, inf\)"),
        ({"seeds": 0}, r"seeds must lie in \[1, inf\)"),
        ({"sampler": "gird"}, "unknown sampler 'gird'; did you mean 'grid'"),
        ({"validate": 1.0}, r"validate must lie in \[0, 1\)"),
        ({"sampler": "tpe"}, "sampler tpe needs a number of trials"),
        ({"space": space_of("search")}, "space search has a range for local.lr of fedavg"),
        ({"space": Space("x", rows=(SpaceRow("fedavg", {"beta": (1,)}),))}, "unknown parameter of fedavg: 'beta'"),
        ({"space": Space("x", common={"gamma": (1,)})}, "unknown parameter of fedavg: 'gamma"),
        ({"space": Space("x", common={"local.lr": (0.1, -1.0)})}, "lr must lie in"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_refused_before_anything_is_written(tmp_path, words, message):
    with pytest.raises(InvalidInput, match=message):
        run_sweep(experiment("fedavg"), Plan(**{"space": SPACE, **words}), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_an_unknown_space_is_refused():
    with pytest.raises(InvalidInput, match="unknown space 'quik'; did you mean 'quick'"):
        space_of("quik")
    with pytest.raises(InvalidInput, match="cannot be read"):
        space_of("nowhere.toml")


def test_a_method_that_cannot_run_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="full participation"):
        run_sweep(experiment("vrl-sgd"), Plan(SPACE), tmp_path / "s")


def test_another_sweep_in_the_directory_is_refused(tmp_path, swept_once):
    e, plan, directory, _ = swept_once
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(InvalidInput, match="another sweep: experiment.rounds is 6 there and 7 here"):
        run_sweep(experiment("fedavg", "scaffold-m", rounds=7), plan, directory)
    with pytest.raises(InvalidInput, match="another sweep: sweep.validate is 0.1 there and 0.2"):
        run_sweep(e, Plan(SPACE, seeds=2, last=3, validate=0.2), directory)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    (tmp_path / "letter.txt").write_text("precious")
    with pytest.raises(InvalidInput, match="exists and is no sweep"):
        run_sweep(e, plan, tmp_path)
    with pytest.raises(InvalidInput, match="is not a sweep"):
        open_sweep(tmp_path)
    held = lock(directory)
    try:
        with pytest.raises(InvalidInput, match="in use"):
            next(run_sweep(e, plan, directory))
    finally:
        held.release()


def test_a_broken_database_is_named(tmp_path, caplog):
    list(run_sweep(experiment("fedavg", rounds=1), Plan(SPACE), tmp_path))
    (tmp_path / "sweep.db").write_bytes(b"no database at all" * 100)
    assert list(run_sweep(experiment("fedavg", rounds=1), Plan(SPACE), tmp_path)) == []
    assert "sweep.db is damaged (file is not a database): its copy is used" in caplog.text
    for name in ("sweep.db", ".sweep.db.copy"):
        (tmp_path / name).write_bytes(b"no database at all" * 100)
    with pytest.raises(
        InvalidInput, match=r"sweep.db is damaged \(file is not a database\), and there is no sound copy"
    ):
        next(run_sweep(experiment("fedavg", rounds=1), Plan(SPACE), tmp_path))


def test_without_optuna_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidInput, match=r'pip install "undrift\[sweep\]"'):
        run_sweep(experiment("fedavg"), Plan(SPACE), tmp_path / "s")
    assert not (tmp_path / "s").exists()
