"""What theorems prescribe, run: nothing diverges, and bounds hold.  8 families of 25 quadratics are 200 a theorem."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.random_quadratics import Family, random_quadratics

FAMILIES = range(8)
SHOWN = 60  # rounds that are run


def draw(seed: int) -> dict[str, Any]:
    """The constants of a family."""
    rng = np.random.default_rng(seed)
    S = int(rng.integers(1, 4))
    return {
        "L": float(10 ** rng.uniform(-1, 1)),
        "N": S * int(rng.integers(2, 5)),
        "S": S,
        "K": int(rng.integers(1, 7)),
        "R": int(10 ** rng.uniform(2, 3)),
        "sigma": float(rng.choice([0.0, 1.0])),
    }


def family(seed: int, c: dict[str, Any], noisy: bool = True) -> Family:
    rng = np.random.default_rng(seed + 100)
    mu = c["L"] * rng.uniform(0.02, 0.3)
    sigma = c["sigma"] if noisy else 0.0
    return random_quadratics(seed, N=c["N"], L=c["L"], mu=mu, sigma=sigma)


Case = Callable[[int], tuple[Family, Any, Any]]


def fedavg_m(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    del c["S"]
    return f, ud.theory.fedavg_m(Delta=f.Delta, G0=f.G0, **c), ud.Everyone()


def fedavg_m_vr(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    del c["S"]
    return f, ud.theory.fedavg_m_vr(Delta=f.Delta, G0=f.G0, **c), ud.Everyone()


def scaffold_m(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    return f, ud.theory.scaffold_m(Delta=f.Delta, G0=f.G0, **c), ud.Uniform(c["S"])


def scaffold_m_vr(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    return f, ud.theory.scaffold_m_vr(Delta=f.Delta, **c), ud.Uniform(c["S"])


def dissimilarity_near(f: Family, reach: float = 4.0) -> float:
    """sigma_g, or kappa, over the points that a run comes to: those as far as the start."""
    worst = 0.0
    for seed in range(20):
        away = torch.as_tensor(np.random.default_rng(seed).normal(size=len(f.problem.x0)))
        x = f.problem.optimum + reach * f.distance * away / away.norm()
        g = f.gradients(x)
        worst = max(worst, float(((g - g.mean(0)) ** 2).sum(1).mean()) ** 0.5)
    return worst


def schedule(seed: int) -> tuple[Any, int]:
    """A server of one stage or three, and its rounds."""
    rng = np.random.default_rng(seed + 200)
    beta, nu, eta = rng.uniform(0, 0.95), rng.uniform(0, 1), float(10 ** rng.uniform(-0.5, 1))
    if seed % 2:
        return ud.FedGM(eta, float(beta), float(nu)), 140
    stages = (4 * eta, 2 * eta, eta)
    return ud.MultistageFedGM(eta=stages, T=140, beta=float(beta), nu=float(nu)), 140


def fedgm(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    server, R = schedule(seed)
    told: dict[str, Any] = {"L": f.L, "Delta": f.Delta, "N": c["N"], "K": c["K"], "R": R}
    noise: dict[str, Any] = {"sigma_l": c["sigma"], "sigma_g": dissimilarity_near(f)}
    return f, ud.theory.fedgm(server, **told, **noise), ud.Everyone()


def fedgm_some(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    server, R = schedule(seed)
    told: dict[str, Any] = {
        "L": f.L,
        "Delta": f.Delta,
        "N": c["N"],
        "S": c["S"],
        "K": c["K"],
        "R": R,
    }
    noise: dict[str, Any] = {"sigma_l": c["sigma"], "sigma_g": dissimilarity_near(f)}
    return f, ud.theory.fedgm(server, **told, **noise), ud.Uniform(c["S"])


def autonomous_fedgm(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    server, R = schedule(seed)
    told: dict[str, Any] = {
        "L": f.L,
        "Delta": f.Delta,
        "N": c["N"],
        "S": c["S"],
        "K": c["K"],
        "R": R,
    }
    noise: dict[str, Any] = {"sigma_l": c["sigma"], "sigma_g": dissimilarity_near(f)}
    return f, ud.theory.autonomous_fedgm(server, **told, **noise), ud.Uniform(c["S"])


def scaffold_everyone(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c, noisy=False)
    told: dict[str, Any] = {
        "L": f.L,
        "mu": f.mu,
        "N": c["N"],
        "K": c["K"],
        "R": int(9 * f.L / f.mu),
    }
    return f, ud.theory.scaffold_everyone(distance=f.distance, **told), ud.Everyone()


def scaffold(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c, noisy=False)
    R = int(82 * max(f.L / f.mu, c["N"] / c["S"]))
    told: dict[str, Any] = {"L": f.L, "mu": f.mu, "N": c["N"], "S": c["S"], "K": c["K"], "R": R}
    known: dict[str, Any] = {"distance": f.distance, "control_error": f.control_error}
    return f, ud.theory.scaffold(**told, **known), ud.Uniform(c["S"])


def fednova(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    rng = np.random.default_rng(seed)
    steps = [int(k) for k in rng.integers(1, 9, c["N"])]
    told: dict[str, Any] = {
        "L": f.L,
        "Delta": f.Delta,
        "steps": steps,
        "rho": float(rng.choice([0.0, 0.5])),
    }
    R = int(100_000 * max(1, f.L) ** 2)
    kappa = dissimilarity_near(f)
    return f, ud.theory.fednova(R=R, sigma=c["sigma"], kappa=kappa, **told), ud.Everyone()


def fedprox(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    steps = [int(k) for k in np.random.default_rng(seed).integers(5, 15, c["N"])]
    R = int(100_000 * max(1, f.L) ** 2)
    setting = ud.theory.fedprox(L=f.L, Delta=f.Delta, steps=steps, R=R)
    return f, setting, ud.Everyone()


def ghbm(seed: int) -> tuple[Family, Any, Any]:
    c = draw(seed)
    f = family(seed, c)
    return f, ud.theory.ghbm(Delta=f.Delta, G_tau=f.G0, **c), ud.Cyclic(c["S"])


CASES: list[Case] = [
    fedavg_m,
    fedavg_m_vr,
    scaffold_m,
    scaffold_m_vr,
    fedgm,
    fedgm_some,
    autonomous_fedgm,
    scaffold_everyone,
    scaffold,
    fednova,
    fedprox,
    ghbm,
]
SURROGATE = (fedprox,)  # their bound is on another objective's gradient
NONE = (ghbm,)


@pytest.mark.parametrize("case", CASES)
def test_nothing_that_is_prescribed_diverges(case: Case) -> None:
    for seed in FAMILIES:
        f, setting, who = case(seed)
        rounds = min(setting.rounds, 140 if "stages" in vars(setting) else SHOWN)
        start = f.gaps(f.problem.x0)
        squares, gaps = [f.squared_gradient(f.problem.x0)], [start]
        for r in ud.rounds(
            setting.method(),
            f.problem,
            rounds=rounds,
            participation=who,
            local=setting.local(),
            engine="batched",
            evaluate_every=rounds,
            seed=seed,
        ):
            squares.append(f.squared_gradient(r.x))
            gaps.append(f.gaps(r.x))
        assert len(gaps) == rounds + 1
        # what noise, and drawing other clients each round, add at a step of 1/L
        moved = f.problem.variance / f.L + (f.spread() / f.L if isinstance(who, ud.Uniform) else 0)
        assert (np.array(gaps) <= 1.5 * start + moved).all(), (case.__name__, seed)
        if not f.problem.variance:
            assert gaps[-1].sum() <= start.sum(), (case.__name__, seed)
        if case not in SURROGATE + NONE and "decay" not in vars(setting):
            assert np.mean(squares[:-1]) <= setting.bound(rounds), (case.__name__, seed)


@pytest.mark.parametrize("seed", range(3))
def test_variance_reduced_forms_on_samples_with_hessians_of_their_own(seed: int) -> None:
    """Least squares: L is the largest |a_s|^2 of a sample, sigma the noise as far away as the start."""
    rng = np.random.default_rng(seed)
    A, N, K, R = rng.normal(size=(6, 12, 3)), 6, 3, 60
    b = np.einsum("ijk,ik->ij", A, rng.normal(size=(N, 3))) + rng.normal(size=(N, 12))
    problem = ud.LeastSquares(torch.as_tensor(A), torch.as_tensor(b))
    x0 = problem.optimum + torch.as_tensor(rng.normal(size=3))
    found = ud.theory.estimate(problem, x0, batch=1)
    L = float((A**2).sum(2).max())
    assert L > found.L
    told: dict[str, Any] = {
        "L": L,
        "Delta": problem.evaluate(x0)["gap"],
        "sigma": 2 * found.sigma,
        "N": N,
        "K": K,
        "R": R,
    }
    for setting, who in (
        (ud.theory.fedavg_m_vr(G0=found.G0, **told), ud.Everyone()),
        (ud.theory.scaffold_m_vr(S=2, **told), ud.Uniform(2)),
    ):
        local = setting.local(batch=1)
        local = ud.Local(steps=local.steps, lr=local.lr, batch=1, replacement=True)
        run = ud.run(setting.method(), problem, rounds=R, participation=who, local=local, x0=x0, seed=seed)
        squares = [found.gradient**2, *(r.metrics["grad_norm"] ** 2 for r in run.history)]
        assert np.mean(squares[:-1]) <= setting.bound()
        assert run.final("gap", last=1) < 1.2 * told["Delta"]
