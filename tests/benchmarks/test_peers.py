"""`make bench-peers`: rows do the workloads that they say, take turns, and end."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks.peers import environments, shared
from benchmarks.peers.environments import PEERS, Unavailable, one_line
from benchmarks.peers.rows import Row
from benchmarks.peers.turns import Work
from benchmarks.workloads import VIRTUAL, WORKLOADS, Workload


def small(w: Workload) -> Work:
    return replace(Work(**asdict(w), threads=1), clients=3, samples=4)


@pytest.mark.parametrize("w", [*WORKLOADS, VIRTUAL], ids=lambda w: w.name)
def test_peers_train_the_same_models_on_the_same_shapes(w: Workload):
    ours, theirs = w.model(), shared.model(w.name)
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(mine)
    X, Y = shared.data(small(w))
    mine_X, mine_Y = replace(w, clients=3, samples=4).data()
    assert torch.equal(X.flatten(0, 1), mine_X) and torch.equal(Y.flatten(), mine_Y)
    assert torch.equal(ours.eval()(mine_X), theirs.eval()(mine_X))


@pytest.mark.parametrize("w", [*WORKLOADS, VIRTUAL], ids=lambda w: w.name)
def test_an_epoch_is_as_many_steps_as_a_workload_has(w: Workload):
    assert -(-w.samples // w.batch) == w.steps


def test_samples_are_counted_until_told():
    w = small(WORKLOADS[0])
    net, (X, Y) = shared.model(w.name), shared.data(w)
    count = shared.counted()
    seen = shared.train(net, X[0], Y[0], w)
    assert count() == seen == 4
    shared.train(net, X[0], Y[0], w)
    assert count() == 4


def test_a_row_takes_turns_and_ends():
    w = Work(**asdict(WORKLOADS[0]), threads=1)
    with Row.of(w, "own", "bare step") as row:
        assert row.ready()["samples"] == w.cohort * w.steps * w.batch
        row.warm(0.01)
        times = row.rounds_for(0.05)
        assert times and min(times) > 0
    assert row.process.returncode == 0
    assert not row.folder.exists()


def test_a_row_that_fails_says_why():
    w = Work(**asdict(WORKLOADS[0]), threads=1)
    with Row.of(w, "own", "no such row") as row, pytest.raises(Unavailable, match="KeyError"):
        row.ready()


def test_reasons_tell_nothing_of_the_machine():
    text = f"Traceback\nFileNotFoundError: {environments.ROOT}/x.py and /some/where/else.txt\n"
    assert one_line(text) == "FileNotFoundError: .../x.py and .../else.txt"


def test_every_peer_has_a_runner_and_a_pinned_version():
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)", environments.CONSTRAINTS.read_text(), re.M))
    ours = (environments.ROOT / "constraints.txt").read_text()
    assert f"torch=={pins['torch']}\n" in ours
    for peer in PEERS:
        assert (Path(shared.__file__).parent / f"run_{peer.module}.py").exists()
        for requirement in peer.requirements:
            assert re.sub(r"\[.*", "", requirement) in pins


def test_a_peer_that_needs_a_later_python_gets_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    peer = replace(PEERS[0], oldest=(3, environments.NEWEST_MINOR))
    monkeypatch.setattr(environments.sys, "version_info", (3, 11))
    name = f"python3.{environments.NEWEST_MINOR}"
    for folder, code in (("broken", 1), ("works", 0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'broken'}:{tmp_path / 'works'}:{environments.os.environ['PATH']}")
    assert environments.interpreter_for(peer) == str(tmp_path / "works" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "broken"))
    with pytest.raises(Unavailable, match=rf"needs Python 3\.{environments.NEWEST_MINOR}, and none is on the path"):
        environments.interpreter_for(peer)
