"""FedAvg and its closest relatives: weighted averaging with p_i renormalised over the cohort."""

import numpy as np

from .world import World


def fedavg(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, server_lr: float = 1.0) -> np.ndarray:
    """FedAvg, McMahan et al. 2017, with the two-sided learning rate of Yang, Fang & Liu 2021."""
    x = w.x0.copy()
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        total = sum(w.p[i] for i in cohort)
        Delta = np.zeros_like(x)
        for i in cohort:
            y = x.copy()
            for k in range(K[i]):
                y = y - eta * w.grad(i, y, t, k)
            Delta = Delta + w.p[i] / total * (x - y)
        x = x - server_lr * Delta
        path.append(x)
    return np.array(path)


def fedprox(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    mu: float,
    server_lr: float = 1.0,
) -> np.ndarray:
    """FedProx, Li et al. 2020, as in Wang et al. 2020 (FedNova), appendix A, eqs. (15)-(22)."""
    x = w.x0.copy()
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        total = sum(w.p[i] for i in cohort)
        Delta = np.zeros_like(x)
        for i in cohort:
            y = x.copy()
            for k in range(K[i]):
                # The gradient of (mu/2) ||y - x||^2: mu, not mu/2, multiplies the difference.
                y = y - eta * (w.grad(i, y, t, k) + mu * (y - x))
            Delta = Delta + w.p[i] / total * (x - y)
        x = x - server_lr * Delta
        path.append(x)
    return np.array(path)


def fedavg_local_momentum(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    rho: float,
    server_lr: float = 1.0,
) -> np.ndarray:
    """FedAvg over local momentum SGD (Wang et al. 2020, appendix B): u starts at 0 every visit."""
    x = w.x0.copy()
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        total = sum(w.p[i] for i in cohort)
        Delta = np.zeros_like(x)
        for i in cohort:
            y = x.copy()
            u = np.zeros_like(x)
            for k in range(K[i]):
                u = rho * u + w.grad(i, y, t, k)
                y = y - eta * u
            Delta = Delta + w.p[i] / total * (x - y)
        x = x - server_lr * Delta
        path.append(x)
    return np.array(path)
