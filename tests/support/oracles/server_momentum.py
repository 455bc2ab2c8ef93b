"""Server-side optimisers: the clients run plain SGD, the server treats Delta as its gradient.

The special momentum schemes are written in the form of their own papers, not as FedGM with
converted parameters: that they agree with FedGM is for a test to find out.
"""

import numpy as np

from .world import World


def local_opt(w: World, i: int, eta_l: float, K: int, x: np.ndarray, t: int) -> np.ndarray:
    """LocalOPT, Sun et al. 2024 (FedGM), Algorithm 2: K SGD steps from x; returns x - x_K."""
    y = x.copy()
    for k in range(K):
        y = y - eta_l * w.grad(i, y, t, k)
    return x - y


def aggregate(w: World, cohort: list[int], K: list[int], eta: float, x: np.ndarray, t: int) -> np.ndarray:
    """Sun et al. 2024, Algorithm 1, lines 4-7: Delta_t, the uniform mean over the cohort."""
    Delta = np.zeros_like(x)
    for i in cohort:
        Delta = Delta + local_opt(w, i, eta, K[i], x, t)
    return Delta / len(cohort)


def fedgm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_s: float,
    beta: float,
    nu: float,
) -> np.ndarray:
    """FedGM, Sun et al. 2024, eq. (2), with d_0 = 0."""
    x, d = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = aggregate(w, cohort, K, eta, x, t)
        d = (1 - beta) * Delta + beta * d
        h = (1 - nu) * Delta + nu * d
        x = x - eta_s * h
        path.append(x)
    return np.array(path)


def multistage_fedgm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    etas: list[float],
    betas: list[float],
    nus: list[float],
    Ts: list[int],
) -> np.ndarray:
    """Multistage FedGM, Sun et al. 2024, Algorithm 3: d is carried over from stage to stage."""
    if sum(Ts) != len(cohorts):
        raise ValueError("the stages must cover the rounds exactly")
    x, d = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    t = 0
    for eta_s, beta_s, nu_s, T_s in zip(etas, betas, nus, Ts, strict=True):
        for _ in range(T_s):
            t += 1
            Delta = aggregate(w, cohorts[t - 1], K, eta, x, t)
            d = (1 - beta_s) * Delta + beta_s * d
            h = (1 - nu_s) * Delta + nu_s * d
            x = x - eta_s * h
            path.append(x)
    return np.array(path)


def autonomous_fedgm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_s: float,
    beta: float,
    nu: float,
) -> np.ndarray:
    """Autonomous FedGM, Sun et al. 2024, Algorithm 4, one stage, with every client on time."""
    x, d = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        buffer = [local_opt(w, i, eta, K[i], x, t) / K[i] for i in cohort]  # line 7
        Delta = sum(buffer) / len(buffer)
        d = (1 - beta) * Delta + beta * d
        x = x - eta_s * ((1 - nu) * Delta + nu * d)
        path.append(x)
    return np.array(path)


def fedavgm(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, eta_s: float, beta: float) -> np.ndarray:
    """FedAvgM as Sun et al. 2024 define it (nu = 1): the buffer is an average, i.e. dampened."""
    x, d = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        d = (1 - beta) * aggregate(w, cohort, K, eta, x, t) + beta * d
        x = x - eta_s * d
        path.append(x)
    return np.array(path)


def fedavgm_hsu(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, lr: float, beta: float) -> np.ndarray:
    """FedAvgM, Hsu, Qi & Brown 2019: v = beta v + Delta, undampened heavy ball."""
    x, v = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        v = beta * v + aggregate(w, cohort, K, eta, x, t)
        x = x - lr * v
        path.append(x)
    return np.array(path)


