"""Privacy in experiments: interrupted, made longer, on real nodes."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

import undrift as ud
from tests.support.in_process_nodes import experiment
from undrift.experiments.runs.directory import RunDirectory, open_directory
from undrift.experiments.runs.running import extend, prepare_directory, run_experiment

pytest.importorskip("dp_accounting")
CLIENTS = {"partition": "dirichlet", "number": 3, "alpha": 0.5}
BY_CHANCE = {"scheme": "bernoulli", "q": 0.6}


def private(**privacy: Any) -> ud.Experiment:
    return experiment(clients=CLIENTS, participation=BY_CHANCE, privacy={"clip": 1.0} | privacy)


def recorded(path: Path) -> list[Any]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in RunDirectory(path).rounds()]


def test_interrupted_and_resumed_it_is_the_same_and_costs_the_same(tmp_path: Path) -> None:
    list(run_experiment(prepare_directory(private(noise=2.0), tmp_path / "whole")))
    updates = cast(Generator[Any], run_experiment(prepare_directory(private(noise=2.0), tmp_path / "again")))
    for _ in range(2):
        next(updates)
    updates.close()
    list(run_experiment(open_directory(tmp_path / "again")))
    whole = recorded(tmp_path / "whole")
    assert recorded(tmp_path / "again") == whole
    assert len(whole) == 4 and 0 < whole[0]["epsilon"] < whole[-1]["epsilon"]


def test_a_run_with_a_target_epsilon_cannot_be_made_longer(tmp_path: Path) -> None:
    directory = prepare_directory(private(epsilon=20.0), tmp_path / "run")
    with pytest.raises(ud.InvalidInput, match="more rounds cannot have the same noise"):
        extend(directory, 9)
