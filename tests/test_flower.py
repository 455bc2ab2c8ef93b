"""Deployed runs without Flower: equal to simulations, whatever goes wrong with nodes."""

from pathlib import Path

import pytest
import torch

import undrift as ud
from tests.nodes import Nodes, deployed, experiment
from undrift.experiment.federation import federation
from undrift.hyper import METHODS
from undrift.recording.running import settings_of
from undrift.recording.recorded import played


def simulated(made: ud.Experiment) -> list[ud.Round]:
    one = made.single(*made.runs()[0])
    one = one.model_copy(update={"engine": "sequential"})
    rounds = list(played(settings_of(one, federation(one, one.seeds[0]))))
    return rounds


@pytest.mark.parametrize("name", sorted(METHODS))
def test_equals_the_simulation(name: str, tmp_path: Path) -> None:
    made = experiment(name)
    here, there = simulated(made), deployed(Nodes(made, tmp_path))
    assert torch.equal(here[-1].x, there[-1].x)
