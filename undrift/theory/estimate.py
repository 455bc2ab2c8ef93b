"""The constants that theorems ask for, measured on a problem at a point."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value
from undrift.core.rng import Key, Purpose, generator
from undrift.problems import Problem
from undrift.problems.protocols import HasFullGradient

HELD = 20_000_000  # numbers in the vectors that are kept at a time


@dataclass(frozen=True)
class Constants:
    """What `estimate` found at a point x.

    L, mu          the largest and the smallest curvature over clients: smoothness and strong convexity of every f_i;
                   mu is None where it is not positive, or could not be told in so many iterations.  Single samples, which
                   the -VR forms ask for, may be curved more
    L_f, mu_f      the same of f
    sigma          sqrt of the largest E|g - grad f_i|^2 over clients, of minibatches
    zeta           sqrt of sum_i p_i |grad f_i - grad f|^2
    gradient       |grad f|
    G0             sum_i p_i |grad f_i|^2 = zeta^2 + gradient^2
    """

    L: float
    L_f: float
    mu: float | None
    mu_f: float | None
    sigma: float
    zeta: float
    gradient: float

    @property
    def G0(self) -> float:
        return self.zeta**2 + self.gradient**2


def estimate(
    problem: Problem,
    x: Tensor | None = None,
    *,
    batch: int | None = None,
    iterations: int = 60,
    draws: int = 32,
    clients: Sequence[int] | None = None,
    seed: int = 0,
) -> Constants:
    """L, mu, sigma and zeta at x (the start of runs, if None); on quadratics exact to rounding, but for sigma.

    Curvatures are those of Lanczos' method (power iteration that keeps its vectors) on Hessian-vector products, which are
    differences of `full_grad`: exact for at most `iterations` parameters, and from below for L otherwise.  Away from
    quadratics they are those of one point: a theorem's L holds wherever a run may come.

    batch     samples in the minibatches of sigma, None = all of a client's; `draws` of them a client
    clients   look at these alone for L, mu and sigma, to save time

    >>> import torch, undrift as ud
    >>> H = torch.diag_embed(torch.tensor([[1.0, 0.5], [2.0, 0.25]], dtype=torch.float64))
    >>> found = estimate(ud.Quadratic(H, torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)))
    >>> [round(value, 9) for value in (found.L, found.mu, found.L_f, found.mu_f, found.sigma, found.zeta)]
    [2.0, 0.25, 1.5, 0.375, 0.0, 0.5]
    """
    if not isinstance(problem, HasFullGradient):
        raise InvalidInput(f"estimate: {type(problem).__name__} has no full_grad(y, clients), clients' exact gradients")
    check_value("estimate", "batch", batch, int, None, within="[1, inf)")
    check_value("estimate", "iterations", iterations, int, within="[1, inf)")
    check_value("estimate", "draws", draws, int, within="[2, inf)")
    x = problem.x0 if x is None else torch.as_tensor(x)
    if x.shape != problem.x0.shape:
        raise InvalidInput(f"estimate: x has {list(x.shape)} numbers, the model {list(problem.x0.shape)}")
    x = x.to(problem.x0)
    if not bool(torch.isfinite(x).all()):
        raise InvalidInput("estimate: x has NaN or Inf")
    which = list(range(problem.N)) if clients is None else [int(i) for i in clients]
    if not which or min(which) < 0 or max(which) >= problem.N:
        raise InvalidInput(f"estimate: clients are some of 0, ..., {problem.N - 1}, got {clients}")
    chunk = max(1, HELD // (x.numel() * min(iterations, x.numel())))
    look = _Look(problem, x, chunk, seed)
    gradients = torch.cat([look.full_grad(x, some).double().cpu() for some in look.all_clients()])
    p = torch.as_tensor(np.asarray(problem.weights), dtype=torch.float64)
    mean = p @ gradients
    zeta = sqrt(float(p @ ((gradients - mean) ** 2).sum(1)))
    L, mu = look.curvature_of_clients(which, iterations)
    L_f, mu_f = look.curvature_of_f(iterations)
    sigma = look.noise(which, gradients, batch, draws)
    return Constants(L, L_f, mu, mu_f, sigma, zeta, float(mean.norm()))


@dataclass
class _Look:
    """A problem at a point, looked at through `full_grad`, `draw` and `grad`, some clients at a time."""

    problem: Problem
    x: Tensor
    chunk: int
    seed: int

    @cached_property
    def reach(self) -> float:
        """How far from x to look: near, for curved gradients; far, for linear ones, which differ by nothing but rounding."""
        far = max(1.0, float(self.x.norm()))
        some = self.all_clients()[0]
        v = _directions(self.x, len(some), self.seed)
        v = far * v / v.norm(dim=1, keepdim=True)
        g = [self.full_grad(self.x + s * v, some) for s in (-1.0, -0.5, 0.0, 0.5, 1.0)]
        bends = (g[0] - 2 * g[2] + g[4], g[1] - 2 * g[2] + g[3])
        eps = torch.finfo(self.x.dtype).eps
        size = max(float(each.abs().max()) for each in g)
        linear = max(float(bend.abs().max()) for bend in bends) <= 1e3 * eps * size
        return far if linear else far * eps ** (1 / 3)

    def all_clients(self) -> list[list[int]]:
        return _chunks(list(range(self.problem.N)), self.chunk)

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        rows = y.expand(len(clients), -1) if y.dim() == 1 else y
        return self.problem.full_grad(rows.contiguous(), clients).detach()

    def products(self, v: Tensor, clients: Sequence[int]) -> Tensor:
        """H_i v_i for some clients, from gradients on both sides of x."""
        h = self.reach
        ahead, behind = (self.full_grad(self.x + way * v, clients) for way in (h, -h))
        return (ahead - behind) / (2 * h)

    def curvature_of_clients(self, clients: list[int], iterations: int) -> tuple[float, float | None]:
        found = []
        for some in _chunks(clients, self.chunk):
            start = _directions(self.x, len(some), self.seed)
            found += lanczos(lambda v, some=some: self.products(v, some), start, iterations)
        return _extremes(found)

    def curvature_of_f(self, iterations: int) -> tuple[float, float | None]:
        p = torch.as_tensor(np.asarray(self.problem.weights)).to(self.x)

        def product(v: Tensor) -> Tensor:
            total = torch.zeros_like(v)
            for some in self.all_clients():
                total = total + p[some] @ self.products(v.expand(len(some), -1), some)
            return total

        return _extremes(lanczos(product, _directions(self.x, 1, self.seed), iterations))

    def noise(self, clients: list[int], gradients: Tensor, batch: int | None, draws: int) -> float:
        largest = 0.0
        for some in _chunks(clients, self.chunk):
            drawn = self.problem.draw(Key(self.seed, round=1), some, [draws] * len(some), batch)
            rows = self.x.expand(len(some), -1).contiguous()
            square = torch.zeros(len(some), dtype=torch.float64)
            for k in range(draws):
                g = self.problem.grad(rows, drawn, k).detach().double().cpu()
                square += ((g - gradients[some]) ** 2).sum(1) / draws
            largest = max(largest, float(square.max()))
        return sqrt(largest)


def lanczos(product: Callable[[Tensor], Tensor], start: Tensor, iterations: int) -> list[tuple[float, float, bool]]:
    """The largest and smallest eigenvalue of every row's matrix, and whether the smallest has converged."""
    rows, D = start.shape
    steps = min(iterations, D)
    basis = torch.zeros(rows, steps, D, dtype=torch.float64)
    v = start.double().cpu()
    v = v / v.norm(dim=1, keepdim=True)
    alpha, beta = np.zeros((rows, steps)), np.zeros((rows, steps))
    for j in range(steps):
        basis[:, j] = v
        w = product(v.to(start)).double().cpu()
        alpha[:, j] = (w * v).sum(1).numpy()
        for _ in range(2):  # twice is enough against rounding
            known = basis[:, : j + 1]
            w = w - torch.einsum("rk,rkd->rd", torch.einsum("rkd,rd->rk", known, w), known)
        norm = w.norm(dim=1)
        beta[:, j] = norm.numpy()
        v = torch.where(norm[:, None] > 0, w / norm.clamp_min(1e-300)[:, None], torch.zeros(()))
    return [_ritz(a, b, D, torch.finfo(start.dtype).eps) for a, b in zip(alpha, beta, strict=True)]


