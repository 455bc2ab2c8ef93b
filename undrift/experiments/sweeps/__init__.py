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
    "SPACES",
    "SweepResult",
    "Outcome",
    "Plan",
    "Range",
    "SpaceRow",
    "Space",
    "Sweep",
    "TrialDone",
    "best_experiment",
    "continue_sweep",
    "read_results",
    "open_sweep",
    "plan_sweep",
    "run_sweep",
    "space_of",
]
