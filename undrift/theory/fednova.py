"""FedNova: where FedAvg, FedProx and FedNova end with unequal work, what that costs, and step sizes.

Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, appendices A to F.

    u <- rho u + grad F_i(y),  y <- y - eta [ u + mu (y - x) ]          tau_i times;  x - y = eta sum_k a_i^(k) grad F_i(y_k)
    a_i        its l1 norm is tau_i for SGD, [1 - (1 - alpha)^tau_i] / alpha for FedProx, alpha = eta mu        (34), (43)
    w_i        p_i |a_i|_1 / sum_j p_j |a_j|_1 for FedAvg and FedProx, p_i for FedNova
    tau_eff    sum_i p_i |a_i|_1                                                                               (121), (128)
    A = m tau_eff sum_i w_i^2 |a_i|_2^2 / |a_i|_1^2                                                            (93)
    B = sum_i w_i (|a_i|_2^2 - a_{i,-1}^2),   C = max_i |a_i|_1 (|a_i|_1 - a_{i,-1})                           (94), (95)
    chi2(p || w) = sum_i (p_i - w_i)^2 / w_i                                                                   (103)

B2 and kappa are beta^2 and kappa of Assumption 3: sum_i w_i |grad F_i|^2 <= beta^2 |sum_i w_i grad F_i|^2 + kappa^2.

(69) takes the weights of all tau_i steps for those of the first k, which with a proximal term are larger: the bounds here
have the smallest weight in place of the last, a_{i,-1}, in B and C (errata 28).  Without that term they are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value, method
from undrift.problems.quadratic import Quadratic
from undrift.theory.prescription import Prescription, check_constants, checked_rounds, refuse, require

Steps = int | Sequence[int]


def accumulation(steps: int, *, alpha: float = 0.0, rho: float = 0.0) -> np.ndarray:
    """The vector a_i: the weight of every local gradient in x - y, over eta, for SGD with a proximal term and momentum.

    >>> accumulation(3, alpha=0.5).tolist(), accumulation(3, rho=0.5).tolist()
    ([0.25, 0.5, 1.0], [1.75, 1.5, 1.0])
    """
    check_constants("accumulation", K=steps, alpha=alpha, rho=rho)
    way, buffer = np.zeros(steps), np.zeros(steps)  # one column a gradient
    for k in range(steps):
        buffer = rho * buffer
        buffer[k] += 1
        way = (1 - alpha) * way + buffer
    return way


@dataclass(frozen=True)
class NovaConstants:
    """What unequal work comes to: tau_eff, the weights w that are implied, A, B, C, and chi2(p || w)."""

    tau_eff: float
    w: np.ndarray
    A: float
    B: float
    C: float
    chi2: float
    longest: float  # max_i |a_i|_1


def nova_constants(
    steps: Sequence[int],
    *,
    p: Sequence[float] | None = None,
    normalised: bool = False,
    alpha: float = 0.0,
    rho: float = 0.0,
    tau_eff: float | str = "a",
) -> NovaConstants:
    """(93)-(95), (103), (121)-(131) for any local solver of the paper; `normalised` for FedNova, where w = p.

    tau_eff    as in ud.FedNova: "a" is sum_i p_i |a_i|_1, "steps" sum_i p_i tau_i, or a number

    >>> fedavg = nova_constants([3, 7])
    >>> fedavg.tau_eff, fedavg.w.tolist(), round(fedavg.A, 9), round(fedavg.B, 9), fedavg.C
    (5.0, [0.3, 0.7], 1.0, 4.8, 42.0)
    >>> round(fedavg.chi2, 6), nova_constants([3, 7], normalised=True).chi2
    (0.190476, 0.0)
    """
    source = "nova_constants"
    steps = _steps(source, steps)
    weights = _weights(source, p, len(steps))
    a = [accumulation(tau, alpha=alpha, rho=rho) for tau in steps]
    one, two = (np.array([np.sum(each**power) for each in a]) for power in (1, 2))
    w = weights if normalised else weights * one / (weights @ one)
    known = {"a": one, "steps": np.array(steps)}
    if isinstance(tau_eff, str) and tau_eff in known:
        tau_eff = float(weights @ known[tau_eff])
    check_value(source, "tau_eff ('a', 'steps' or a number)", tau_eff, float, within="(0, inf)")
    return NovaConstants(
        tau_eff=float(tau_eff),
        w=w,
        A=float(len(steps) * tau_eff * (w**2 * two / one**2).sum()),
        **_drift_constants(a, w, [each[-1] for each in a]),
        chi2=chi2(weights, w),
        longest=float(one.max()),
    )


def _drift_constants(a: list[np.ndarray], w: np.ndarray, left_out: list[float]) -> dict[str, float]:
    """B and C, (94) and (95), with the weight that either leaves out of each a_i."""
    B = sum(w_i * (each @ each - own**2) for w_i, each, own in zip(w, a, left_out, strict=True))
    C = max(each.sum() * (each.sum() - own) for each, own in zip(a, left_out, strict=True))
    return {"B": float(B), "C": float(C)}


def chi2(p: Any, w: Any) -> float:
    """chi2(p || w) = sum_i (p_i - w_i)^2 / w_i, as (103) prints it: how far the weights implied are from those meant.

    >>> round(chi2([0.5, 0.5], [0.3, 0.7]), 6)
    0.190476
    """
    p, w = np.asarray(p), np.asarray(w)
    if p.shape != w.shape or p.ndim != 1:
        raise InvalidInput(f"chi2: p and w are two lists of one length, got {p.shape} and {w.shape}")
    p, w = (_weights(f"chi2: {name}", each, len(each)) for name, each in (("p", p), ("w", w)))
    if ((w == 0) & (p > 0)).any():
        i = int(((w == 0) & (p > 0)).argmax())
        raise InvalidInput(f"chi2: w_{i} is 0 where p_{i} = {p[i]:g}, which makes chi2 infinite")
    used = w > 0
    return float(((p - w)[used] ** 2 / w[used]).sum())


# Where runs end on quadratics.


def fedavg_limit(problem: Quadratic, *, steps: Steps, lr: float, mu: float = 0.0, rho: float = 0.0) -> Tensor:
    """Where FedAvg (FedProx with mu, local momentum with rho) ends with all clients on a quadratic, (28).

    With both, the proximal term stays out of the momentum, as in ud.FedNova(w="pa").

    >>> import torch, undrift as ud
    >>> H, e = torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    >>> fedavg_limit(ud.Quadratic(H, e), steps=[3, 7], lr=1e-6)
    tensor([-0.8000], dtype=torch.float64)
    """
    return _limit(problem, steps, lr, mu, rho, normalised=False)


def fednova_limit(problem: Quadratic, *, steps: Steps, lr: float, mu: float = 0.0, rho: float = 0.0) -> Tensor:
    """Where FedNova ends with all clients on a quadratic: (28) with K_i / |a_i|_1 in place of K_i.

    Not at the optimum, but at a distance of order lr from it.

    >>> import torch, undrift as ud
    >>> H, e = torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    >>> fednova_limit(ud.Quadratic(H, e), steps=[3, 7], lr=0.01)
    tensor([0.0199], dtype=torch.float64)
    """
    return _limit(problem, steps, lr, mu, rho, normalised=True)


def _limit(problem: Quadratic, steps: Steps, lr: float, mu: float, rho: float, normalised: bool) -> Tensor:
    p, K = local_maps(problem, steps, lr, mu, rho)
    if normalised:
        norms = np.array([accumulation(t, alpha=lr * mu, rho=rho).sum() for t in _each(problem, steps)])
        p = (p @ norms) * p / norms
    H, e = (each.double().cpu().numpy() for each in (problem.H, problem.e))
    M = np.einsum("n,nij,njk->ik", p, K, H)  # x - x_limit shrinks by I - M in a round
    m = np.linalg.eigvalsh(M)
    if not 1e-12 * m.max() < m.min() <= m.max() < 2:
        raise InvalidInput(
            f"limits on quadratics: with lr = {lr} rounds do not end anywhere, as sum_i p_i K_i H_i (28) has eigenvalues "
            f"from {m.min():.6g} to {m.max():.6g}, not inside (0, 2): take a smaller lr, and an f with one minimum"
        )
    x = np.linalg.solve(M, np.einsum("n,nij,nj->i", p, K, e))
    return torch.as_tensor(x, dtype=problem.H.dtype, device=problem.H.device)


def local_maps(
    problem: Quadratic, steps: Steps, lr: float, mu: float = 0.0, rho: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The weights p_i, and the K_i of x - y_i = K_i (H_i x - e_i) after client i's local steps from x.

    (21) has K_i = [I - (I - eta mu I - eta H_i)^tau_i] (H_i + mu I)^-1; here the steps themselves, so that H_i may be
    singular and the solver may have momentum.
    """
    source = "limits on quadratics"
    if not isinstance(problem, Quadratic):
        raise InvalidInput(f"{source}: a ud.Quadratic is needed, got {type(problem).__name__}")
    check_constants(source, lr=lr, alpha=lr * mu, rho=rho)
    maps = []
    for H, tau in zip(problem.H.double().cpu().numpy(), _each(problem, steps), strict=True):
        one = np.eye(len(H))
        K, u = 0 * one, 0 * one
        for _ in range(tau):
            u = rho * u + one - H @ K  # the gradient at y is H x - e - H (x - y)
            K = K + lr * u - lr * mu * K
        maps.append(K)
    return np.asarray(problem.weights, dtype=float), np.array(maps)