def fednag(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, lr: float, beta: float) -> np.ndarray:
    """Nesterov momentum on the server, in PyTorch's form (Sutskever et al. 2013, shifted)."""
    x, v = w.x0.copy(), np.zeros_like(w.x0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = aggregate(w, cohort, K, eta, x, t)
        v = beta * v + Delta
        x = x - lr * (Delta + beta * v)
        path.append(x)
    return np.array(path)


def snv(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    alpha: float,
    b1: float,
    b2: float,
) -> np.ndarray:
    """Synthesised Nesterov variant, Lessard, Recht & Packard 2016, section 6.

    xi starts at rest (xi_{-1} = xi_0 = x^0, hence y_0 = x^0); the server model is y.
    """
    xi_old, xi = w.x0.copy(), w.x0.copy()
    y = xi + b2 * (xi - xi_old)
    path = [y]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = aggregate(w, cohort, K, eta, y, t)
        xi_new = xi + b1 * (xi - xi_old) - alpha * Delta
        xi_old, xi = xi, xi_new
        y = xi + b2 * (xi - xi_old)
        path.append(y)
    return np.array(path)


def triple_momentum(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, L: float, m: float) -> np.ndarray:
    """Triple Momentum, Van Scoy, Freeman & Lynch 2018; the server model is y."""
    rho = 1 - 1 / np.sqrt(L / m)
    alpha = (1 + rho) / L
    beta = rho**2 / (2 - rho)
    gamma = rho**2 / ((1 + rho) * (2 - rho))
    xi_old, xi, y = w.x0.copy(), w.x0.copy(), w.x0.copy()
    path = [y]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = aggregate(w, cohort, K, eta, y, t)
        xi_old, xi = xi, (1 + beta) * xi - beta * xi_old - alpha * Delta
        y = (1 + gamma) * xi - gamma * xi_old
        path.append(y)
    return np.array(path)


def robust_momentum(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    L: float,
    kappa: float,
    rho: float,
) -> np.ndarray:
    """Robust Momentum, Cyrus, Hu, Van Scoy & Lessard 2018; the server model is y."""
    alpha = kappa * (1 - rho) ** 2 * (1 + rho) / L
    beta = kappa * rho**3 / (kappa - 1)
    gamma = rho**3 / ((kappa - 1) * (1 - rho) ** 2 * (1 + rho))
    x_old, x, y = w.x0.copy(), w.x0.copy(), w.x0.copy()
    path = [y]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = aggregate(w, cohort, K, eta, y, t)
        x_old, x = x, x + beta * (x - x_old) - alpha * Delta
        y = x + gamma * (x - x_old)
        path.append(y)
    return np.array(path)


def pid_recht(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    k_P: float,
    k_I: float,
    k_D: float,
) -> np.ndarray:
    """PID control of the gradient, Recht 2018, as used by Ma & Yarats 2019 (QHM).

    The error is e = -Delta, and the controller sets the model itself, not its increment:
    x = x^0 + k_P e + k_I (sum of e) + k_D (low-pass filtered difference of e), all three at rest
    (e = 0) before round 1.  QHM has three parameters, this controller four; the filter constant
    is the one that the gains leave open, beta = k_D / (k_D - k_P).
    """
    beta = k_D / (k_D - k_P)
    x = w.x0.copy()
    e_old, integral, v = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        e = -aggregate(w, cohort, K, eta, x, t)
        integral = integral + e
        v = beta * v + (1 - beta) * (e - e_old)
        x = w.x0 + k_P * e + k_I * integral + k_D * v
        e_old = e
        path.append(x)
    return np.array(path)


def pid_an(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    r: float,
    b: float,
    K_d: float,
) -> np.ndarray:
    """PID optimiser, An et al. 2018: V integrates, D is the filtered difference of gradients.

    Both are *subtracted* (a rising gradient brakes), and the gradient before round 1 counts as 0.
    """
    x = w.x0.copy()
    V, D, g_old = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        g = aggregate(w, cohort, K, eta, x, t)
        V = b * V + r * g
        D = b * D + (1 - b) * (g - g_old)
        x = x - (V + K_d * D)
        g_old = g
        path.append(x)
    return np.array(path)


def asgd(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    delta: float,
    kappa: float,
    xi: float,
    eps: float = 0.7,
) -> np.ndarray:
    """Accelerated SGD, Kidambi et al. 2018: a long step, a short step, and a mix.

    The running average starts at x^0; the short step mixes with the *new* average.
    """
    alpha = 1 - eps**2 * xi / kappa
    x = w.x0.copy()
    xbar = w.x0.copy()
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = aggregate(w, cohort, K, eta, x, t)
        xbar = alpha * xbar + (1 - alpha) * (x - kappa * delta / eps * Delta)
        x = eps / (eps + (1 - alpha)) * (x - delta * Delta) + (1 - alpha) / (eps + (1 - alpha)) * xbar
        path.append(x)
    return np.array(path)


def fedadam(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_s: float,
    beta1: float,
    beta2: float,
    tau: float,
    v0: float,
    bias_correction: bool = False,
) -> np.ndarray:
    """FedAdam, Reddi et al. 2021, Algorithm 2 (which has no bias correction; Adam's on demand)."""
    x, m, v = w.x0.copy(), np.zeros_like(w.x0), np.full_like(w.x0, v0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        # Reddi et al.'s Delta points downhill: the mean of y_i - x.
        Delta = -aggregate(w, cohort, K, eta, x, t)
        m = beta1 * m + (1 - beta1) * Delta
        v = beta2 * v + (1 - beta2) * Delta**2
        m_hat, v_hat = m, v
        if bias_correction:
            m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        x = x + eta_s * m_hat / (np.sqrt(v_hat) + tau)
        path.append(x)
    return np.array(path)


def fedyogi(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_s: float,
    beta1: float,
    beta2: float,
    tau: float,
    v0: float,
) -> np.ndarray:
    """FedYogi, Reddi et al. 2021, Algorithm 2."""
    x, m, v = w.x0.copy(), np.zeros_like(w.x0), np.full_like(w.x0, v0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = -aggregate(w, cohort, K, eta, x, t)
        m = beta1 * m + (1 - beta1) * Delta
        v = v - (1 - beta2) * Delta**2 * np.sign(v - Delta**2)
        x = x + eta_s * m / (np.sqrt(v) + tau)
        path.append(x)
    return np.array(path)


def fedadagrad(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_s: float,
    tau: float,
    v0: float,
    beta1: float = 0.0,
) -> np.ndarray:
    """FedAdagrad, Reddi et al. 2021, Algorithm 2."""
    x, m, v = w.x0.copy(), np.zeros_like(w.x0), np.full_like(w.x0, v0)
    path = [x]
    for t, cohort in enumerate(cohorts, start=1):
        Delta = -aggregate(w, cohort, K, eta, x, t)
        m = beta1 * m + (1 - beta1) * Delta
        v = v + Delta**2
        x = x + eta_s * m / (np.sqrt(v) + tau)
        path.append(x)
    return np.array(path)