def _ritz(alpha: np.ndarray, beta: np.ndarray, D: int, eps: float) -> tuple[float, float, bool]:
    """The extreme eigenvalues of a tridiagonal matrix, cut where the next vector is nothing but rounding."""
    size = np.abs(alpha).max() + beta[:-1].max(initial=0.0)
    end = next((j + 1 for j, b in enumerate(beta) if b <= 100 * eps * size), len(alpha))
    T = np.diag(alpha[:end]) + np.diag(beta[: end - 1], 1) + np.diag(beta[: end - 1], -1)
    values, vectors = np.linalg.eigh(T)
    residual = beta[end - 1] * abs(vectors[-1, 0])
    told = end == D or residual <= 1e-3 * max(abs(values[0]), eps * size)
    return float(np.abs(values).max()), float(values[0]), bool(told)


def _extremes(found: list[tuple[float, float, bool]]) -> tuple[float, float | None]:
    L, mu = max(each[0] for each in found), min(each[1] for each in found)
    told = all(each[2] for each in found) and mu > 1e-12 * L
    return L, mu if told else None


def _directions(x: Tensor, rows: int, seed: int) -> Tensor:
    drawn = generator(Purpose.METHOD, Key(seed, round=0)).standard_normal((rows, x.numel()))
    return torch.as_tensor(drawn).to(x)


def _chunks(clients: list[int], size: int) -> list[list[int]]:
    return [clients[at : at + size] for at in range(0, len(clients), size)]
