"""Logistic regression on Synthetic(a, b); see `undrift.data.datasets.synthetic`."""

import torch
import torch.nn.functional as F
from torch import nn

from undrift.data.datasets.synthetic import CLASSES, INPUTS, synthetic
from undrift.data.partitions import Natural
from undrift.problems.federate import federate
from undrift.problems.model import ModelProblem


def Synthetic(
    a: float = 1.0,
    b: float = 1.0,
    N: int = 30,
    *,
    seed: int = 0,
    weights: str = "samples",
    dtype: torch.dtype = torch.float32,
) -> ModelProblem:
    """The federation of N clients, from a model of zeros; a tenth of every client's samples is held out for evaluation.

    >>> Synthetic(1, 1, N=5).N
    5
    """
    model = nn.Linear(INPUTS, CLASSES, dtype=dtype)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    data = synthetic(a, b, N, seed, dtype)
    return federate(data, model=model, loss=F.cross_entropy, clients=Natural(), weights=weights)
