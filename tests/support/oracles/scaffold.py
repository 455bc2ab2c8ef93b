"""SCAFFOLD, compressed, and the methods it meets in special cases: VRL-SGD, LED, Scaffnew, SAGA and IAG."""

from collections.abc import Callable

import numpy as np

from .world import World, add


def scaffold(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    option: int = 2,
    eta_g: float = 1.0,
    B: int = 0,
) -> np.ndarray:
    """Karimireddy et al. 2020, Algorithm 1.

    The first arXiv version prints option II with c and c_i exchanged; the identity beside it,
    c_i+ = (1/K) sum_k g_i(y_{i,k-1}), settles the sign used here.
    """
    x = w.x0.copy()
    c_i = [np.zeros_like(x) for _ in range(w.N)]
    if B > 0:
        for i in range(w.N):
            c_i[i] = add(w.grad(i, x, 0, b) for b in range(B)) / B
    c = add(c_i) / w.N  # the algorithm needs c = mean c_i from the start
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        delta_y, delta_c = [], []
        for i in S:
            y = x.copy()
            for k in range(K[i]):
                y = y - eta * (w.grad(i, y, t, k) - c_i[i] + c)
            if option == 1:
                c_plus = w.grad(i, x, t, 0, l=1)  # an independent minibatch, hence its own loop
            else:
                c_plus = c_i[i] - c + (x - y) / (K[i] * eta)
            delta_y.append(y - x)
            delta_c.append(c_plus - c_i[i])
            c_i[i] = c_plus
        x = x + eta_g * add(delta_y) / len(S)
        c = c + len(S) / w.N * (add(delta_c) / len(S))
        xs.append(x)
    return np.array(xs)


def scallion(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_g: float = 1.0,
    alpha: float = 1.0,
    compress: Callable[[np.ndarray], np.ndarray] = lambda v: v,
) -> np.ndarray:
    """Huang et al. 2024, Algorithm 1; `compress` is C_i."""
    x = w.x0.copy()
    c, c_i = np.zeros_like(x), [np.zeros_like(x) for _ in range(w.N)]
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        deltas = []
        for i in S:
            y = x.copy()
            for k in range(K[i]):
                y = y - eta * (w.grad(i, y, t, k) - c_i[i] + c)
            delta = compress(alpha * ((x - y) / (eta * K[i]) - c))
            c_i[i] = c_i[i] + delta
            deltas.append(delta)
        steps = np.mean([K[i] for i in S])
        x = x - eta_g * eta * steps / len(S) * add(delta + c for delta in deltas)
        c = c + add(deltas) / w.N
        xs.append(x)
    return np.array(xs)


def scafcom(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_g: float = 1.0,
    beta: float = 0.2,
    compress: Callable[[np.ndarray], np.ndarray] = lambda v: v,
) -> np.ndarray:
    """Huang et al. 2024, Algorithm 2, with the mean gradient summed up as such."""
    x = w.x0.copy()
    c = np.zeros_like(x)
    c_i, v_i = ([np.zeros_like(x) for _ in range(w.N)] for _ in range(2))
    xs = [x]
    for t, S in enumerate(cohorts, start=1):
        total = np.zeros_like(x)
        for i in S:
            y, g = x.copy(), []
            for k in range(K[i]):
                g.append(w.grad(i, y, t, k))
                y = y - eta * (g[-1] - c_i[i] + c)
            v_i[i] = (1 - beta) * v_i[i] + beta * add(g) / K[i]
            delta = compress(v_i[i] - c_i[i])
            c_i[i] = c_i[i] + delta
            total = total + delta
        steps = np.mean([K[i] for i in S])
        x = x - eta_g * eta * steps * (total / len(S) + c)
        c = c + total / w.N
        xs.append(x)
    return np.array(xs)


