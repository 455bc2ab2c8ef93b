"""AdamW on clients: DiLoCo and FedAdamW."""

import numpy as np

from .world import World, add


def diloco(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    outer: float = 0.7,
    mu: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.1,
) -> np.ndarray:
    """Douillard et al. 2023, Algorithm 1: the inner optimiser's state stays with its worker, the outer one is PyTorch's
    SGD(lr=outer, momentum=mu, nesterov=True) on the mean difference."""
    theta, buf = w.x0.copy(), np.zeros_like(w.x0)
    m, v, k_i = ([np.zeros_like(theta) for _ in range(w.N)] for _ in range(3))
    thetas = [theta]
    for t, S in enumerate(cohorts, start=1):
        differences = []
        for i in S:
            y = theta.copy()
            for k in range(K[i]):
                g = w.grad(i, y, t, k)
                k_i[i] = k_i[i] + 1
                m[i] = beta1 * m[i] + (1 - beta1) * g
                v[i] = beta2 * v[i] + (1 - beta2) * g**2
                y = y * (
                    1 - eta * decay
                )  # decoupled, as torch.optim.AdamW has it: the gradient is that of the y before
                y = y - eta * (m[i] / (1 - beta1 ** k_i[i])) / (np.sqrt(v[i] / (1 - beta2 ** k_i[i])) + eps)
            differences.append(theta - y)
        Delta = add(differences) / len(S)
        buf = mu * buf + Delta
        theta = theta - outer * (Delta + mu * buf)
        thetas.append(theta)
    return np.array(thetas)


def fedadamw(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    alpha: float = 0.5,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.01,
    blocks: int = 16,
) -> np.ndarray:
    """Liu et al. 2025, Algorithm 2; the sign of the weight decay is that of AdamW."""
    x, Delta_G = w.x0.copy(), np.zeros_like(w.x0)
    where = np.array_split(np.arange(len(x)), min(blocks, len(x)))
    v_bar, before, xs = np.zeros(len(where)), 0.0, [x]
    for r, S in enumerate(cohorts, start=1):
        ys, v_bars = [], []
        for i in S:
            y, m, v = x.copy(), np.zeros_like(x), np.zeros_like(x)
            for b, places in enumerate(where):
                v[places] = v_bar[b]
            for k in range(1, K[i] + 1):
                g = w.grad(i, y, r, k - 1)
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g * g
                m_hat, v_hat = m / (1 - beta1**k), v / (1 - beta2 ** (before + k))
                y = y - eta * (m_hat / (np.sqrt(v_hat) + eps) + alpha * Delta_G + decay * y)
            ys.append(y)
            v_bars.append([v[places].mean() for places in where])
        steps = float(np.mean([K[i] for i in S]))
        Delta_G = -add(y - x for y in ys) / (len(S) * steps * eta)
        x = x + add(y - x for y in ys) / len(S)
        v_bar, before = np.mean(v_bars, axis=0), before + steps
        xs.append(x)
    return np.array(xs)
