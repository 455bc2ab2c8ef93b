"""Methods the momentum papers compare against: FedADC, FedDyn, AdaBest, Mime, STORM and SARAH."""

import numpy as np

from .world import World, add


def fedadc(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta_l: float,
    beta_g: float,
    alpha: float = 1.0,
    nesterov: bool = False,
) -> np.ndarray:
    """FedADC, Ozfatura et al. 2021, in its heavy-ball and its Nesterov variant."""
    x = w.x0.copy()
    m = np.zeros_like(x)
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        deltas = []
        for i in S:
            m_bar = beta_l * m / K[i]
            y = x.copy()
            for k in range(K[i]):
                if nesterov:
                    y = y - eta * m_bar
                    y = y - eta * w.grad(i, y, t, k)
                else:
                    y = y - eta * (w.grad(i, y, t, k) + m_bar)
            deltas.append(x - y)
        Delta = add(deltas) / len(S)
        # The clients have already put beta_l m into Delta; the server adds what is left.
        m = Delta / eta + (beta_g - beta_l) * m
        x = x - alpha * eta * m
        xs.append(x)
    return np.array(xs)


def feddyn(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, alpha: float) -> np.ndarray:
    """FedDyn, Acar et al. 2021, Algorithm 1, the local problem solved by K steps of SGD.

    The h update is printed with a misplaced parenthesis; each client subtracts theta^{t-1}.
    """
    theta = w.x0.copy()
    h = np.zeros_like(theta)
    g_hat = [np.zeros_like(theta) for _ in range(w.N)]
    xs = [theta]
    for t, P in enumerate(cohorts, start=1):
        ys = []
        for i in P:
            y = theta.copy()
            for k in range(K[i]):
                y = y - eta * (w.grad(i, y, t, k) - g_hat[i] + alpha * (y - theta))
            g_hat[i] = g_hat[i] - alpha * (y - theta)
            ys.append(y)
        h = h - alpha / w.N * add(y - theta for y in ys)
        theta = add(ys) / len(P) - h / alpha
        xs.append(theta)
    return np.array(xs)


def adabest(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, mu: float, beta: float) -> np.ndarray:
    """AdaBest, Varno et al. 2022. A client's first visit starts from h_i = 0."""
    theta = w.x0.copy()
    theta_bar = theta.copy()
    h_i = [np.zeros_like(theta) for _ in range(w.N)]
    last: dict[int, int] = {}
    xs = [theta]
    for t, P in enumerate(cohorts, start=1):
        ys = []
        for i in P:
            y = theta.copy()
            for k in range(K[i]):
                y = y - eta * (w.grad(i, y, t, k) - h_i[i])
            if i in last:
                h_i[i] = h_i[i] / (t - last[i]) + mu * (theta - y)
            else:
                h_i[i] = mu * (theta - y)
            last[i] = t
            ys.append(y)
        theta_bar_new = add(ys) / len(P)
        h = beta * (theta_bar - theta_bar_new)
        theta_bar = theta_bar_new
        theta = theta_bar - h
        xs.append(theta)
    return np.array(xs)


def _U(
    opt: str,
    y: np.ndarray,
    g: np.ndarray,
    s: dict[str, np.ndarray],
    t: int,
    eta: float,
    betas: tuple[float, float],
    eps: float,
) -> np.ndarray:
    """Mime's parameter update: one step of the base optimiser, its state s left as it is."""
    beta, beta2 = betas
    if opt == "sgd":
        return y - eta * g
    if opt == "sgdm":
        return y - eta * ((1 - beta) * g + beta * s["m"])
    if opt == "adam":
        m_hat = (beta * s["m"] + (1 - beta) * g) / (1 - beta**t)
        v_hat = (beta2 * s["v"] + (1 - beta2) * g**2) / (1 - beta2**t)
        return y - eta * m_hat / (np.sqrt(v_hat) + eps)
    raise ValueError(opt)


def _V(c: np.ndarray, s: dict[str, np.ndarray], betas: tuple[float, float]) -> dict[str, np.ndarray]:
    """Mime's state update, once a round (each base optimiser reads the entries it has)."""
    beta, beta2 = betas
    return {"m": beta * s["m"] + (1 - beta) * c, "v": beta2 * s["v"] + (1 - beta2) * c**2}


def mime(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    opt: str = "sgd",
    beta: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    server_lr: float = 1.0,
) -> np.ndarray:
    """Karimireddy et al. 2021, Algorithm 1, Mime. Adam's step count is the round."""
    x = w.x0.copy()
    s = {"m": np.zeros_like(x), "v": np.zeros_like(x)}
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        c = add(w.full(i, x) for i in S) / len(S)  # first exchange
        ys = []
        for i in S:
            y = x.copy()
            for k in range(K[i]):
                g = w.grad(i, y, t, k, e=1) - w.grad(i, x, t, k, e=1) + c
                y = _U(opt, y, g, s, t, eta, (beta, beta2), eps)
            ys.append(y)
        x = x - server_lr * add(x - y for y in ys) / len(S)
        s = _V(c, s, (beta, beta2))
        xs.append(x)
    return np.array(xs)