# Step sizes.


@dataclass(frozen=True)
class FedNovaSetting(Prescription):
    """rho and tau_eff of ud.FedNova."""

    rho: float
    tau_eff: float | str

    def method(self) -> Any:
        return method("fednova", rho=self.rho, tau_eff=self.tau_eff)


@dataclass(frozen=True)
class FedProxSetting(Prescription):
    """mu of ud.FedProx, and alpha = lr mu."""

    mu: float
    alpha: float

    def method(self) -> Any:
        return method("fedprox", mu=self.mu)


def largest_lr(constants: NovaConstants, *, L: float, B2: float = 1.0) -> float:
    """The largest local step size of Theorem 1, (101): min{ 1/(max_i |a_i|_1 sqrt(2 beta^2 + 1)), 1/tau_eff } / (2 L).

    >>> round(largest_lr(nova_constants([3, 7]), L=1.0), 6)
    0.041239
    """
    check_constants("FedNova (Wang et al., (101))", L=L, B2=B2)
    return min(1 / (constants.longest * sqrt(2 * B2 + 1)), 1 / constants.tau_eff) / (2 * L)


def fednova(
    *,
    L: float,
    Delta: float,
    steps: Sequence[int],
    R: int,
    sigma: float = 0.0,
    kappa: float = 0.0,
    B2: float = 1.0,
    p: Sequence[float] | None = None,
    rho: float = 0.0,
    tau_eff: float | str = "a",
) -> FedNovaSetting:
    """FedNova with all clients, Theorem 3: lr = sqrt(m / (tau_bar R)), which must satisfy (101).

    >>> setting = fednova(L=1.0, Delta=1.0, steps=[3, 7], R=1000)
    >>> setting.lr
    0.02
    >>> fednova(L=1.0, Delta=1.0, steps=[3, 7], R=100)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: FedNova (Wang et al., Theorem 3): lr = sqrt(m / (tau_bar R)) of at most 0.0412393,
    by (101), is needed, got lr = 0.0632456, R = 100 and the smallest R = 236
    """
    source = "FedNova (Wang et al., Theorem 3)"
    check_constants(source, L=L, Delta=Delta, R=R, sigma=sigma, kappa=kappa, B2=B2, rho=rho)
    found = nova_constants(steps, p=p, normalised=True, rho=rho, tau_eff=tau_eff)
    taus = _steps(source, steps)
    lr = sqrt(len(taus) / (np.mean(taus) * R))
    _check_101(source, lr, largest_lr(found, L=L, B2=B2), len(taus) / float(np.mean(taus)), R)
    transient, floor = _bound(found, lr, L, Delta, sigma, kappa, len(taus))
    return FedNovaSetting(source, R, taus, lr, transient, floor, rho=rho, tau_eff=tau_eff)


