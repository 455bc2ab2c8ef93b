"""--dry: the engine and why, the work of a round, and an estimate whose parts add up."""

import os
import re
from pathlib import Path

import pytest

import undrift as ud
from undrift.experiments.config.federation import Federations
from undrift.experiments.runs import estimate
from undrift.experiments.runs.directory import create
from undrift.experiments.runs.estimate import RunTiming, measure_experiment, measure_run
from undrift.experiments.runs.running import resolve_engine
from undrift.simulation.engines import EngineChoice

TIMING = RunTiming(start=2, compiler=8, setup=1, compiling=3, round=0.5, evaluation=0.25, bytes=1e6)


def experiment(**words: object) -> ud.Experiment:
    usual = {"algorithms": {"fedavg": {}, "ghbm": {}}, "rounds": 10, "local": {"epochs": 2}}
    return ud.Experiment(**{**usual, **words})  # pyright: ignore[reportArgumentType]


def test_dry_says_what_would_be_done(undrift, tmp_path: Path) -> None:
    said = undrift("compare", "fedavg", "--rounds", 3, "--epochs", 2, "--dry", "--jobs", 1)
    assert said.code == 0, said.err
    assert "# engine: clients in chunks of 10, batched (clients are computed together; too short" in said.out
    assert re.search(r"# local steps of a client per round: 6; minibatches of 5 samples", said.out)
    assert re.search(r"# fedavg: 385 kB and \d+ ms a round \(\d+ ms training, \d+ ms an eval", said.out)
    assert re.search(r"# 1 run: about .* \(.* start, .* report\)", said.out)
    assert not list(tmp_path.iterdir())


def test_an_engine_that_was_asked_for_needs_no_reason(undrift) -> None:
    said = undrift("compare", "fedavg", "--rounds", 2, "--engine", "sequential", "--dry")
    cores = "one core" if len(os.sched_getaffinity(0)) > 1 else "all cores"  # for so little work
    assert f"one after another, {cores} for each (as asked for)" in said.out


def test_parts_are_of_the_longest_of_the_processes() -> None:
    timings = {"fedavg": TIMING, "ghbm": TIMING}
    alone = estimate.estimate_seconds(experiment(), timings, jobs=1, before=4)
    assert alone == {
        "start": 4,
        "setup": 0,
        "compiling": 14,
        "rounds": 10,
        "evaluation": 5,
        "report": 1.2,
    }
    both = estimate.estimate_seconds(experiment(), timings, jobs=2, before=4)
    assert both == {
        "start": 6,
        "setup": 1,
        "compiling": 11,
        "rounds": 5,
        "evaluation": 2.5,
        "report": 1.2,
    }
    seldom = experiment(evaluation={"every": 4})  # rounds 4, 8 and the last
    assert estimate.estimate_seconds(seldom, timings, jobs=2)["evaluation"] == 0.75
    seeds = estimate.estimate_seconds(experiment(seeds=2), timings, jobs=1)
    assert seeds["setup"] == 1 and seeds["rounds"] == 20  # the first federation is there already
    assert seeds["compiling"] == 14  # seeds share their programs


def test_every_method_is_measured_in_processes_side_by_side() -> None:
    resolved, _ = resolve_engine(experiment(rounds=40))
    timings = measure_experiment(resolved, jobs=2)
    assert list(timings) == ["fedavg", "ghbm"]
    assert timings["ghbm"].bytes > timings["fedavg"].bytes == 10 * 2 * 4 * 4810
    assert all(min(vars(timing).values()) >= 0 and timing.round > 0 for timing in timings.values())


def test_a_failure_of_a_measuring_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_OFFLINE", "1")
    absent = experiment(data="gldv2").model_copy(update={"engine": EngineChoice("batched")})
    with pytest.raises(ud.InvalidInput, match="trying fedavg, ghbm failed: .*not on this machine"):
        measure_experiment(absent, jobs=1)


@pytest.mark.parametrize("rounds", [1, 2, 30])
def test_runs_of_any_length_can_be_measured(rounds: int, tmp_path: Path) -> None:
    one = experiment(rounds=rounds).single("ghbm", 0)
    one = one.model_copy(update={"engine": EngineChoice("batched", 10), "threads": 1})
    create(tmp_path, one)
    timing = measure_run(tmp_path, 2.0, 1, Federations())
    assert timing.start == 2.0 and timing.round > 0 and timing.bytes > 0
