"""Synthetic(a, b): two knobs of heterogeneity (LEAF; Li et al., FedProx, 2020).

Client i labels inputs x ~ N(v_i, diag(j^-1.2)) in 60 dimensions by argmax(W_i x + b_i) into 10 classes, with
W_i, b_i ~ N(u_i, 1), u_i ~ N(0, a): how much models differ;   v_i ~ N(B_i, 1), B_i ~ N(0, b): how much inputs differ.
Sizes are 50 + lognormal(4, 2); a tenth of every client's samples is for testing.
"""

import numpy as np
import torch

from undrift.core.bounds import LARGEST_SEED, check_memory
from undrift.core.hyper import check_value
from undrift.core.rng import Key, Purpose, generator
from undrift.data.registry import Data, dataset

INPUTS, CLASSES = 60, 10
BYTES_A_CLIENT = (50 + np.exp(6)) * (INPUTS + 2) * 12  # the mean of its samples, once in float64 and once in float32


@dataset("synthetic", about="Synthetic(a, b) of LEAF and FedProx (Li et al. 2020): generated, no files", clients=30)
def synthetic(
    a: float = 1.0, b: float = 1.0, clients: int = 30, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Data:
    """The samples of so many clients; a and b are standard deviations, as in the published generator."""
    check_value("Synthetic", "a", a, float, within="[0, inf)")
    check_value("Synthetic", "b", b, float, within="[0, inf)")
    check_value("Synthetic", "N", clients, int, within="[1, inf)")
    check_value("Synthetic", "seed", seed, int, within=f"[0, {LARGEST_SEED}]")
    check_memory(f"Synthetic: {clients} clients", clients * BYTES_A_CLIENT, "take fewer clients")
    train, test = [], []
    for i in range(clients):
        X, Y = _draw_client(a, b, generator(Purpose.DATA, Key(seed, 0), i))
        kept = len(Y) - len(Y) // 10
        train.append((X[:kept], Y[:kept]))
        test.append((X[kept:], Y[kept:]))
    (pair, owners), (test_pair, test_owners) = _join(train, dtype), _join(test, dtype)
    names = tuple(map(str, range(clients)))
    return Data("synthetic", pair, test_pair, owners, test_owners, names, classes=CLASSES)


def _draw_client(a: float, b: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = int(random.lognormal(4, 2)) + 50
    u, B = random.normal(0, a), random.normal(0, b)
    W, bias = random.normal(u, 1, (INPUTS, CLASSES)), random.normal(u, 1, CLASSES)
    v = random.normal(B, 1, INPUTS)
    spread = np.arange(1, INPUTS + 1) ** -0.6  # standard deviations of a diagonal covariance j^-1.2
    X = v + spread * random.standard_normal((n, INPUTS))
    return X, (X @ W + bias).argmax(1)


def _join(
    pairs: list[tuple[np.ndarray, np.ndarray]], dtype: torch.dtype
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """All samples, and the client of each."""
    X, Y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    owners = np.repeat(np.arange(len(pairs)), [len(y) for _, y in pairs])
    return (torch.as_tensor(X, dtype=dtype), torch.as_tensor(Y)), torch.as_tensor(owners)
