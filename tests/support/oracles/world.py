"""The little federation on which oracles and library are compared: minibatch quadratics in numpy.

Client i holds n samples; sample s costs y'A[i,s]y/2 - b[i,s]'y.  The noise is therefore *multiplicative*: two gradients on
the same minibatch do not differ by a constant, so a method that must reuse a minibatch and does not is found out.
n = 17 is prime to every factor in `sample`, so that no index of a minibatch goes unseen.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class World:
    A: np.ndarray  # [N, n, d, d]
    b: np.ndarray  # [N, n, d]
    p: np.ndarray  # [N], the weights of the clients in the objective
    x0: np.ndarray  # [d]

    @property
    def N(self) -> int:
        return len(self.p)

    def sample(self, i: int, t: int, k: int, e: int = 0, l: int = 0) -> int:
        """The sample that client i sees in round t, exchange e, loop l, step k."""
        return (3 * t + 5 * e + 7 * l + 11 * k + 13 * i) % self.A.shape[1]

    def grad(self, i: int, y: np.ndarray, t: int, k: int, e: int = 0, l: int = 0) -> np.ndarray:
        s = self.sample(i, t, k, e, l)
        return self.A[i, s] @ y - self.b[i, s]

    def full(self, i: int, y: np.ndarray) -> np.ndarray:
        return self.A[i].mean(0) @ y - self.b[i].mean(0)


def make_world(N: int = 5, d: int = 3, n: int = 17, seed: int = 0, p: list[float] | None = None) -> World:
    """Heterogeneous, strongly convex in every sample (eigenvalues in [0.3, 1.5])."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(N, n, d, d)))
    A = np.einsum("...ij,...j,...kj->...ik", Q, rng.uniform(0.3, 1.5, size=(N, n, d)), Q)
    b = 2 * rng.normal(size=(N, 1, d)) + rng.normal(size=(N, n, d))
    weights = np.full(N, 1 / N) if p is None else np.asarray(p, dtype=float)
    return World(A, b, weights / weights.sum(), rng.normal(size=d))


def add(vectors: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of vectors; unlike the built-in, typed as one."""
    return np.sum(list(vectors), axis=0)