def fedprox(
    *, L: float, Delta: float, steps: Sequence[int], R: int, sigma: float = 0.0, kappa: float = 0.0, B2: float = 1.0
) -> FedProxSetting:
    """FedProx with all clients and p_i = 1/m, Corollary 2: alpha = sqrt(m / tau_bar) / R^(1/6), so mu = R^(1/3).

    lr = sqrt(m / (tau_bar R)) as in C.8, which must satisfy (101); alpha must be below 1.  The bound is on the gradient of
    the surrogate, sum_i w_i f_i, as in the corollary, and Delta and kappa are those of the surrogate.

    >>> setting = fedprox(L=1.0, Delta=1.0, steps=[30, 70], R=1000)
    >>> round(setting.mu, 6), round(setting.alpha, 5)
    (10.0, 0.06325)
    """
    source = "FedProx (Wang et al., Corollary 2)"
    check_constants(source, L=L, Delta=Delta, R=R, sigma=sigma, kappa=kappa, B2=B2)
    taus = _steps(source, steps)
    share = len(taus) / float(np.mean(taus))
    alpha = sqrt(share) / R ** (1 / 6)
    if alpha >= 1:
        condition = "alpha = sqrt(m / tau_bar) / R^(1/6) below 1"
        refuse(source, condition, alpha=alpha, **{"m / tau_bar": share, "R": R})
    lr = sqrt(share / R)
    found = nova_constants(taus, alpha=alpha)
    _check_101(source, lr, largest_lr(found, L=L, B2=B2), share, R)
    a = [accumulation(tau, alpha=alpha) for tau in taus]
    found = replace(found, **_drift_constants(a, found.w, [each.min() for each in a]))  # errata 28
    transient, floor = _bound(found, lr, L, Delta, sigma, kappa, len(taus))
    return FedProxSetting(source, R, taus, lr, transient, floor, mu=alpha / lr, alpha=alpha)


