"""SCAFFOLD's theorems on quadratics: numbers by label, one per seed."""

from collections.abc import Callable

import torch
from torch import Tensor

import undrift as ud

Numbers = dict[str, list[float]]
N, D = 6, 4


def quadratic(seed: int, spread: float = 3.0, N: int = N, D: int = D) -> ud.Quadratic:
    """N heterogeneous quadratics with eigenvalues in [0.3, 1]."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=random)
    Q = torch.linalg.qr(draw(N, D, D))[0]
    eigenvalues = 0.3 + 0.7 * torch.rand(N, 1, D, dtype=torch.float64, generator=random)
    H = (Q * eigenvalues) @ Q.mT
    H = (H + H.mT) / 2
    return ud.Quadratic(H, (H @ (spread * draw(N, D, 1))).squeeze(-1))


def optimum(problem: ud.Quadratic) -> Tensor:
    return torch.linalg.solve(problem.H.mean(0), problem.e.mean(0))


def by_seed(measure: Callable[[int], float], quick: bool) -> list[float]:
    return [measure(seed) for seed in range(1 if quick else 5)]


def distances(quick: bool) -> Numbers:
    """Theorems 1 and 2: how far from x* SCAFFOLD and FedAvg end, S = N and S = 2 of 6."""

    def end(method: ud.Algorithm, seed: int, S: int, rounds: int) -> float:
        problem = quadratic(seed)
        local = ud.Local(steps=5, lr=0.1)
        how = ud.Everyone() if S == N else ud.Uniform(S)
        x = ud.run(method, problem, rounds=rounds, participation=how, local=local, seed=seed, evaluate_every=rounds).x
        return float((x - optimum(problem)).norm())

    full, part = (40, 60) if quick else (400, 4000)
    return {
        "SCAFFOLD, 6 of 6": by_seed(lambda s: end(ud.Scaffold(), s, 6, full), quick),
        "SCAFFOLD, 2 of 6": by_seed(lambda s: end(ud.Scaffold(), s, 2, part), quick),
        "FedAvg, 6 of 6": by_seed(lambda s: end(ud.FedAvg(), s, 6, full), quick),
        "FedAvg, 2 of 6": by_seed(lambda s: end(ud.FedAvg(), s, 2, part), quick),
    }


def heterogeneity(quick: bool) -> Numbers:
    """Rounds to |x - x*| < 1e-6 from |x0 - x*| = 1, for gradients at x* that are little and much apart, and FedAvg's bias."""

    def around(seed: int, spread: float) -> tuple[ud.Quadratic, Tensor]:
        H = quadratic(seed).H
        random = torch.Generator().manual_seed(seed)
        u, best = (torch.randn(*shape, dtype=torch.float64, generator=random) for shape in ((N, D), (D,)))
        best = best / best.norm()
        return ud.Quadratic(H, (H @ best) + spread * (u - u.mean(0))), best

    def rounds(seed: int, spread: float) -> float:
        problem, best = around(seed, spread)
        for r in ud.rounds(ud.Scaffold(), problem, rounds=2000, local=ud.Local(steps=5, lr=0.1), evaluate_every=2000):
            if float((r.x - best).norm()) < 1e-6:
                return float(r.round)
        return float("inf")

    def bias(seed: int, spread: float) -> float:
        problem, best = around(seed, spread)
        x = ud.run(ud.FedAvg(), problem, rounds=300, local=ud.Local(steps=5, lr=0.1), evaluate_every=300).x
        return float((x - best).norm())

    spreads = (1.0, 10.0, 100.0)
    return {f"SCAFFOLD, spread {d:g}": by_seed(lambda s, d=d: rounds(s, d), quick) for d in spreads} | {
        f"FedAvg, spread {d:g}": by_seed(lambda s, d=d: bias(s, d), quick) for d in spreads
    }


def saga(quick: bool) -> Numbers:
    """Section 5: with one client, one step and exact gradients SCAFFOLD is SAGA; the largest distance of their models."""

    def distance(seed: int) -> float:
        problem = quadratic(seed)
        x, table = problem.x0.clone(), torch.zeros(N, D, dtype=torch.float64)
        worst = 0.0
        rounds = ud.rounds(
            ud.Scaffold(), problem, rounds=60, participation=ud.Uniform(1), local=ud.Local(steps=1, lr=0.1), seed=seed
        )
        for r in rounds:
            (i,) = r.clients
            g = problem.H[i] @ x - problem.e[i]
            x = x - 0.1 * (g - table[i] + table.mean(0))
            table[i] = g
            worst = max(worst, float((r.x - x).abs().max()))
        return worst

    return {"SAGA": by_seed(distance, quick)}


def lyapunov(quick: bool) -> Numbers:
    """Theorem 2: the worst factor of the Lyapunov function over all rounds, over the factor 1 - mu eta~/2 that is proved."""

    def factor(seed: int) -> float:
        problem = quadratic(seed)
        eigenvalues = torch.linalg.eigvalsh(problem.H)
        L, mu = float(eigenvalues.max()), float(torch.linalg.eigvalsh(problem.H.mean(0)).min())
        best = optimum(problem)
        setting = ud.theory.scaffold(
            L=L, mu=mu, N=N, S=2, K=5, R=2000, distance=float((problem.x0 - best).norm()), control_error=1.0
        )
        method = ud.Scaffold(eta_g=setting.eta_g, option=2)
        total: dict[int, float] = {}
        # the theorem is about the expectation over cohorts: the mean over several seeds stands for it
        for draw in range(2 if quick else 20):
            rounds = ud.rounds(
                method,
                problem,
                rounds=40,
                participation=ud.Uniform(2),
                local=ud.Local(steps=5, lr=setting.lr),
                seed=draw,
            )
            for r in rounds:
                value = float(ud.theory.scaffold_lyapunov(r.state, problem, setting, best))
                total[r.round] = total.get(r.round, 0.0) + value
        proved = 1 - mu * setting.eta_g * setting.lr * 5 / 2
        return (total[40] / total[1]) ** (1 / 39) / proved

    return {"factor": by_seed(factor, quick)}


def consistency(quick: bool) -> Numbers:
    """(P1): c = mean c_i after every round of partial participation; the largest distance."""

    def distance(seed: int) -> float:
        problem, worst = quadratic(seed), 0.0
        for r in ud.rounds(
            ud.Scaffold(), problem, rounds=50, participation=ud.Uniform(2), local=ud.Local(steps=3, lr=0.1), seed=seed
        ):
            kept = r.state.clients.gather(range(N))
            worst = max(worst, float((kept.c.mean(0) - r.state.server.c).abs().max()))
        return worst

    return {"c": by_seed(distance, quick)}
