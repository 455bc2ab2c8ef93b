"""Least squares: noise of samples whose Hessians differ, and everything known."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.rng import Key
from undrift.problems.minibatches import Minibatches, Source, draw_minibatches
from undrift.problems.quadratic import Quadratic


class LeastSquares:
    """f_i(y) = |A_i y - b_i|^2 / (2 n) on n samples a client, with gradients of minibatches.

    A         `[N, n, d]`       b         `[N, n]`
    weights   p_i of f = sum_i p_i f_i, uniform if None

    Unlike `ud.Quadratic`'s noise that of a minibatch depends on y: sample s has the Hessian a_s a_s', so that two gradients
    on one minibatch differ by less than their noise (the sample-wise smoothness of Cheng et al., Assumption 2), which
    variance-reduced methods live on.

    >>> problem = LeastSquares(torch.eye(2).repeat(3, 1, 1), torch.tensor([[1.0, 0], [0, 1], [2, 2]]))
    >>> problem.optimum
    tensor([1., 1.])
    """

    def __init__(self, A: Tensor, b: Tensor, weights: Sequence[float] | Tensor | None = None):
        A, b = torch.as_tensor(A), torch.as_tensor(b)
        if A.dim() != 3 or b.shape != A.shape[:2] or A.dtype != b.dtype or not A.is_floating_point():
            raise InvalidInput(
                "LeastSquares needs A [N, n, d] and b [N, n] of one floating type; "
                f"got {list(A.shape)} of {A.dtype} and {list(b.shape)} of {b.dtype}"
            )
        n = A.shape[1]
        for name, value in (("A", A), ("b", b)):
            bad = ~torch.isfinite(value).flatten(1).all(1)
            if bad.any():
                raise InvalidInput(f"{name} has NaN or Inf at client {int(bad.nonzero()[0])}")
        H = A.mT @ A / n
        self.whole = Quadratic((H + H.mT) / 2, (A.mT @ b.unsqueeze(2)).squeeze(2) / n, weights)
        self.samples = A.shape[1]
        self.A, self.b = A.flatten(0, 1), b.flatten()  # one sample after another
        self.weights, self.x0 = self.whole.weights, self.whole.x0
        p = torch.as_tensor(self.weights, dtype=b.dtype, device=b.device)
        self._at_zero = float(p @ b.square().mean(1)) / 2

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.N:,} clients, {self.x0.numel():,} parameters)"

    @property
    def N(self) -> int:
        return self.whole.N

    @property
    def optimum(self) -> Tensor:
        """The minimum of f (the one of smallest norm, if there are several)."""
        return self.whole.optimum

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        return self.whole.full_grad(y, clients)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        found = self.whole.evaluate(x)
        return found | {"loss": found["loss"] + self._at_zero}

    # minibatches

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1 if batch is None else -(-self.samples // batch)

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None) -> Minibatches:
        return self._draw(repeat(key, len(clients)), clients, steps, batch)

    def draw_each(
        self, key: Key, rounds: Sequence[int], clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Minibatches:
        """The same where every client has a round of its own."""
        return self._draw([replace(key, round=t) for t in rounds], clients, steps, batch)

    def draw_with_replacement(
        self, key: Key, rounds: Sequence[int], clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Minibatches:
        """The same with every sample drawn on its own."""
        return self._draw([replace(key, round=t) for t in rounds], clients, steps, batch, replacement=True)

    def _draw(
        self,
        keys: "Sequence[Key] | repeat[Key]",
        clients: Sequence[int],
        steps: Sequence[int],
        batch: int | None,
        replacement: bool = False,
    ) -> Minibatches:
        n, device = self.samples, self.A.device
        each = [Source(key, i, i * n, n) for key, i in zip(keys, clients, strict=True)]
        return draw_minibatches(each, steps, batch, False, None, lambda where: where.to(device), replacement)

    def grad(self, y: Tensor, minibatches: Minibatches, k: int) -> Tensor:
        shares = _shares(minibatches, self.b)
        rows = y.unsqueeze(0) if y.dim() == 1 else y
        g = self.grad_of(rows, self.resident(), (minibatches.samples[:, k], shares[:, k]))
        return g[0] if y.dim() == 1 else g

    def twin(self) -> "LeastSquares":
        """Itself: nothing in it is ever changed."""
        return self

    not_shared = None  # threads may compute different clients side by side

    # what the compiled engine asks

    @property
    def pieces(self) -> list[int]:
        return self.whole.pieces

    def resident(self) -> tuple[Tensor, Tensor]:
        return self.A, self.b

    def inputs(self, minibatches: Minibatches, K: int, batch: int | None) -> list[tuple[Tensor | None, ...]]:
        """What `grad_of` is given, step by step: samples, and their shares in the mean."""
        each = minibatches.samples, _shares(minibatches, self.b)
        return list(zip(*(x.transpose(0, 1).contiguous().unbind() for x in each), strict=True))

    def grad_of(self, y: Tensor, resident: Sequence[Tensor], minibatch: Sequence[Tensor | None]) -> Tensor:
        samples, shares = minibatch
        assert samples is not None and shares is not None
        A, b = (whole[samples] for whole in resident)
        residual = (A @ y.unsqueeze(2)).squeeze(2) - b
        return (A.mT @ (shares * residual).unsqueeze(2)).squeeze(2)


def _shares(minibatches: Minibatches, like: Tensor) -> Tensor:
    """Of every sample in its minibatch's mean, `[S, K, batch]`: none where a minibatch is short."""
    counts = minibatches.counts.unsqueeze(2)
    numbers = torch.arange(minibatches.samples.shape[2], device=counts.device)
    return (numbers < counts) / counts.clamp(min=1).to(like.dtype)
