"""The figures of a run in TensorBoard, Weights & Biases and MLflow, all on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import undrift as ud
from undrift.recording import logs


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


def test_one_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(logs, "import_module", missing)
    with pytest.raises(ud.InvalidInput, match=r'pip install "undrift\[wandb\]"'):
        logs.Logs(["wandb"], tmp_path, "name", {})
