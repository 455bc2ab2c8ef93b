"""An experiment as one description, in TOML or Python: which methods, on which federation, how long."""

from undrift.experiment.description import Experiment
from undrift.experiment.toml import read, with_settings

__all__ = ["Experiment", "read", "with_settings"]
