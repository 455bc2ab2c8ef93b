"""Private FedAvg and SCAFFOLD-M on quadratics, literally, in numpy."""

import numpy as np


def normal(seed: int, t: int, client: int, D: int) -> np.ndarray:
    """The noise of a round: Philox with the key (seed, 15)."""
    counter = np.array([0, 0, client, t], dtype=np.uint64)
    bits = np.random.Philox(key=np.array([seed, 15], dtype=np.uint64), counter=counter)
    return np.random.Generator(bits).standard_normal(D)


def clipped(v: np.ndarray, C: float) -> np.ndarray:
    return v * min(1.0, C / np.linalg.norm(v))


def released(ups, cohort, seed, t, D, C, z, n, at_clients):
    """(sum of clipped messages + N(0, (z C)^2)) / n, and what each client has sent."""
    sent = {}
    for i in cohort:
        sent[i] = clipped(ups[i], C)
        if at_clients:
            sent[i] = sent[i] + z * C / np.sqrt(n) * normal(seed, t, i, D)
    total = sum(sent.values(), np.zeros(D))
    if not at_clients:
        total = total + z * C * normal(seed, t, 0, D)
    return total / n, sent


def fedavg(H, e, cohorts, K, eta, seed, C, z, n, at_clients=False):
    x = np.zeros(H.shape[1])
    path = []
    for t, cohort in enumerate(cohorts, start=1):
        ups = {}
        for i in cohort:
            y = x.copy()
            for _ in range(K):
                y = y - eta * (H[i] @ y - e[i])
            ups[i] = x - y
        mean, _ = released(ups, cohort, seed, t, len(x), C, z, n, at_clients)
        x = x - mean
        path.append(x)
    return np.array(path)


def scaffold_m(H, e, cohorts, K, eta, seed, C, z, n, at_clients=False, beta=0.1):
    N, D = e.shape
    x, g, c, c_i = np.zeros(D), np.zeros(D), np.zeros(D), np.zeros((N, D))
    path = []
    for t, cohort in enumerate(cohorts, start=1):
        ups = {}
        for i in cohort:
            y, grads = x.copy(), []
            for _ in range(K):
                grads.append(H[i] @ y - e[i])
                y = y - eta * (beta * (grads[-1] - c_i[i] + c) + (1 - beta) * g)
            ups[i] = np.mean(grads, axis=0) - c_i[i]
        mean, sent = released(ups, cohort, seed, t, D, C, z, n, at_clients)
        for i in cohort:
            c_i[i] = c_i[i] + sent[i]
        g = beta * (mean + c) + (1 - beta) * g
        c = c + n / N * mean
        x = x - eta * K * g
        path.append(x)
    return np.array(path)