def mimelite(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    opt: str = "sgd",
    beta: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-3,
    server_lr: float = 1.0,
) -> np.ndarray:
    """Karimireddy et al. 2021, Algorithm 1, MimeLite: no local correction, a single exchange."""
    x = w.x0.copy()
    s = {"m": np.zeros_like(x), "v": np.zeros_like(x)}
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        full_gradients, ys = [], []
        for i in S:
            full_gradients.append(w.full(i, x))
            y = x.copy()
            for k in range(K[i]):
                y = _U(opt, y, w.grad(i, y, t, k), s, t, eta, (beta, beta2), eps)
            ys.append(y)
        x = x - server_lr * add(x - y for y in ys) / len(S)
        s = _V(add(full_gradients) / len(S), s, (beta, beta2))
        xs.append(x)
    return np.array(xs)


def mimelite_mvr(
    w: World, cohorts: list[list[int]], K: list[int], eta: float, *, a: float, server_lr: float = 1.0
) -> np.ndarray:
    """MimeLite with STORM as base optimiser: its state (m, x of a round ago) is frozen during local steps.

    STORM at x with a gradient oracle g: d = a g(x) + (1 - a) m + (1 - a) (g(x) - g(x_old)).
    """
    x_old, x = w.x0.copy(), w.x0.copy()
    m = add(w.full(i, x) for i in range(w.N)) / w.N
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        ys = []
        for i in S:
            y = x.copy()
            for k in range(K[i]):
                fresh, old = w.grad(i, y, t, k), w.grad(i, x_old, t, k)
                y = y - eta * (a * fresh + (1 - a) * m + (1 - a) * (fresh - old))
            ys.append(y)
        now, before = (add(w.full(i, z) for i in S) / len(S) for z in (x, x_old))
        m = a * now + (1 - a) * m + (1 - a) * (now - before)
        x_old, x = x, x - server_lr * add(x - y for y in ys) / len(S)
        xs.append(x)
    return np.array(xs)


def _first_gradients(w: World, B: int) -> np.ndarray:
    """Mean over all clients of B minibatch gradients at x^0, before round 1; zero if B = 0."""
    if B == 0:
        return np.zeros_like(w.x0)
    return add(add(w.grad(i, w.x0, 0, b) for b in range(B)) / B for i in range(w.N)) / w.N


def _minibatch_mean(w: World, S: list[int], K: list[int], x: np.ndarray, t: int) -> np.ndarray:
    """Mean over the cohort of each client's mean over the K_i minibatches of exchange 0, at x."""
    return add(add(w.grad(i, x, t, k) for k in range(K[i])) / K[i] for i in S) / len(S)


def _local_sarah(w: World, i: int, x: np.ndarray, v: np.ndarray, t: int, steps: int, eta: float) -> np.ndarray:
    """K SARAH steps of one client in exchange 1, w_0 = w_1 = x and v_0 = v; gives w_{K+1}."""
    w_prev, w_k, v_k = x.copy(), x.copy(), v.copy()
    for k in range(steps):
        v_k = v_k + w.grad(i, w_k, t, k, e=1) - w.grad(i, w_prev, t, k, e=1)
        w_prev, w_k = w_k, w_k - eta * v_k
    return w_k


def mb_storm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    gamma: float | None = None,
    B: int = 1,
) -> np.ndarray:
    """Minibatch STORM, the baseline of Patel et al. 2022."""
    x = w.x0.copy()
    x_prev = x.copy()
    v = _first_gradients(w, B)
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        v = _minibatch_mean(w, S, K, x, t) + (1 - beta) * (v - _minibatch_mean(w, S, K, x_prev, t))
        step = eta * sum(K[i] for i in S) / len(S) if gamma is None else gamma
        x_prev, x = x, x - step * v
        xs.append(x)
    return np.array(xs)


def ce_lsgd(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    beta: float,
    pick: list[int],
    B: int = 1,
) -> np.ndarray:
    """CE-LSGD, Patel et al. 2022: a STORM estimate, then local SARAH steps on one client."""
    x = w.x0.copy()
    x_prev = x.copy()
    v = _first_gradients(w, B)
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        v = _minibatch_mean(w, S, K, x, t) + (1 - beta) * (v - _minibatch_mean(w, S, K, x_prev, t))
        i = pick[t - 1]
        x_prev, x = x, _local_sarah(w, i, x, v, t, K[i], eta)
        xs.append(x)
    return np.array(xs)


def bvr_l_sgd(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    period: int,
    pick: list[int],
) -> np.ndarray:
    """BVR-L-SGD, Murata and Suzuki 2021: restarted SARAH over rounds and within one client."""
    x = w.x0.copy()
    x_prev = x.copy()
    v = np.zeros_like(x)
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        if (t - 1) % period == 0:
            v = add(w.full(i, x) for i in range(w.N)) / w.N
        else:
            v = v + _minibatch_mean(w, S, K, x, t) - _minibatch_mean(w, S, K, x_prev, t)
        i = pick[t - 1]
        x_prev, x = x, _local_sarah(w, i, x, v, t, K[i], eta)
        xs.append(x)
    return np.array(xs)


def stem(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, a: float, B: int = 1) -> np.ndarray:
    """STEM, Khanduri et al. 2021, Algorithm 1, constant step and momentum parameter."""
    x_bar = w.x0.copy()
    d_bar = _first_gradients(w, B)
    xs = [x_bar]
    for t, S in enumerate(cohorts, start=1):
        ys, ds = [], []
        for i in S:
            y, d = x_bar.copy(), d_bar.copy()
            for k in range(K[i]):
                y_new = y - eta * d
                d = w.grad(i, y_new, t, k) + (1 - a) * (d - w.grad(i, y, t, k))
                y = y_new
            ys.append(y)
            ds.append(d)
        x_bar = add(ys) / len(S)
        d_bar = add(ds) / len(S)
        xs.append(x_bar)
    return np.array(xs)
