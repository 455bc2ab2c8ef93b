"""The weights of clients in the objective."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput


def client_weights(weights: Sequence[float] | Tensor | None, N: int) -> np.ndarray:
    """Weights as given, checked; uniform if None.

    >>> client_weights(None, 4)
    array([0.25, 0.25, 0.25, 0.25])
    >>> client_weights([1, 3], 2)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: weights must sum to 1, these sum to 4: divide them by their sum
    """
    if weights is None:
        return np.full(N, 1 / N)
    p = torch.as_tensor(weights, dtype=torch.float64).flatten()
    if len(p) != N:
        raise InvalidInput(f"weights: got {len(p)} for {N} clients")
    if not torch.isfinite(p).all() or (p < 0).any():
        worst = int(torch.where(torch.isfinite(p), p, -torch.inf).argmin())
        raise InvalidInput(f"weights must be finite and not negative; client {worst} has {p[worst]:g}")
    if abs(float(p.sum()) - 1) > 1e-6:
        raise InvalidInput(f"weights must sum to 1, these sum to {float(p.sum()):g}: divide them by their sum")
    return p.numpy()
