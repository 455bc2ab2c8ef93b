"""The figures of a run in TensorBoard, Weights & Biases and MLflow, all on this machine."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import undrift as ud
from undrift.experiments.runs import loggers as logs


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with all loggers, in a process of its own: these libraries keep state, and speak their own warnings."""
    folder = tmp_path_factory.mktemp("logged")
    words = "compare fedavg --rounds 3 --steps 1 --log tensorboard --log wandb --log mlflow --out run -q"
    environment = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    told = subprocess.run(
        [sys.executable, "-m", "undrift.cli", *words.split()],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return folder / "run"


@pytest.mark.slow
@pytest.mark.xdist_group("loggers")
def test_tensorboard(logged: Path) -> None:
    (events,) = (logged / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"accuracy" in content and b"bytes_sent" in content


@pytest.mark.slow
@pytest.mark.xdist_group("loggers")
def test_wandb_offline(logged: Path) -> None:
    assert list((logged / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.slow
@pytest.mark.xdist_group("loggers")
def test_mlflow(logged: Path) -> None:
    import sqlite3

    with sqlite3.connect(logged / "mlflow.db") as database:
        rows = database.execute("select step from metrics where key = 'accuracy' order by step").fetchall()
    database.close()
    assert rows == [(1,), (2,), (3,)]


class Pretended:
    """As much of wandb and mlflow as beginning a run needs; what it was asked for is kept."""

    def __init__(self, known: set[str]):
        self.known, self.begun = known, []
        self.exceptions = SimpleNamespace(MlflowException=KeyError)
        self.is_tracking_uri_set, self.set_experiment = (lambda: True), (lambda name: None)
        self.log_params = lambda config: None

    def init(self, **words: Any) -> None:
        self.begun.append((words["id"], words["resume"]))

    def get_run(self, run: str) -> None:
        if run not in self.known:
            raise KeyError(run)

    def start_run(self, run_id: str | None, run_name: str) -> Any:
        run_id = run_id or f"run {len(self.begun)}"
        self.begun.append(run_id)
        self.known.add(run_id)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))


def test_a_resumed_run_is_the_same_run_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = Pretended(set())
    monkeypatch.setattr(logs, "import_module", lambda name: there)
    for _ in range(2):
        logs.Logs(["mlflow"], tmp_path, "name", {})
    assert there.begun == ["run 0", "run 0"]
    there.known.clear()  # as in another place
    logs.Logs(["mlflow"], tmp_path, "name", {})
    assert there.begun[2:] == ["run 2"]
    there.begun.clear()
    for _ in range(2):
        logs.Logs(["wandb"], tmp_path, "name", {})
    (first, allow), again = there.begun
    assert (first, allow) == again and allow == "allow" and first


def test_one_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(logs, "import_module", missing)
    with pytest.raises(ud.InvalidInput, match=r'pip install "undrift\[wandb\]"'):
        logs.Logs(["wandb"], tmp_path, "name", {})
