"""Quadratics, where everything is known: the optimum, every limit, every bias."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.rng import Key, Purpose, stream
from undrift.problems.weights import client_weights


class Quadratic:
    """f_i(y) = y'H_i y / 2 - e_i'y with exact gradients, or with noise of a given variance.

    H         `[N, d, d]`, symmetric       e         `[N, d]`
    weights   p_i of f = sum_i p_i f_i, uniform if None
    variance  E ||g - grad f_i||^2 of a minibatch gradient: Gaussian noise drawn by (seed, round, client, step), the same
              at every point, so that two gradients on one minibatch share it

    >>> problem = Quadratic(torch.eye(2).repeat(3, 1, 1), torch.tensor([[1.0, 0], [0, 1], [2, 2]]))
    >>> problem.optimum
    tensor([1., 1.])
    """

    def __init__(self, H: Tensor, e: Tensor, weights: Sequence[float] | Tensor | None = None, variance: float = 0.0):
        H, e = torch.as_tensor(H), torch.as_tensor(e)
        if H.dim() != 3 or H.shape[1] != H.shape[2] or e.shape != H.shape[:2]:
            raise InvalidInput(f"Quadratic needs H [N, d, d] and e [N, d]; got {list(H.shape)} and {list(e.shape)}")
        if H.dtype != e.dtype or not H.is_floating_point():
            raise InvalidInput(f"Quadratic needs H and e of one floating type; got {H.dtype} and {e.dtype}")
        check_finite(H=H, e=e)
        if not torch.allclose(H, H.mT, rtol=1e-5, atol=1e-8):
            raise InvalidInput("H must be symmetric: use (H + H.mT) / 2, which is the same f")
        if not 0 <= variance < np.inf:
            raise InvalidInput(f"variance must be finite and not negative, got {variance}")
        self.H, self.e, self.variance = H, e, float(variance)
        self.weights = client_weights(weights, len(H))
        self.x0 = torch.zeros(H.shape[1], dtype=H.dtype, device=H.device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.N:,} clients, {self.x0.numel():,} parameters)"

    @property
    def N(self) -> int:
        return len(self.H)

    @cached_property
    def mean(self) -> tuple[Tensor, Tensor]:
        """H and e of f itself."""
        p = torch.as_tensor(self.weights, dtype=self.H.dtype, device=self.H.device)
        return torch.einsum("n,nij->ij", p, self.H), p @ self.e

    @cached_property
    def optimum(self) -> Tensor:
        """The minimum of f (the one of smallest norm, if there are several)."""
        H, e = self.mean
        return torch.linalg.lstsq(H, e.unsqueeze(1), driver="gelsd").solution.squeeze(1)

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None) -> Any:
        """H_i, e_i and noise of each client; with samples instead in `ud.LeastSquares`."""
        return self.draw_each(key, [key.round] * len(clients), clients, steps, batch)

    def draw_each(
        self, key: Key, rounds: Sequence[int], clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Any:
        """The same where every client has a round of its own."""
        noise = self._noise(key, rounds, clients, steps) if self.variance else None
        return *self._of(clients), noise

    draw_with_replacement = draw_each  # there are no samples: every draw is on its own already

    def grad(self, y: Tensor, minibatches: Any, k: int) -> Tensor:
        H, e, noise = minibatches
        g = _gradient(H, e, y)
        if noise is None:
            return g
        return g + (noise[0, k] if y.dim() == 1 else noise[:, k])

    def twin(self) -> "Quadratic":
        """Itself: nothing in it is ever changed."""
        return self

    not_shared = None  # threads may compute different clients side by side

    # what the compiled engine asks

    @property
    def pieces(self) -> list[int]:
        return [self.H.shape[1]]

    def resident(self) -> Sequence[Tensor]:
        return ()

    def inputs(self, minibatches: Any, K: int, batch: int | None) -> list[tuple[Tensor | None, ...]]:
        """What `grad_of` is given, step by step."""
        H, e, noise = minibatches
        if noise is None:
            return [(H, e, None)] * K
        return [(H, e, each) for each in noise.transpose(0, 1).contiguous().unbind()]

    def grad_of(self, y: Tensor, resident: Sequence[Tensor], minibatch: Sequence[Tensor | None]) -> Tensor:
        H, e, noise = minibatch
        assert H is not None and e is not None
        return _gradient(H, e, y) if noise is None else _gradient(H, e, y) + noise

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        return _gradient(*self._of(clients), y)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        H, e = self.mean
        g, away = H @ x - e, x - self.optimum
        return {
            "loss": float(x @ (g - e) / 2),
            "gap": float(away @ g / 2),  # f(x) - f*, without the cancellation
            "grad_norm": float(g.norm()),
            "distance": float(away.norm()),
        }

    metric_names = ("test", "gradient")

    def evaluate_metric(self, name: str, x: Tensor) -> dict[str, float]:
        found = self.evaluate(x)
        return found if name == "test" else {"grad_norm": found["grad_norm"]}

    def _of(self, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
        which = torch.as_tensor(clients, device=self.H.device)
        return self.H[which], self.e[which]

    def _noise(self, key: Key, rounds: Sequence[int], clients: Sequence[int], steps: Sequence[int]) -> Tensor:
        d = self.H.shape[1]
        noise = np.zeros((len(clients), max(steps), d))
        for row, (i, t, K) in enumerate(zip(clients, rounds, steps, strict=True)):
            noise[row, :K] = stream(Purpose.NOISE, replace(key, round=t), i).standard_normal((K, d))
        scale = (self.variance / d) ** 0.5
        return torch.as_tensor(scale * noise, dtype=self.H.dtype, device=self.H.device)


def check_finite(**tensors: Tensor) -> None:
    """Name the first client in whose part of a tensor something is not finite."""
    for name, value in tensors.items():
        bad = ~torch.isfinite(value).flatten(1).all(1)
        if bad.any():
            raise InvalidInput(f"{name} has NaN or Inf at client {int(bad.nonzero()[0])}")


def _gradient(H: Tensor, e: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 1:
        return H[0] @ y - e[0]
    return (H @ y.unsqueeze(-1)).squeeze(-1) - e
