"""Which method for this federation: methods tuned fairly on held-out data within a budget of minutes, and an answer."""

from undrift.experiments.choosing.answer import Choice, Contender, load_choice
from undrift.experiments.choosing.budget import Budget
from undrift.experiments.choosing.choosing import DEFAULT_METHODS, Choosing, open_choosing, prepare_choosing
from undrift.experiments.choosing.in_python import choose

__all__ = [
    "Budget", "Choice", "choose", "Choosing", "Contender", "DEFAULT_METHODS", "load_choice", "open_choosing",
    "prepare_choosing",
]  # fmt: skip
