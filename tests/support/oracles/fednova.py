"""FedNova with its local solvers, and with cross-client variance reduction."""

import numpy as np

from .world import World


def coefficients(steps: int, eta: float, mu: float, rho: float) -> np.ndarray:
    """The vector a of x - y = eta * sum_k a[k] g_k, one unit impulse per entry."""
    a = np.zeros(steps)
    for impulse in range(steps):
        y, u = 0.0, 0.0  # the model sent is x = 0
        for k in range(steps):
            g = 1.0 if k == impulse else 0.0
            u = rho * u + g
            y = y - eta * (u + mu * (y - 0.0))
        a[impulse] = (0.0 - y) / eta
    return a


def fednova(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    mu: float = 0.0,
    rho: float = 0.0,
    tau_eff: str | float = "a",
    normalise: str = "cohort",
    gmf: float = 0.0,
    w_: str = "p",
) -> np.ndarray:
    """Wang et al. 2020, Algorithm 1, with proximal and momentum SGD as local solver.

    With both, the proximal pull stays out of the momentum buffer, as the authors' code intends.
    `w_` = "pa" weighs the normalised d_i as plain averaging of local models does (the implied weights, between (4) and
    (5) of the paper): w_i proportional to p_i ||a_i||_1.
    `gmf` is the server momentum of the "hybrid" scheme; 0 gives line 6 of the algorithm.
    """
    x = w.x0.copy()
    buf = np.zeros_like(x)
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        norm_a, d = {}, {}
        for i in S:
            y, u = x.copy(), np.zeros_like(x)
            for k in range(K[i]):
                u = rho * u + w.grad(i, y, t, k)
                y = y - eta * (u + mu * (y - x))
            norm_a[i] = coefficients(K[i], eta, mu, rho).sum()
            d[i] = (x - y) / (eta * norm_a[i])
        p_S = sum(w.p[i] for i in S)
        weight = {i: w.p[i] / p_S for i in S}
        q = weight if normalise == "cohort" else {i: w.p[i] for i in S}
        if tau_eff == "a":
            tau = sum(q[i] * norm_a[i] for i in S)
        elif tau_eff == "steps":
            tau = sum(q[i] * K[i] for i in S)
        else:
            tau = float(tau_eff)
        if w_ == "pa":
            total = sum(w.p[i] * norm_a[i] for i in S)
            weight = {i: w.p[i] * norm_a[i] / total for i in S}
        buf = gmf * buf + tau * sum(weight[i] * d[i] for i in S)
        x = x - eta * buf
        xs.append(x)
    return np.array(xs)


def fednova_vr(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, rho: float = 0.0) -> np.ndarray:
    """Wang et al. 2020, Algorithm 2 (momentum SGD + cross-client variance reduction).

    Line 5 as printed forgets that d_i already contains the previous c_i, and oscillates; the
    correction is therefore accumulated, c_i <- c_i - d_i + sum_j p_j d_j.
    """
    assert all(len(S) == w.N for S in cohorts)
    x = w.x0.copy()
    c = [np.zeros_like(x) for _ in range(w.N)]
    xs = [x]
    for t in range(1, len(cohorts) + 1):
        a, d = [], []
        for i in range(w.N):
            y, u = x.copy(), np.zeros_like(x)
            for k in range(K[i]):
                g = w.grad(i, y, t, k) + c[i]
                u = rho * u + g
                y = y - eta * u
            a.append((K[i] - rho * (1 - rho ** K[i]) / (1 - rho)) / (1 - rho))
            d.append((x - y) / (eta * a[i]))
        d_bar = sum(w.p[i] * d[i] for i in range(w.N))
        x = x - sum(w.p[i] * a[i] for i in range(w.N)) * eta * d_bar
        for i in range(w.N):
            c[i] = c[i] - d[i] + d_bar
        xs.append(x)
    return np.array(xs)
