"""Synthetic(a, b): logistic regression with two knobs of heterogeneity (LEAF; Li et al., FedProx, 2020).

Client i labels inputs x ~ N(v_i, diag(j^-1.2)) in 60 dimensions by argmax(W_i x + b_i) into 10 classes, with
W_i, b_i ~ N(u_i, 1), u_i ~ N(0, a): how much models differ;   v_i ~ N(B_i, 1), B_i ~ N(0, b): how much inputs differ.
Sizes are 50 + lognormal(4, 2).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from undrift.hyper import check_value
from undrift.keyed import Key, Purpose, generator
from undrift.problems.model import ModelProblem, federate

INPUTS, CLASSES = 60, 10


def Synthetic(
    a: float = 1.0,
    b: float = 1.0,
    N: int = 30,
    *,
    seed: int = 0,
    weights: str = "samples",
    dtype: torch.dtype = torch.float32,
) -> ModelProblem:
    """The federation of N clients; a tenth of every client's samples is held out for evaluation.

    a and b are standard deviations, as in the published generator.

    >>> Synthetic(1, 1, N=5).N
    5
    """
    check_value("Synthetic", "a", a, float, within="[0, inf)")
    check_value("Synthetic", "b", b, float, within="[0, inf)")
    check_value("Synthetic", "N", N, int, within="[1, inf)")
    train, test, parts, seen = [], [], [], 0
    for i in range(N):
        X, Y = _client(a, b, generator(Purpose.DATA, Key(seed, 0), i))
        kept = len(Y) - len(Y) // 10
        train.append((X[:kept], Y[:kept]))
        test.append((X[kept:], Y[kept:]))
        parts.append(np.arange(seen, seen + kept))
        seen += kept

    def joined(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
        X = torch.as_tensor(np.concatenate([x for x, _ in pairs]), dtype=dtype)
        return X, torch.as_tensor(np.concatenate([y for _, y in pairs]))

    model = nn.Linear(INPUTS, CLASSES, dtype=dtype)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return federate(
        joined(train),
        joined(test),
        model=model,
        loss=F.cross_entropy,
        clients=parts,
        weights=weights,
    )


def _client(a: float, b: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = int(random.lognormal(4, 2)) + 50
    u, B = random.normal(0, a), random.normal(0, b)
    W, bias = random.normal(u, 1, (INPUTS, CLASSES)), random.normal(u, 1, CLASSES)
    v = random.normal(B, 1, INPUTS)
    spread = np.arange(1, INPUTS + 1) ** -0.6  # standard deviations of a diagonal covariance j^-1.2
    X = v + spread * random.standard_normal((n, INPUTS))
    return X, (X @ W + bias).argmax(1)
