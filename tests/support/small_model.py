"""A small network on 101 samples."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud

RNG = np.random.default_rng(0)
X = torch.as_tensor(RNG.normal(size=(101, 6)))
Y = torch.as_tensor(RNG.integers(0, 3, size=101))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def federation(**more: Any) -> ud.ModelProblem:
    arguments: dict[str, Any] = {"model": mlp(), "loss": F.cross_entropy, "clients": ud.IID(7)}
    return ud.federate((X, Y), **(arguments | more))
