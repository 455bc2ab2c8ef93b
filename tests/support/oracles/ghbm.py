"""Generalised heavy-ball momentum (GHBM, Zaccone et al.) in its client, server and local forms.

theta[t] is the server model after round t, so round t starts from theta[t - 1].
"""

import numpy as np

from .world import World, add


def ghbm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    tau: int,
    beta: float,
    eta_s: float = 1.0,
    warmup: str = "zero",
) -> np.ndarray:
    """Algorithm 1, GHBM. The listing leaves open what theta^{t-tau-1} is while t <= tau."""
    theta = [w.x0.copy()]
    for t, S in enumerate(cohorts, start=1):
        if t - tau - 1 >= 0:
            old = theta[t - tau - 1]
        else:
            old = theta[t - 1] if warmup == "zero" else theta[0]
        deltas = []
        for i in S:
            J = K[i]
            y = theta[t - 1].copy()
            m = 1 / (tau * J) * (theta[t - 1] - old)
            for j in range(J):
                y = y - eta * w.grad(i, y, t, j) + beta * m
            deltas.append(theta[t - 1] - y)
        theta.append(theta[t - 1] - eta_s * add(deltas) / len(S))
    return np.array(theta)


def ghbm_eq5(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, tau: int, beta: float) -> np.ndarray:
    """Equation (5), m^t = (1/tau) sum_{k=1..tau} beta m^{t-k} + g^t, on the server.

    g^t is the mean of theta^{t-1} - y_i over FedAvg clients, and theta^t = theta^{t-1} - m^t.
    """
    theta = [w.x0.copy()]
    m = {t: np.zeros_like(w.x0) for t in range(1 - tau, 1)}
    for t, S in enumerate(cohorts, start=1):
        deltas = []
        for i in S:
            y = theta[t - 1].copy()
            for j in range(K[i]):
                y = y - eta * w.grad(i, y, t, j)
            deltas.append(theta[t - 1] - y)
        g = add(deltas) / len(S)
        m[t] = 1 / tau * add(beta * m[t - k] for k in range(1, tau + 1)) + g
        theta.append(theta[t - 1] - m[t])
    return np.array(theta)


def ghbm_theory(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    tau: int,
    beta: float,
    eta_s: float | None = None,
) -> np.ndarray:
    """Algorithm 3, the version analysed, after equations (4), (64), (103) and (120).

    Here beta weighs the fresh gradients. Rounds before the first count as zero gradients.
    """
    theta = [w.x0.copy()]
    m = np.zeros_like(w.x0)
    g = {t: np.zeros_like(w.x0) for t in range(1 - tau, 1)}
    for t, S in enumerate(cohorts, start=1):
        g_bars = []
        for i in S:
            y = theta[t - 1].copy()
            grads = []
            for j in range(K[i]):
                grads.append(w.grad(i, y, t, j))
                y = y - eta * (beta * grads[-1] + (1 - beta) * m)
            g_bars.append(add(grads) / K[i])
        g[t] = add(g_bars) / len(S)
        g_tau = 1 / tau * add(g[k] for k in range(t - tau + 1, t + 1))
        m = (1 - beta) * m + beta * g_tau
        step = eta * sum(K[i] for i in S) / len(S) if eta_s is None else eta_s
        theta.append(theta[t - 1] - step * m)
    return np.array(theta)


def ghbm_server(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    tau: int,
    beta: float,
    eta_s: float = 1.0,
    warmup: str = "zero",
) -> np.ndarray:
    """Appendix C.8 with equation (6): FedAvg clients, the momentum enters once, on the server."""
    theta = [w.x0.copy()]
    for t, S in enumerate(cohorts, start=1):
        deltas = []
        for i in S:
            y = theta[t - 1].copy()
            for j in range(K[i]):
                y = y - eta * w.grad(i, y, t, j)
            deltas.append(theta[t - 1] - y)
        if t > tau:
            m = 1 / tau * (theta[t - 1] - theta[t - tau - 1])
        elif warmup == "telescope":
            m = 1 / tau * (theta[t - 1] - theta[0])
        else:
            m = np.zeros_like(w.x0)
        theta.append(theta[t - 1] - eta_s * add(deltas) / len(S) + beta * m)
    return np.array(theta)


def local_ghbm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    eta_s: float = 1.0,
    C: float | None = None,
) -> np.ndarray:
    """Algorithm 1, LocalGHBM: the old model is the one the client was sent on its last visit.

    C replaces 1/tau_i by the participation ratio, as the authors' code does.
    """
    theta = [w.x0.copy()]
    stored: dict[int, tuple[int, np.ndarray]] = {}  # client -> (round, model received in it)
    for t, S in enumerate(cohorts, start=1):
        deltas = []
        for i in S:
            J = K[i]
            y = theta[t - 1].copy()
            m = np.zeros_like(y)
            if i in stored:
                last, old = stored[i]
                tau_i = t - last
                scale = 1 / (tau_i * J) if C is None else C / J
                m = scale * (theta[t - 1] - old)
            for j in range(J):
                y = y - eta * w.grad(i, y, t, j) + beta * m
            stored[i] = (t, theta[t - 1].copy())
            deltas.append(theta[t - 1] - y)
        theta.append(theta[t - 1] - eta_s * add(deltas) / len(S))
    return np.array(theta)


def fedhbm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    eta_s: float = 1.0,
    C: float | None = None,
) -> np.ndarray:
    """Section 3.4, FedHBM: current local iterate minus the client's own last final model.

    Both terms of a step are taken at the iterate before it. C as in `local_ghbm`.
    """
    theta = [w.x0.copy()]
    stored: dict[int, tuple[int, np.ndarray]] = {}  # client -> (round, its final local model)
    for t, S in enumerate(cohorts, start=1):
        deltas = []
        for i in S:
            J = K[i]
            y = theta[t - 1].copy()
            for j in range(J):
                m = np.zeros_like(y)
                if i in stored:
                    last, old = stored[i]
                    tau_i = t - last
                    m = (y - old) / (tau_i * J) if C is None else C * (y - old) / J
                y = y - eta * w.grad(i, y, t, j) + beta * m
            stored[i] = (t, y.copy())
            deltas.append(theta[t - 1] - y)
        theta.append(theta[t - 1] - eta_s * add(deltas) / len(S))
    return np.array(theta)
