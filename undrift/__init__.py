"""Undrift: federated optimisation on heterogeneous clients."""

from undrift import algorithms
from undrift.algorithms import *  # noqa: F403
from undrift.core import Algorithm, Cohort, Exchange, nbytes, record
from undrift.data.augment import CropFlip
from undrift.data.partition import (
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
from undrift.errors import ClientFailure, Diverged, InvalidInput
from undrift.hyper import algorithm, hyper, method
from undrift.local import Geometric, Local
from undrift.participation import Bernoulli, Cyclic, Everyone, Fixed, Uniform, Weighted
from undrift.problems.model import ModelProblem, federate
from undrift.problems.quadratic import Quadratic
from undrift.problems.synthetic import Synthetic
from undrift.run import Result, Round, State, rounds, run
from undrift.work import Work

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Bernoulli",
    "ClassDirichlet",
    "ClassesPerClient",
    "ClientFailure",
    "Cohort",
    "CropFlip",
    "Cyclic",
    "Dirichlet",
    "Diverged",
    "Everyone",
    "Exchange",
    "FeatureSkew",
    "Fixed",
    "Geometric",
    "IID",
    "InvalidInput",
    "Local",
    "ModelProblem",
    "Natural",
    "Quadratic",
    "QuantitySkew",
    "Result",
    "Round",
    "Shards",
    "Similarity",
    "State",
    "Synthetic",
    "Uniform",
    "Weighted",
    "Work",
    "algorithm",
    "federate",
    "hyper",
    "method",
    "nbytes",
    "record",
    "rounds",
    "run",
]
__all__ += algorithms.__all__
