"""What the five papers prove about quadratics, tried on quadratics: numbers by label, one per seed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import undrift as ud

Numbers = dict[str, list[float]]
STEPS = [1, 2, 3, 5, 8, 13]


def quadratic(seed: int, N: int = 6, D: int = 4, spread: float = 3.0, variance: float = 0.0) -> ud.Quadratic:
    """N quadratics with eigenvalues in [0.3, 1] and optima that are apart."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=random)
    Q = torch.linalg.qr(draw(N, D, D))[0]
    H = (Q * (0.3 + 0.7 * torch.rand(N, 1, D, dtype=torch.float64, generator=random))) @ Q.mT
    H = (H + H.mT) / 2
    return ud.Quadratic(H, (H @ (spread * draw(N, D, 1))).squeeze(-1), variance=variance)


def optimum(problem: ud.Quadratic) -> Tensor:
    return torch.linalg.solve(problem.H.mean(0), problem.e.mean(0))


def gap(problem: ud.Quadratic, x: Tensor) -> float:
    """f(x) - f*."""
    d = x - optimum(problem)
    return float(d @ problem.H.mean(0) @ d) / 2


def end(method: ud.Algorithm, problem: ud.Quadratic, rounds: int, local: ud.Local, **how: Any) -> Tensor:
    return ud.run(method, problem, rounds=rounds, local=local, evaluate_every=rounds, **how).x


def by_seed(measure: Callable[[int], float], quick: bool, seeds: int = 5) -> list[float]:
    return [measure(seed) for seed in range(1 if quick else seeds)]


def limits(quick: bool) -> Numbers:
    """FedNova's appendix A: where averaging ends with unequal numbers of steps, against closed forms."""
    rounds = 60 if quick else 1000

    def distance(method: ud.Algorithm, limit: Callable[[ud.Quadratic], Any], seed: int) -> float:
        problem = quadratic(seed)
        x = end(method, problem, rounds, ud.Local(steps=STEPS, lr=0.1))
        return float((x - torch.as_tensor(limit(problem))).norm())

    fedavg = lambda p, mu=0.0: ud.theory.fedavg_limit(p, steps=STEPS, lr=0.1, mu=mu)
    fednova = lambda p: ud.theory.fednova_limit(p, steps=STEPS, lr=0.1)
    numbers = {
        "FedAvg": by_seed(lambda s: distance(ud.FedAvg(), fedavg, s), quick),
        "FedProx": by_seed(lambda s: distance(ud.FedProx(mu=0.7), lambda p: fedavg(p, 0.7), s), quick),
        "FedNova": by_seed(lambda s: distance(ud.FedNova(), fednova, s), quick),
    }
    for lr in (0.1, 0.01, 0.001):
        for name, limit in (("FedAvg", ud.theory.fedavg_limit), ("FedNova", ud.theory.fednova_limit)):
            bias = lambda s, limit=limit, lr=lr: float(
                (torch.as_tensor(limit(quadratic(s), steps=STEPS, lr=lr)) - optimum(quadratic(s))).norm()
            )
            numbers[f"bias of {name}, lr {lr:g}"] = by_seed(bias, quick)
    return numbers


def lemma_4(quick: bool) -> Numbers:
    """Two clients, f = (x -+ 2)^2 / 2, 3 and 7 steps: the squared gradient at FedAvg's limit for lr -> 0, and chi2 kappa2."""
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    problem = ud.Quadratic(one, torch.tensor([[2.0], [-2.0]], dtype=torch.float64))
    x = torch.as_tensor(ud.theory.fedavg_limit(problem, steps=[3, 7], lr=1e-7))
    c = ud.theory.nova_constants([3, 7])
    w = np.asarray(c.w)
    kappa2 = 4 * w[0] * w[1] * 4  # 4 w1 w2 a^2, the paper prints 2 (errata)
    return {"squared gradient": [float((x**2).sum())], "chi2 kappa2": [float(c.chi2 * kappa2)]}


def momentum(quick: bool) -> Numbers:
    """Cheng et al.: drift of FedAvg-M is that of FedAvg with lr beta; SCAFFOLD-M is exact; the floor of E_r."""
    rounds = 100 if quick else 1500

    def floors(seed: int) -> tuple[float, float]:
        problem = quadratic(seed)
        a = end(ud.FedAvg_M(beta=0.2), problem, rounds, ud.Local(steps=5, lr=0.1))
        b = end(ud.FedAvg(), problem, rounds, ud.Local(steps=5, lr=0.02))
        return gap(problem, a), gap(problem, b)

    def exact(seed: int) -> float:
        problem = quadratic(seed)
        x = end(
            ud.ScaffoldM(beta=0.3), problem, rounds, ud.Local(steps=5, lr=0.1), participation=ud.Uniform(2), seed=seed
        )
        return float((x - optimum(problem)).norm())

    def falls(seed: int) -> list[float]:
        problem = quadratic(seed)
        run = lambda beta: end(ud.FedAvg_M(beta=beta), problem, rounds, ud.Local(steps=5, lr=0.1))
        return [gap(problem, run(beta)) for beta in (0.1, 0.3, 1.0)]

    pairs = [floors(seed) for seed in range(1 if quick else 5)]
    betas = [falls(seed) for seed in range(1 if quick else 5)]
    return {
        "FedAvg-M over FedAvg at lr beta": [a / b for a, b in pairs],
        "SCAFFOLD-M, 2 of 6": by_seed(exact, quick),
        **{f"floor, beta {beta:g}": [each[i] for each in betas] for i, beta in enumerate((0.1, 0.3, 1.0))},
    }


