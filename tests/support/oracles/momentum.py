"""Client momentum: the algorithms of Cheng, Huang, Wu & Yuan 2024 (FedAvg-M, SCAFFOLD-M, -VR).

The paper's round r = 0, 1, ... is round t = r + 1 here.  With unequal numbers of local steps the
division by eta K becomes client-wise, by eta K_i, and the default gamma is eta times the mean of
the cohort's K_i; with equal ones both are the paper's.
"""

import numpy as np

from .world import World


def default_gamma(gamma: float | None, eta: float, K: list[int], cohort: list[int], server_lr: float = 1.0) -> float:
    """gamma = eta K, with which the server step is plain averaging (Cheng et al. 2024, D.1), or server_lr of it."""
    return server_lr * eta * sum(K[i] for i in cohort) / len(cohort) if gamma is None else gamma


def first_gradients(w: World, B: int) -> list[np.ndarray]:
    """For every client the mean of B minibatch gradients at x^0, taken before round 1."""
    starts = []
    for i in range(w.N):
        c_i = np.zeros_like(w.x0)
        for b in range(B):
            c_i = c_i + w.grad(i, w.x0, 0, b) / B
        starts.append(c_i)
    return starts


def fedavg_m(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    gamma: float | None = None,
    server_lr: float = 1.0,
) -> np.ndarray:
    """FedAvg-M, Cheng et al. 2024, Algorithm 1, with g^0 = 0; beta weighs the fresh gradient."""
    x, g = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        g_new = np.zeros_like(x)
        for i in cohort:
            x_i = x.copy()
            for k in range(K[i]):
                g_i = beta * w.grad(i, x_i, t, k) + (1 - beta) * g
                x_i = x_i - eta * g_i
            g_new = g_new + (x - x_i) / (eta * K[i]) / len(cohort)
        g = g_new
        x = x - default_gamma(gamma, eta, K, cohort, server_lr) * g
        path.append(x)
    return np.array(path)


def fedavg_m_reparam(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    gamma: float | None = None,
    server_lr: float = 1.0,
) -> np.ndarray:
    """FedAvg-M reparameterised, Cheng et al. 2024, D.2; eta and gamma are the paper's hatted ones.

    The fresh gradient keeps full weight, as in PyTorch's momentum.
    """
    x, g_hat = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        g_new = np.zeros_like(x)
        for i in cohort:
            x_i = x.copy()
            for k in range(K[i]):
                g_i = w.grad(i, x_i, t, k) + (1 - beta) * g_hat
                x_i = x_i - eta * g_i
            g_new = g_new + (x - x_i) / (eta * K[i]) / len(cohort)
        g_hat = g_new
        x = x - default_gamma(gamma, eta, K, cohort, server_lr) * g_hat
        path.append(x)
    return np.array(path)


def fedavg_m_vr(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    gamma: float | None = None,
    server_lr: float = 1.0,
    B: int = 1,
) -> np.ndarray:
    """FedAvg-M-VR, Cheng et al. 2024, Algorithm 3 with the start of Theorem 2; x^{-1} = x^0."""
    x_old, x = w.x0.copy(), w.x0.copy()
    g = sum(first_gradients(w, B), np.zeros_like(x)) / w.N
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        g_new = np.zeros_like(x)
        for i in cohort:
            x_i = x.copy()
            for k in range(K[i]):
                # Both gradients on the same minibatch; x^{r-1} stays put during the round.
                g_i = w.grad(i, x_i, t, k) + (1 - beta) * (g - w.grad(i, x_old, t, k))
                x_i = x_i - eta * g_i
            g_new = g_new + (x - x_i) / (eta * K[i]) / len(cohort)
        g = g_new
        x_old, x = x, x - default_gamma(gamma, eta, K, cohort, server_lr) * g
        path.append(x)
    return np.array(path)


def scaffold_m(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    gamma: float | None = None,
    server_lr: float = 1.0,
    B: int = 0,
) -> np.ndarray:
    """SCAFFOLD-M, Cheng et al. 2024, Algorithm 2, with g^0 = 0 and c_i^0 as in Theorem 3."""
    x, g = w.x0.copy(), np.zeros_like(w.x0)
    c_i = first_gradients(w, B)
    c = sum(c_i, np.zeros_like(x)) / w.N
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        g_new, c_new = np.zeros_like(x), c.copy()
        for i in cohort:
            x_i, raw = x.copy(), np.zeros_like(x)
            for k in range(K[i]):
                grad = w.grad(i, x_i, t, k)
                # The closing parenthesis belongs here: beta does not touch g^r.
                g_i = beta * (grad - c_i[i] + c) + (1 - beta) * g
                x_i = x_i - eta * g_i
                raw = raw + grad
            g_new = g_new + (x - x_i) / (eta * K[i]) / len(cohort)
            # The mean of the raw gradients, not of the directions.
            c_new = c_new + (raw / K[i] - c_i[i]) / w.N
            c_i[i] = raw / K[i]
        g, c = g_new, c_new
        x = x - default_gamma(gamma, eta, K, cohort, server_lr) * g
        path.append(x)
    return np.array(path)


def scaffold_m_reparam(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    gamma: float | None = None,
    server_lr: float = 1.0,
    B: int = 0,
) -> np.ndarray:
    """SCAFFOLD-M reparameterised, Cheng et al. 2024, D.2; eta, gamma are the hatted ones."""
    x, g_hat = w.x0.copy(), np.zeros_like(w.x0)
    c_i = first_gradients(w, B)
    c = sum(c_i, np.zeros_like(x)) / w.N
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        g_new, c_new = np.zeros_like(x), c.copy()
        for i in cohort:
            x_i, raw = x.copy(), np.zeros_like(x)
            for k in range(K[i]):
                grad = w.grad(i, x_i, t, k)
                g_i = (grad - c_i[i] + c) + (1 - beta) * g_hat
                x_i = x_i - eta * g_i
                raw = raw + grad
            g_new = g_new + (x - x_i) / (eta * K[i]) / len(cohort)
            c_new = c_new + (raw / K[i] - c_i[i]) / w.N
            c_i[i] = raw / K[i]
        g_hat, c = g_new, c_new
        x = x - default_gamma(gamma, eta, K, cohort, server_lr) * g_hat
        path.append(x)
    return np.array(path)


def scaffold_m_vr(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    gamma: float | None = None,
    server_lr: float = 1.0,
    B: int = 1,
) -> np.ndarray:
    """SCAFFOLD-M-VR, Cheng et al. 2024, Algorithm 4 with the start of Theorem 4: g^0 = c^0."""
    x_old, x = w.x0.copy(), w.x0.copy()
    c_i = first_gradients(w, B)
    c = sum(c_i, np.zeros_like(x)) / w.N
    g = c.copy()
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        g_new, c_new = np.zeros_like(x), c.copy()
        for i in cohort:
            x_i, raw = x.copy(), np.zeros_like(x)
            for k in range(K[i]):
                grad = w.grad(i, x_i, t, k)
                back = w.grad(i, x_old, t, k)  # same minibatch
                g_i = grad - beta * (c_i[i] - c) + (1 - beta) * (g - back)
                x_i = x_i - eta * g_i
                raw = raw + grad
            g_new = g_new + (x - x_i) / (eta * K[i]) / len(cohort)
            c_new = c_new + (raw / K[i] - c_i[i]) / w.N
            c_i[i] = raw / K[i]
        g, c = g_new, c_new
        x_old, x = x, x - default_gamma(gamma, eta, K, cohort, server_lr) * g
        path.append(x)
    return np.array(path)
