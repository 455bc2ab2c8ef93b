"""A sweep that several tests look at."""

import pytest

from tests.support.small_sweep import SPACE, experiment
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.sweeping import run_sweep


@pytest.fixture(scope="session")
def swept_once(tmp_path_factory):
    """A sweep of two methods, the whole grid, two seeds."""
    directory = tmp_path_factory.mktemp("sweeps") / "once"
    e, plan = experiment("fedavg", "scaffold-m", rounds=6), Plan(SPACE, seeds=2, last=3)
    return e, plan, directory, list(run_sweep(e, plan, directory))