def _check_101(source: str, lr: float, largest: float, share: float, R: int) -> None:
    if lr > largest:
        condition = f"lr = sqrt(m / (tau_bar R)) of at most {largest:.6g}, by (101),"
        # alpha falls as R rises, so for FedProx this is not quite enough
        needed = int(np.ceil(share / largest**2))
        refuse(source, condition, lr=lr, R=R, **{"the smallest R": needed})


def _bound(
    found: NovaConstants, lr: float, L: float, Delta: float, sigma: float, kappa: float, m: int
) -> tuple[float, float]:
    """The two halves of (97)."""
    noise = 4 * lr * L * sigma**2 * found.A / m + 6 * lr**2 * L**2 * sigma**2 * found.B
    return 4 * Delta / (lr * found.tau_eff), noise + 12 * lr**2 * L**2 * kappa**2 * found.C


def inconsistency_bound(surrogate: float, constants: NovaConstants, *, kappa: float, B2: float = 1.0) -> float:
    """Theorem 2: what a bound on the surrogate's squared gradient says of f's: 2 (chi2 (beta^2 - 1) + 1) e + 2 chi2 kappa^2.

    >>> round(inconsistency_bound(0.0, nova_constants([3, 7]), kappa=1.0), 6)
    0.380952
    """
    source = "FedNova (Wang et al., Theorem 2)"
    check_constants(source, kappa=kappa, B2=B2)
    check_value(source, "surrogate", surrogate, float, within="[0, inf)")
    X = constants.chi2
    return 2 * (X * (B2 - 1) + 1) * surrogate + 2 * X * kappa**2


def fednova_rate(R: Any, *, steps: Sequence[int], sigma: float = 1.0, kappa: float = 1.0, **options: Any) -> Any:
    """(102) with the constants of FedNova, up to a factor; options as those of nova_constants.

    >>> round(fednova_rate(10_000, steps=[4, 4]), 5)
    0.00782
    """
    R = checked_rounds("fednova_rate", R, sigma=sigma, kappa=kappa)
    taus = _steps("fednova_rate", steps)
    found = nova_constants(taus, normalised=True, **options)
    m, mean = len(taus), float(np.mean(taus))
    slow = (mean / found.tau_eff + found.A * sigma**2) * (m * mean * R) ** -0.5
    return slow + m * (found.B * sigma**2 + found.C * kappa**2) / (mean * R)


def fedprox_rate(R: Any, *, steps: Sequence[int]) -> Any:
    """1/sqrt(m tau_bar R) + R^(-2/3) (133), up to a factor.

    >>> round(fedprox_rate(1000, steps=[5, 5]), 6)
    0.02
    """
    R, taus = checked_rounds("fedprox_rate", R), _steps("fedprox_rate", steps)
    return (len(taus) * float(np.mean(taus)) * R) ** -0.5 + R ** (-2 / 3)


def _steps(source: str, steps: Any) -> list[int]:
    if np.ndim(steps) != 1 or not len(steps):
        raise InvalidInput(f"{source}: steps lists the local steps of every client, got {steps!r}")
    for tau in steps:
        check_value(source, "steps", tau, int, within="[1, inf)")
    return [int(tau) for tau in steps]


def _each(problem: Quadratic, steps: Steps) -> list[int]:
    source = "limits on quadratics"
    listed = _steps(source, [steps] * problem.N if np.ndim(steps) == 0 else steps)
    require(
        len(listed) == problem.N, source, "a number of steps for each client", clients=problem.N, numbers=len(listed)
    )
    return listed


def _weights(source: str, p: Any, m: int) -> np.ndarray:
    """Weights that sum to one, equal ones if they are not given."""
    weights = np.full(m, 1 / m) if p is None else np.asarray(p, dtype=float)
    if weights.shape != (m,) or not (weights >= 0).all() or not abs(weights.sum() - 1) <= 1e-6:
        raise InvalidInput(f"{source}: {m} weights that are not negative and sum to one are needed, got {p}")
    return weights
