"""A tiny federation of digits, and a small space to search."""

import undrift as ud
from undrift.experiments.config.federation import federation
from undrift.experiments.sweeps.space import Space, SpaceRow

LR = {"local.lr": (0.05, 0.3, 1.0)}
SPACE = Space("mine", common=LR, rows=(SpaceRow("scaffold-m", {"beta": (0.2, 0.6)}),))
FEW = {"local.lr": (0.05, 0.3)}


def experiment(*methods: str, **words) -> ud.Experiment:
    """A tiny federation of digits."""
    small = {
        "rounds": 4,
        "threads": 1,
        "engine": "sequential",  # faster than vmap with so little to do
        "clients": {"partition": "dirichlet", "number": 6, "alpha": 0.3},
        "model": {"name": "logistic"},
        "participation": {"per_round": 3},
        "local": {"steps": 2, "batch": 8},
    }
    return ud.Experiment(**{**small, "algorithms": {name: {} for name in methods}, **words})


def problem_of(e: ud.Experiment, seed: int = 0) -> ud.ModelProblem:
    return federation(e, seed).problem
