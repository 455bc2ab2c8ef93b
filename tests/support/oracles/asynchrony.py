"""Asynchronous methods, told which updates came when; and a timeline that finds that out by brute force.

`ages[t][j]` is how many server updates old the model was that client `cohorts[t][j]` worked on (None: all fresh).
"""

from collections.abc import Callable

import numpy as np

from .world import World, add

Ages = list[list[int]] | None


def discount(kind: str, age: int, a: float, b: float) -> float:
    """Xie et al. 2020, section 5: constant, polynomial, hinge."""
    if kind == "constant":
        return 1.0
    if kind == "polynomial":
        return (age + 1) ** (-a)
    return 1.0 if age <= b else 1 / (a * (age - b) + 1)


def stale_model(xs: list[np.ndarray], ages: Ages, t: int, j: int) -> tuple[np.ndarray, int]:
    """The model that the j-th of update t worked on, and its age; xs[-1] is the newest."""
    age = 0 if ages is None else ages[t][j]
    return xs[-1 - age], age


def solve(w: World, i: int, x: np.ndarray, round_: int, K: int, eta: float, rho: float) -> np.ndarray:
    """K steps on f_i + rho/2 ||y - x||^2, with the minibatches of the round in which x was sent."""
    y = x.copy()
    for k in range(K):
        y = y - eta * (w.grad(i, y, round_, k) + rho * (y - x))
    return y


def fedbuff(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    eta_g: float,
    staleness: str = "polynomial",
    a: float = 0.5,
    b: float = 4.0,
    ages: Ages = None,
) -> np.ndarray:
    """FedBuff, Nguyen et al. 2022, Algorithm 1, with s(tau) before each update; p_i in place of 1/m."""
    xs = [w.x0.copy()]
    for t, cohort in enumerate(cohorts):
        total = sum(w.p[i] for i in cohort)
        Delta = np.zeros_like(w.x0)
        for j, i in enumerate(cohort):
            x, age = stale_model(xs, ages, t, j)
            y = solve(w, i, x, t + 1 - age, K[i], eta, 0.0)
            Delta = Delta + w.p[i] / total * discount(staleness, age, a, b) * (x - y)
        xs.append(xs[-1] - eta_g * Delta)
    return np.array(xs)


def fedasync(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    alpha: float,
    rho: float,
    staleness: str = "polynomial",
    a: float = 0.5,
    b: float = 4.0,
    ages: Ages = None,
) -> np.ndarray:
    """FedAsync, Xie et al. 2020, Algorithm 1: x <- x + alpha_t (y - x), the mean of these moves over a buffer."""
    xs = [w.x0.copy()]
    for t, cohort in enumerate(cohorts):
        total = sum(w.p[i] for i in cohort)
        move = np.zeros_like(w.x0)
        for j, i in enumerate(cohort):
            x, age = stale_model(xs, ages, t, j)
            y = solve(w, i, x, t + 1 - age, K[i], eta, rho)
            move = move + w.p[i] / total * alpha * discount(staleness, age, a, b) * (y - xs[-1])
        xs.append(xs[-1] + move)
    return np.array(xs)


def autonomous_fedgm(
    w: World,
    cohorts: list[list[int]],
    K: list[int],
    eta: float,
    *,
    stages: list[tuple[float, float, float, int]],
    ages: Ages = None,
) -> np.ndarray:
    """Sun et al. 2024, Algorithm 4: stages (eta_s, beta_s, nu_s, T_s), counted in server updates."""
    xs, d = [w.x0.copy()], np.zeros_like(w.x0)
    of_update = [stage for stage in stages for _ in range(stage[3])]
    for t, cohort in enumerate(cohorts):
        eta_s, beta, nu, _ = of_update[t]
        received = []
        for j, i in enumerate(cohort):
            x, age = stale_model(xs, ages, t, j)
            received.append((x - solve(w, i, x, t + 1 - age, K[i], eta, 0.0)) / K[i])  # line 7
        Delta = add(received) / len(cohort)  # line 10
        d = (1 - beta) * Delta + beta * d
        h = (1 - nu) * Delta + nu * d
        xs.append(xs[-1] - eta_s * h)
    return np.array(xs)


def scaffold(w: World, cohorts: list[list[int]], K: list[int], eta: float, *, ages: Ages = None) -> np.ndarray:
    """SCAFFOLD, Karimireddy et al. 2020, option II as the mean of raw gradients, on stale x and the c of the same time."""
    N, d = w.N, len(w.x0)
    xs, cs = [w.x0.copy()], [np.zeros(d)]
    own = [np.zeros(d) for _ in range(N)]
    for t, cohort in enumerate(cohorts):
        deltas, changes = [], []
        for j, i in enumerate(cohort):
            x, age = stale_model(xs, ages, t, j)
            c, y, total = cs[-1 - age], x.copy(), np.zeros(d)
            for k in range(K[i]):
                g = w.grad(i, y, t + 1 - age, k)
                y, total = y - eta * (g - own[i] + c), total + g
            deltas.append(x - y)
            changes.append(total / K[i] - own[i])
            own[i] = total / K[i]
        xs.append(xs[-1] - add(deltas) / len(cohort))
        cs.append(cs[-1] + add(changes) / N)
    return np.array(xs)


def delayed_gradient(w: World, T: int, d: int, eta: float, order: list[int]) -> np.ndarray:
    """x_{t+1} = x_t - eta g_{i_t}(x_{t-d}), with x_s = x_0 for s < 0; the minibatch is that of the model's round."""
    xs = [w.x0.copy()]
    for t in range(T):
        s = max(t - d, 0)
        xs.append(xs[-1] - eta * w.grad(order[t], xs[s], s + 1, 0))
    return np.array(xs)


def timeline(
    N: int, size: int, concurrency: int, T: int, duration: Callable[[int], float]
) -> tuple[list[list[int]], list[list[int]], list[float]]:
    """Who is in each of T buffers (ascending), how stale, and when the server stepped.

    Clients are asked in turn 0, 1, ..., N - 1, 0, ...; one that is out or in the buffer is passed over.  At one moment all
    arrivals come before steps, and steps before dispatches.
    """
    now, version, turn, number = 0.0, 0, 0, 0
    out: list[tuple[float, int, int, int]] = []  # returns, number, client, version
    waiting: list[tuple[int, int]] = []  # client, version
    cohorts: list[list[int]] = []
    ages: list[list[int]] = []
    times: list[float] = []
    while True:
        for each in sorted(each for each in out if each[0] <= now):
            out.remove(each)
            waiting.append(each[2:])
        while len(waiting) >= size:
            used, waiting = sorted(waiting[:size]), waiting[size:]
            cohorts.append([i for i, _ in used])
            ages.append([version - v for _, v in used])
            times.append(now)
            version += 1
            if len(times) == T:
                return cohorts, ages, times
        busy = {each[2] for each in out} | {i for i, _ in waiting}
        while len(out) < concurrency and len(busy) < N:
            i, turn = turn % N, turn + 1
            if i not in busy:
                number += 1
                out.append((now + duration(i), number, i, version))
                busy.add(i)
        now = min(each[0] for each in out)
