"""undrift resume --rounds: a comparison that is done goes on, as if it had been longer from the beginning."""

import json
import tomllib
from pathlib import Path

import pytest

SMALL = (
    *("--steps", 2, "--batch", 5, "--dirichlet", 0.1, "--engine", "batched", "-q"),
    *("--jobs", 1, "--set", "threads=1"),  # beside other tests two threads take longer than one
)


def rounds_of(path: Path) -> set[int]:
    return {tomllib.loads(each.read_text())["rounds"] for each in path.rglob("experiment.toml")}


def test_a_finished_comparison_is_made_longer(undrift, tmp_path: Path) -> None:
    undrift("compare", "fedavg", "scaffold", *SMALL, "--rounds", 4, "--out", "short")
    undrift("compare", "fedavg", "scaffold", *SMALL, "--rounds", 7, "--out", "long")
    said = undrift("resume", "short", "--rounds", 7, "-q", "--jobs", 1)
    assert (said.code, said.err) == (0, "")
    assert rounds_of(tmp_path / "short") == {7}
    for member in ("fedavg/seed-0", "scaffold/seed-0"):
        short, long = (tmp_path / each / member for each in ("short", "long"))
        assert (short / "metrics.jsonl").read_bytes() == (long / "metrics.jsonl").read_bytes()
        assert json.loads((short / "result.json").read_text())["rounds"] == 7
    assert "short is finished: short/report.html; --rounds N goes on" in undrift("resume", "short").out


def test_interrupted_while_it_is_made_longer(undrift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent says 6 rounds, its runs still 4: they are not taken for finished."""
    from undrift.experiments.runs import running

    undrift("compare", "fedavg", "scaffold", *SMALL, "--rounds", 4, "--out", "c")
    real, calls = running.rewrite, []

    def killed(*words):
        if calls:
            raise KeyboardInterrupt
        calls.append(words)
        return real(*words)

    monkeypatch.setattr(running, "rewrite", killed)
    assert undrift("resume", "c", "--rounds", 6).code == 130
    assert rounds_of(tmp_path / "c") == {4, 6}
    monkeypatch.setattr(running, "rewrite", real)
    assert undrift("resume", "c", "-q", "--jobs", 1).code == 0
    assert rounds_of(tmp_path / "c") == {6}
    assert json.loads((tmp_path / "c/fedavg/seed-0/result.json").read_text())["rounds"] == 6


def test_what_cannot_be_made_longer_is_said(undrift, tmp_path: Path) -> None:
    undrift("compare", "multistage-fedgm", "fedavg", *SMALL, "--rounds", 9, "--out", "staged")
    said = undrift("resume", "staged", "--rounds", 12)
    assert (
        said.code == 2 and "--rounds: the schedule of multistage-fedgm follows from the number of rounds, 9" in said.err
    )
    assert rounds_of(tmp_path / "staged") == {9}
    said = undrift("resume", "staged", "--rounds", 5)
    assert said.code == 2 and "is planned for 9 rounds (9 are done) and can only be made longer, got 5" in said.err
