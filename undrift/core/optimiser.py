"""Client optimisers: pairs of pure functions over flat vectors, as in Optax.

    init(y)               -> state               what the optimiser remembers, a record of vectors and columns
    update(d, state, y)   -> direction, state    the local step is then y - lr * direction

Plain SGD has no state and needs no optimiser.  The functions are called with one client's vectors `[D]` or with a cohort's
`[S, D]`; like methods, they must treat rows apart.  Those that have a name are in undrift/local/optimisers.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from undrift.core.batched_scalar import is_zero


@runtime_checkable
class Optimiser(Protocol):
    """Anything with these two functions; `linear` says that its steps are linear in the gradients (FedNova asks)."""

    @property
    def linear(self) -> bool: ...

    def init(self, y: Tensor) -> Any: ...
    def update(self, d: Tensor, state: Any, y: Tensor) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class HeavyBall:
    """u <- momentum u + d, the step is along u: `torch.optim.SGD(momentum=...)`.

    >>> ball = HeavyBall(0.5)
    >>> u, _ = ball.update(torch.ones(1), torch.ones(1), torch.zeros(1))
    >>> u
    tensor([1.5000])
    """

    momentum: float
    linear = True

    def init(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def update(self, d: Tensor, state: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        u = self.momentum * state + d
        return u, u


@dataclass(frozen=True)
class Pair:
    """A custom optimiser from two functions."""

    init: Callable[[Tensor], Any]
    update: Callable[[Tensor, Any, Tensor], tuple[Tensor, Any]]
    linear = False


def bias_correction(beta: Any, k: Tensor) -> Any:
    """1 - beta^k, to full precision also where it is small: what k steps of an average that began at zero weigh.

    >>> bias_correction(0.999, torch.tensor([1.0]))
    tensor([0.0010])
    """
    if is_zero(beta):
        return 1.0
    return -torch.expm1(k * (math.log(beta) if isinstance(beta, float | int) else torch.log(beta)))
