"""Hyper-parameters chosen fairly: the same budget, seeds and data for every method."""

from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import Range, Row, Space
from undrift.experiments.sweeps.spaces import SPACES, space_of
from undrift.experiments.sweeps.sweeping import (
    Found,
    Sweep,
    best_experiment,
    carried_out,
    found,
    opened,
    planned,
    run_sweep,
)
from undrift.experiments.sweeps.trial import Outcome, TrialDone

__all__ = [
    "SPACES",
    "Found",
    "Outcome",
    "Plan",
    "Range",
    "Row",
    "Space",
    "Sweep",
    "TrialDone",
    "best_experiment",
    "carried_out",
    "found",
    "opened",
    "planned",
    "run_sweep",
    "space_of",
]
