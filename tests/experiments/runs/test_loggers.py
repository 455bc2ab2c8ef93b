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


def logged(folder: Path, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A short run that logs, in a process of its own: these libraries keep state, and speak their own warnings."""
    words = [
        "compare",
        "fedavg",
        "--rounds",
        "3",
        "--steps",
        "1",
        "--log",
        name,
        "--out",
        "run",
        "-q",
    ]
    return subprocess.run(
        [sys.executable, "-m", "undrift.cli", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_tensorboard(tmp_path: Path) -> None:
    told = logged(tmp_path, "tensorboard")
    assert told.returncode == 0, told.stderr
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"accuracy" in content and b"bytes_sent" in content


def test_wandb_offline(tmp_path: Path) -> None:
    told = logged(tmp_path, "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    assert told.returncode == 0, told.stderr
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_mlflow(tmp_path: Path) -> None:
    told = logged(tmp_path, "mlflow")
    assert told.returncode == 0, told.stderr
    import sqlite3

    with sqlite3.connect(tmp_path / "run" / "mlflow.db") as database:
        rows = database.execute(
            "select step from metrics where key = 'accuracy' order by step"
        ).fetchall()
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


def test_a_resumed_run_is_the_same_run_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
