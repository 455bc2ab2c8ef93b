"""The gradients of all clients at one point, in one pass over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CLIENTS_AT_ONCE = 16  # whose gradients are in memory together


@dataclass(frozen=True)
class Gradients:
    """grad f, sum_i p_i |grad f_i - grad f|^2, and the mean of |c_i - grad f_i|^2 where there are control variates c_i."""

    mean: Tensor
    dissimilarity: float
    control_error: float | None


@torch.no_grad()
def gradients_at(
    x: Tensor, problem: Any, weight_decay: float, controls: Callable[[Sequence[int]], Tensor] | None
) -> Gradients:
    """Mean and spread are updated client by client (West 1979): no difference of large sums, and no N vectors in memory."""
    N, mean, spread, total, error = problem.N, torch.zeros_like(x), 0.0, 0.0, 0.0
    for first in range(0, N, CLIENTS_AT_ONCE):
        who = range(first, min(first + CLIENTS_AT_ONCE, N))
        each = problem.full_grad(x.expand(len(who), -1), list(who))
        each = each + weight_decay * x if weight_decay else each
        if controls is not None:
            error += float((controls(who) - each).square().sum())
        for i, g in zip(who, each, strict=True):
            p = float(problem.weights[i])
            if p == 0:
                continue
            total += p
            away = g - mean
            mean = mean + (p / total) * away
            spread += p * float(away @ (g - mean))
    return Gradients(mean, spread, None if controls is None else error / N)
