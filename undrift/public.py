"""Every public name: what `import undrift as ud` gives.  Loaded when the first of them is asked for."""

from undrift import algorithms, models, theory
from undrift.algorithms import *  # noqa: F403
from undrift.codecs import Quantised, RandomK, TopK, codec
from undrift.core.algorithm import Algorithm, Cohort, Exchange
from undrift.core.errors import Deserted, Diverged, InvalidInput, MethodFailure, Stopped
from undrift.core.hyper import algorithm, hyper, method
from undrift.core.records import nbytes, record
from undrift.core.work import Work
from undrift.data.assignment import Partition, partition
from undrift.data.datasets.libsvm import libsvm
from undrift.data.partitions import (
    IID,
    ClassDirichlet,
    ClassesPerClient,
    Dirichlet,
    FeatureSkew,
    Natural,
    QuantitySkew,
    Shards,
    Similarity,
)
from undrift.data.registry import DATASETS, Data, dataset, load
from undrift.data.tables import from_table
from undrift.data.transforms import CropFlip
from undrift.experiments.choosing import Choice, choose, load_choice
from undrift.experiments.comparison import Comparison, LoadedRun, compare, load_run
from undrift.experiments.config import Experiment
from undrift.local.settings import Geometric, Local
from undrift.metrics import Probe, metric
from undrift.models import group_norm, model
from undrift.privacy import Privacy
from undrift.problems import Problem
from undrift.problems.adapters import freeze_lora_a
from undrift.problems.federate import federate
from undrift.problems.least_squares import LeastSquares
from undrift.problems.model import ModelProblem
from undrift.problems.quadratic import Quadratic
from undrift.problems.synthetic import Synthetic
from undrift.simulation.api import rounds, run
from undrift.simulation.asynchronous.async_state import AsyncSnapshot, Timing, Visit
from undrift.simulation.asynchronous.availability import Always, Chance, Daily, Trace
from undrift.simulation.asynchronous.policies import Buffer, Deadline, Synchronous
from undrift.simulation.asynchronous.population import Dropout, Link, LogNormal, Population, Table, Tiers
from undrift.simulation.averages import Average
from undrift.simulation.batched_runs import Trial, run_together
from undrift.simulation.conformance import check
from undrift.simulation.participation import Bernoulli, Cyclic, Everyone, Fixed, Participation, Uniform, Weighted
from undrift.simulation.references import reference
from undrift.simulation.results import Result, Round, State
from undrift.version import __version__

__all__ = [
    "__version__", "Algorithm", "algorithm", "Always", "AsyncSnapshot", "Average", "Bernoulli", "Buffer", "Chance",
    "check", "Choice", "choose", "ClassDirichlet", "ClassesPerClient", "codec", "Cohort", "compare", "Comparison",
    "CropFlip", "Cyclic", "Daily", "Data", "dataset", "DATASETS", "Deadline", "Deserted", "Dirichlet", "Diverged",
    "Dropout", "Everyone", "Exchange", "Experiment", "FeatureSkew", "federate", "Fixed", "freeze_lora_a",
    "from_table", "Geometric", "group_norm", "hyper", "IID", "InvalidInput", "LeastSquares", "libsvm", "Link",
    "load", "load_choice", "load_run", "LoadedRun", "Local", "LogNormal", "method", "MethodFailure", "metric",
    "model", "ModelProblem", "models", "Natural", "nbytes", "Participation", "Partition", "partition", "Population",
    "Privacy", "Probe", "Problem", "Quadratic", "Quantised", "QuantitySkew", "RandomK", "record", "reference",
    "Result", "Round", "rounds", "run", "run_together", "Shards", "Similarity", "State", "Stopped", "Synchronous",
    "Synthetic", "Table", "theory", "Tiers", "Timing", "TopK", "Trace", "Trial", "Uniform", "Visit", "Weighted",
    "Work",
]  # fmt: skip
__all__ += algorithms.__all__
