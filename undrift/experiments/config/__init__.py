"""An experiment as one description, in TOML or Python: which methods, on which federation, how long."""

from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.toml import read, with_settings

__all__ = ["Experiment", "read", "with_settings"]
