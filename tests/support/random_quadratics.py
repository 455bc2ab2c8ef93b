"""Many random quadratics at once: the blocks of one with a block-diagonal matrix, so that one run is a run of each."""

from dataclasses import dataclass

import numpy as np
import torch

import undrift as ud


@dataclass(frozen=True)
class Family:
    """`count` independent quadratics in d dimensions, N clients each, every client's curvatures from mu to L."""

    problem: ud.Quadratic
    L: float
    mu: float
    count: int
    d: int

    @property
    def Delta(self) -> float:
        return float(self.gaps(self.problem.x0).sum())

    @property
    def distance(self) -> float:
        return float((self.problem.x0 - self.problem.optimum).norm())

    def gradients(self, x: torch.Tensor) -> torch.Tensor:
        everyone = range(self.problem.N)
        return self.problem.full_grad(x.expand(self.problem.N, -1), everyone)

    @property
    def G0(self) -> float:
        return float((self.gradients(self.problem.x0) ** 2).sum(1).mean())

    @property
    def control_error(self) -> float:
        """mean_i |grad f_i(x*)|^2: what SCAFFOLD's c_i = 0 are away from."""
        return float((self.gradients(self.problem.optimum) ** 2).sum(1).mean())

    def spread(self) -> np.ndarray:
        """mean_i |grad f_i(x*)|^2 of every quadratic."""
        g = self.gradients(self.problem.optimum) ** 2
        return g.mean(0).reshape(self.count, self.d).sum(1).numpy()

    def squared_gradient(self, x: torch.Tensor) -> float:
        H, e = self.problem.mean
        return float(((H @ x - e) ** 2).sum())

    def gaps(self, x: torch.Tensor) -> np.ndarray:
        """f(x) - f* of every quadratic."""
        H, _ = self.problem.mean
        away = x - self.problem.optimum
        return ((away * (H @ away)).reshape(self.count, self.d).sum(1) / 2).numpy()


def random_quadratics(
    seed: int, *, N: int, L: float, mu: float, count: int = 25, d: int = 3, sigma: float = 0.0
) -> Family:
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(N, count, d, d)))
    values = rng.uniform(mu, L, (N, count, d))
    values[..., 0], values[..., 1] = mu, L
    H = np.einsum("nbij,nbj,nbkj->nbik", Q, values, Q)
    H = (H + H.swapaxes(2, 3)) / 2
    e = np.einsum("nbij,nbj->nbi", H, 3 * rng.normal(size=(N, count, d)))
    whole = np.zeros((N, count * d, count * d))
    for b in range(count):
        at = slice(b * d, (b + 1) * d)
        whole[:, at, at] = H[:, b]
    problem = ud.Quadratic(torch.as_tensor(whole), torch.as_tensor(e.reshape(N, -1)), variance=sigma**2)
    problem.x0 = torch.as_tensor(3 * rng.normal(size=count * d)) + problem.optimum
    return Family(problem, L, mu, count, d)
