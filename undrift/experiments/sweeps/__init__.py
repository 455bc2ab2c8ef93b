"""Hyper-parameters chosen fairly: the same budget, seeds and data for every method."""

from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import Range, Space, SpaceRow
from undrift.experiments.sweeps.spaces import SPACES, space_of
from undrift.experiments.sweeps.sweeping import (
    Sweep,
    SweepResult,
    best_experiment,
    continue_sweep,
    open_sweep,
    plan_sweep,
    read_results,
    run_sweep,
)
from undrift.experiments.sweeps.trial import Outcome, TrialDone

__all__ = [
    "best_experiment", "continue_sweep", "open_sweep", "Outcome", "Plan", "plan_sweep", "Range", "read_results",
    "run_sweep", "Space", "space_of", "SpaceRow", "SPACES", "Sweep", "SweepResult", "TrialDone",
]  # fmt: skip
