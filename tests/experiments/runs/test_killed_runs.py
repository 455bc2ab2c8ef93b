"""Killed at any moment, a run goes on to the same bits."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.killed_runs import EVERY_7, settings
from undrift.experiments.runs.recorded import recorded

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("killed runs")]  # one process forks all

KILLS = 6  # of every method: 36 in all, and 18 with updates under way
METHODS = {
    "fedavg": "nothing",
    "scaffold": "a control variate a client",
    "fedhbm": "an anchor a client",
    "ghbm": "a history of models on the server",
    "fedadam": "an optimiser's state on the server",
    "scaffold-m-vr": "two vectors a client",
    "scaffold, late": "a control variate a client, the clock and everything in flight",
    "autonomous-fedgm, late": "momentum, the clock and everything in flight",
    "fedhbm, late": "an anchor a client, the clock and everything in flight",
}


def content(folder: Path) -> dict[str, bytes]:
    names: tuple[str, ...] = (
        "metrics.jsonl",
        "model.safetensors",
        "best.safetensors",
        "result.json",
    )
    names += ("visits.jsonl",) if (folder / "visits.jsonl").exists() else ()
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def killed_runs() -> Iterator[Callable[..., dict[str, Any]]]:
    """One process from which all runs are forked, since its imports take longer than a run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_runs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    told, answers = process.stdin, process.stdout
    assert told is not None and answers is not None

    def ask(*words: Any) -> dict[str, Any]:
        told.write(json.dumps(words) + "\n")
        told.flush()
        return json.loads(answers.readline())

    try:
        yield ask
    finally:
        process.communicate()  # there is no more: it ends
    assert process.returncode == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_again_and_again_ends_with_the_same_bits(
    method: str, killed_runs: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    report = killed_runs(str(tmp_path / "killed"), method, KILLS, list(METHODS).index(method))
    assert report.get("killed") == KILLS, report
    assert len(set(report["begun"])) > 1, "it must have gone on from checkpoints"
    whole = tmp_path / "whole"
    whole.mkdir()
    for _ in recorded(whole, settings(method), EVERY_7):
        pass
    for run in (tmp_path / "killed").iterdir():
        assert content(run) == content(whole)
    assert len((whole / "times.jsonl").read_text().splitlines()) == settings(method).rounds
