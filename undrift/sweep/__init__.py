"""Hyper-parameters chosen fairly: the same budget, seeds and data for every method."""

from undrift.sweep.plan import Plan
from undrift.sweep.space import Range, Row, Space
from undrift.sweep.spaces import SPACES, space_of
from undrift.sweep.sweeping import (
    Found,
    Sweep,
    best_experiment,
    carried_out,
    found,
    opened,
    planned,
    run_sweep,
)
from undrift.sweep.trial import Outcome, TrialDone

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
