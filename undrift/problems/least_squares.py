"""Least squares: noise of samples whose Hessians differ, and everything known."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partialmethod

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.rng import Key
from undrift.problems.minibatches import Minibatches, Source, draw_minibatches
from undrift.problems.quadratic import Quadratic, check_finite


class LeastSquares(Quadratic):
    """f_i(y) = |A_i y - b_i|^2 / (2 n) on n samples a client: a quadratic with gradients of minibatches.

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
        check_finite(A=A, b=b)
        n = A.shape[1]
        H = A.mT @ A / n
        super().__init__((H + H.mT) / 2, (A.mT @ b.unsqueeze(2)).squeeze(2) / n, weights)
        self.samples = n
        self.A, self.b = A.flatten(0, 1), b.flatten()  # one sample after another
        p = torch.as_tensor(self.weights, dtype=b.dtype, device=b.device)
        self._at_zero = float(p @ b.square().mean(1)) / 2

    def evaluate(self, x: Tensor) -> dict[str, float]:
        found = super().evaluate(x)
        return found | {"loss": found["loss"] + self._at_zero}

    # minibatches

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1 if batch is None else -(-self.samples // batch)

    def draw_each(
        self,
        key: Key,
        rounds: Sequence[int],
        clients: Sequence[int],
        steps: Sequence[int],
        batch: int | None,
        replacement: bool = False,
    ) -> Minibatches:
        """The samples of each client's minibatches, by its round."""
        n, device = self.samples, self.A.device
        each = [Source(replace(key, round=t), i, i * n, n) for t, i in zip(rounds, clients, strict=True)]
        return draw_minibatches(each, steps, batch, False, None, lambda where: where.to(device), replacement)

    draw_with_replacement = partialmethod(draw_each, replacement=True)

    def grad(self, y: Tensor, minibatches: Minibatches, k: int) -> Tensor:
        shares = minibatches.shares(y.dtype)
        rows = y.unsqueeze(0) if y.dim() == 1 else y
        g = self.grad_of(rows, self.resident(), (minibatches.samples[:, k], shares[:, k]))
        return g[0] if y.dim() == 1 else g

    # what the compiled engine asks

    def resident(self) -> Sequence[Tensor]:
        return self.A, self.b

    def inputs(self, minibatches: Minibatches, K: int, batch: int | None) -> list[tuple[Tensor | None, ...]]:
        """What `grad_of` is given, step by step: samples, and their shares in the mean."""
        each = minibatches.samples, minibatches.shares(self.b.dtype)
        return list(zip(*(x.transpose(0, 1).contiguous().unbind() for x in each), strict=True))

    def grad_of(self, y: Tensor, resident: Sequence[Tensor], minibatch: Sequence[Tensor | None]) -> Tensor:
        samples, shares = minibatch
        assert samples is not None and shares is not None
        A, b = (whole[samples] for whole in resident)
        residual = (A @ y.unsqueeze(2)).squeeze(2) - b
        return (A.mT @ (shares * residual).unsqueeze(2)).squeeze(2)