def vrl_sgd(w: World, cohorts: list[list[int]], K: list[int], eta: float) -> np.ndarray:
    """Liang et al. 2019, Algorithm 1: full participation, one period K for all."""
    assert all(len(S) == w.N for S in cohorts) and len(set(K)) == 1
    x = w.x0.copy()
    Delta = [np.zeros_like(x) for _ in range(w.N)]
    xs = [x]
    for t in range(1, len(cohorts) + 1):
        ys = []
        for i in range(w.N):
            y = x.copy()
            for k in range(K[i]):
                y = y - eta * (w.grad(i, y, t, k) - Delta[i])
            ys.append(y)
        x = add(ys) / w.N
        for i in range(w.N):
            Delta[i] = Delta[i] + (x - ys[i]) / (K[i] * eta)
        xs.append(x)
    return np.array(xs)


def led(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, beta: float | None = None) -> np.ndarray:
    """LED, Alghunaim 2023, with a server (the mixing matrix is the mean). Full participation."""
    assert all(len(S) == w.N for S in cohorts)
    if beta is None:
        assert len(set(K)) == 1
        beta = 1 / (eta * K[0])
    x = w.x0.copy()
    dual = [np.zeros_like(x) for _ in range(w.N)]  # y_i in the paper
    xs = [x]
    for t in range(1, len(cohorts) + 1):
        phis = []
        for i in range(w.N):
            phi = x.copy()
            for k in range(K[i]):
                phi = phi - eta * (w.grad(i, phi, t, k) + dual[i])
            phis.append(phi)
        x = add(phis) / w.N
        for i in range(w.N):
            dual[i] = dual[i] + beta * (phis[i] - x)
        xs.append(x)
    return np.array(xs)


def scaffnew(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, p: float | None = None) -> np.ndarray:
    """Scaffnew, Mishchenko et al. 2022, Algorithm 2, its coin replaced by a fixed period K.

    One iteration of the paper is one step of every client; the models differ between the
    communications and are equal after each.
    """
    assert all(len(S) == w.N for S in cohorts)
    if p is None:
        assert len(set(K)) == 1
        p = 1 / K[0]
    xi = [w.x0.copy() for _ in range(w.N)]
    h = [np.zeros_like(w.x0) for _ in range(w.N)]
    xs = [w.x0.copy()]
    for t in range(1, len(cohorts) + 1):
        for k in range(max(K)):
            for i in range(w.N):
                if k < K[i]:  # theta = 0: xhat_i is kept, h_i does not move
                    xi[i] = xi[i] - eta * (w.grad(i, xi[i], t, k) - h[i])
        xhat = xi
        mean = add(xhat) / w.N  # theta = 1: prox of the consensus constraint
        h = [h[i] + p / eta * (mean - xhat[i]) for i in range(w.N)]
        xi = [mean.copy() for _ in range(w.N)]
        xs.append(mean)
    return np.array(xs)


def saga(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, eta_g: float = 1.0) -> np.ndarray:
    """SAGA, Defazio et al. 2014, exact component gradients, zero table, step eta_g * eta."""
    assert all(len(S) == 1 for S in cohorts)
    x = w.x0.copy()
    table = np.zeros((w.N, len(x)))
    xs = [x]
    for (j,) in cohorts:
        new = w.full(j, x)
        x = x - eta_g * eta * (new - table[j] + table.mean(0))
        table[j] = new
        xs.append(x)
    return np.array(xs)


def iag(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, tau: int) -> np.ndarray:
    """Incremental aggregated gradient, Blatt et al. 2007, over tau blocks visited in turn.

    A block is a cohort; the table of block gradients starts at zero.
    """
    x = w.x0.copy()
    table = [np.zeros_like(x) for _ in range(tau)]
    xs = [x]
    for t, S in enumerate(cohorts):
        table[t % tau] = add(w.full(i, x) for i in S) / len(S)
        x = x - eta * (1 / tau) * add(table)
        xs.append(x)
    return np.array(xs)