def c9(quick: bool) -> Numbers:
    """GHBM's C.9: 10 clients, 2 per round in turn, tau = 5: f - f* after 400 rounds of Algorithm 3 and FedCM."""
    rounds = 50 if quick else 400
    numbers: Numbers = {}
    for J in (1, 2, 5):
        local = ud.Local(steps=J, lr=0.1)
        rows: dict[str, Callable[[int], tuple[ud.Algorithm, Any]]] = {
            "FedCM, 2 of 10": lambda s: (ud.FedCM(alpha=0.1), ud.Cyclic(2)),
            "GHBM, 2 of 10": lambda s, J=J: (ud.GHBMTheory(tau=5, beta=0.1, eta=0.1 * J), ud.Cyclic(2)),
            "FedCM, 10 of 10": lambda s: (ud.FedCM(alpha=0.1), ud.Everyone()),
        }
        for name, make in rows.items():

            def measure(seed: int, make: Any = make, local: ud.Local = local) -> float:
                problem = quadratic(seed, N=10, D=10)
                method, how = make(seed)
                return max(gap(problem, end(method, problem, rounds, local, participation=how, seed=seed)), 1e-16)

            numbers[f"{name}, J = {J}"] = by_seed(measure, quick, seeds=3)

    def cycle(seed: int) -> float:
        problem = quadratic(seed, N=10, D=10)
        local, how = ud.Local(steps=2, lr=0.05), ud.Cyclic(2)
        runs = [end(m, problem, 2 * rounds, local, participation=how, seed=seed) for m in (ud.GHBM(tau=5), ud.FedAvg())]
        return float((runs[0] - runs[1]).norm())

    return numbers | {"practical GHBM from FedAvg's cycle": by_seed(cycle, quick, seeds=3)}


def lookback(quick: bool) -> Numbers:
    """Lemma 4.4: the error of the mean gradient of the last tau cyclic cohorts at one x, relative to the gradient."""
    S, N = 2, 10

    def error(seed: int, tau: int) -> float:
        problem = quadratic(seed, N=N, D=10)
        x = torch.ones(10, dtype=torch.float64)
        gradients = (problem.H @ x) - problem.e
        order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
        heard = order[: S * tau]
        return float((gradients[heard].mean(0) - gradients.mean(0)).norm() / gradients.mean(0).norm())

    return {f"tau {tau}": by_seed(lambda s, t=tau: error(s, t), quick) for tau in (1, 3, 5)}


def server(quick: bool) -> Numbers:
    """Sun et al.: stages of eq. (3), the largest server step (Remark 4.5), and the methods that FedGM contains."""
    problem, local = quadratic(1), ud.Local(steps=3, lr=0.1)
    rounds = 200 if quick else 2000

    def growth(factor: float, seed: int) -> float:
        problem = quadratic(seed)
        eta = factor * ud.theory.largest_server_step(problem, steps=3, lr=0.1, beta=0.9, nu=0.9)
        result = ud.run(ud.FedGM(eta=eta, beta=0.9, nu=0.9), problem, rounds=rounds, local=local, evaluate_every=rounds)
        return float((result.x - optimum(problem)).norm() / (problem.x0 - optimum(problem)).norm())

    def same(a: ud.Algorithm, b: ud.Algorithm) -> float:
        return float((end(a, problem, 50, local) - end(b, problem, 50, local)).abs().max())

    stages = ud.MultistageFedGM(eta=(2.0, 1.0, 0.5), T=1001)
    return {
        "at 0.99 of the limit": by_seed(lambda s: growth(0.99, s), quick),
        "at 1.01 of the limit": by_seed(lambda s: growth(1.01, s), quick),
        "gain for beta 0.9, nu 1": [ud.theory.server_step_gain(0.9, 1.0)],
        "end of stage 1": [float(_stage_ends(stages)[0])],
        "end of stage 2": [float(_stage_ends(stages)[1])],
        "FedAvgM is FedGM with nu = 1": [same(ud.FedAvgM(beta=0.9), ud.FedGM(beta=0.9, nu=1.0))],
        "FedAvg is FedGM with nu = 0": [same(ud.FedAvg(), ud.FedGM(beta=0.9, nu=0.0))],
    }


def _stage_ends(method: Any) -> Sequence[int]:
    return np.cumsum([stage.rounds for stage in method.stages]).tolist()
