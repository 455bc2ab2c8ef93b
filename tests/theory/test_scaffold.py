"""SCAFFOLD's Theorems 1 and 2: step sizes, bounds, and a Lyapunov function that contracts."""

from itertools import combinations
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.random_quadratics import random_quadratics


@given(
    L=st.floats(0.1, 10),
    share=st.floats(0.01, 1),
    N=st.integers(1, 30),
    K=st.integers(1, 20),
    sigma=st.just(0.0) | st.floats(0.01, 10),
    longer=st.floats(1, 100),
)
@settings(deadline=None)
def test_theorem_1(L: float, share: float, N: int, K: int, sigma: float, longer: float) -> None:
    mu = share * L
    R = int(np.ceil(longer * 8 * L / mu))
    s = ud.theory.scaffold_everyone(L=L, mu=mu, N=N, K=K, R=R, distance=2.0, sigma=sigma)
    assert s.method() == ud.Scaffold(eta_g=sqrt(N), option=1, B=1)
    assert s.step == pytest.approx(K * s.eta_g * s.lr)
    assert s.lr <= 1 / (8 * L * s.eta_g * K) * (1 + 1e-9)
    assert s.decay == pytest.approx(1 - mu * s.step / 2)
    assert mu * (s.step / 2) * R >= 0.5 - 1e-9  # what Lemma 5 needs
    if sigma == 0:
        assert s.step == pytest.approx(1 / (8 * L))
        weights = (1 - mu / (16 * L)) ** -np.arange(0.0, R + 1)  # Lemma 5: d_0 / (eta W_R)
        assert s.bound() == pytest.approx(4 * 16 * L / weights.sum())
        assert s.bound() <= 3 * mu * 4 * (1 - mu / (16 * L)) ** R
    else:
        harmonic = sum(1 / k for k in range(1, K + 1))
        c = 4 * sigma**2 * (2 / (K * N) + (K > 1) * 5 / 48 * (1 + 1.5 * harmonic / K) / N)
        eta = min(1 / (16 * L), log(max(2, mu**2 * R * 4 / c)) / (mu * R))
        assert (s.step, s.floor) == pytest.approx((2 * eta, c * eta))


@given(
    L=st.floats(0.1, 10),
    share=st.floats(0.01, 1),
    N=st.integers(1, 30),
    part=st.floats(0, 1),
    K=st.integers(1, 20),
    sigma=st.just(0.0) | st.floats(0.01, 10),
)
@settings(deadline=None)
def test_theorem_2(L: float, share: float, N: int, part: float, K: int, sigma: float) -> None:
    mu, S = share * L, max(1, round(part * N))
    R = int(np.ceil(2 * max(81 * L / mu, 15 * N / S)))
    told: dict[str, Any] = {"L": L, "mu": mu, "N": N, "S": S, "K": K, "R": R}
    s = ud.theory.scaffold(**told, distance=2.0, control_error=3.0, sigma=sigma)
    limit = min(1 / (81 * L), S / (15 * mu * N))
    assert s.step <= limit * (1 + 1e-9)
    if sigma:
        d0 = 4 + 18 * N / S * limit**2 * 3
        c = 2 * sigma**2 / K * (24 / S + 13 / 9 / S)
        eta = min(limit / 2, log(max(2, mu**2 * R * d0 / c)) / (mu * R))
        assert s.step == pytest.approx(2 * eta)
    else:
        assert s.step == pytest.approx(limit)


@pytest.mark.parametrize("seed", range(50))
def test_the_lyapunov_function_contracts_as_theorem_2_says(seed: int) -> None:
    """The mean over every cohort of the next round, from states in mid-run, is at most decay times the value now."""
    rng = np.random.default_rng(seed)
    N, K = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    S = int(rng.integers(1, N + 1))
    L = float(rng.uniform(0.5, 2))
    f = random_quadratics(seed, N=N, L=L, mu=L * rng.uniform(0.05, 0.9), count=1)
    told: dict[str, Any] = {"L": f.L, "mu": f.mu, "N": N, "S": S, "K": K, "R": 1_000_000}
    s = ud.theory.scaffold(**told, distance=f.distance, control_error=f.control_error, eta_g=float(rng.uniform(1, 3)))
    run: dict[str, Any] = {"local": s.local(), "engine": "sequential", "evaluate_every": 99}
    cohorts = [sorted(rng.choice(N, S, replace=False).tolist()) for _ in range(4)]
    for before in ud.rounds(s.method(), f.problem, rounds=4, participation=ud.Fixed(cohorts), **run):
        now = ud.theory.scaffold_lyapunov(before.state, f.problem, s)
        state, after = before.snapshot(), []
        for cohort in combinations(range(N), S):
            who = ud.Fixed([[0]] * before.round + [list(cohort)])
            (last,) = ud.rounds(
                s.method(),
                f.problem,
                rounds=before.round + 1,
                participation=who,
                start=state,
                **run,
            )
            after.append(ud.theory.scaffold_lyapunov(last.state, f.problem, s))
        assert np.mean(after) <= s.decay * now


def test_the_lyapunov_function_by_hand() -> None:
    f = random_quadratics(1, N=3, L=1.0, mu=0.2, count=1)
    told: dict[str, Any] = {"L": 1.0, "mu": 0.2, "N": 3, "S": 2, "K": 2, "R": 1000}
    s = ud.theory.scaffold(**told, distance=1.0, control_error=1.0)
    (r,) = ud.rounds(s.method(), f.problem, rounds=1, local=s.local(), participation=ud.Uniform(2))
    x, c = r.x.numpy(), r.state.clients.gather(range(3)).c.numpy()
    best = f.problem.optimum.numpy()
    goal = np.einsum("nij,j->ni", f.problem.H.numpy(), best) - f.problem.e.numpy()
    C = np.mean(((c - goal) ** 2).sum(1))
    by_hand = ((x - best) ** 2).sum() + 9 * 3 * s.step**2 / 2 * C
    assert ud.theory.scaffold_lyapunov(r.state, f.problem, s) == pytest.approx(by_hand, rel=1e-12)
    given_best = ud.theory.scaffold_lyapunov(r.state, f.problem, s, torch.as_tensor(best))
    assert given_best == pytest.approx(by_hand, rel=1e-12)


def test_bounds_hold_for_the_weighted_mean_of_models() -> None:
    """Theorem 2 with noise, on 20 quadratics: f(x_bar) - f* over rounds, below the bound."""
    f = random_quadratics(3, N=4, L=1.0, mu=0.5, count=20, sigma=1.0)
    told: dict[str, Any] = {"L": 1.0, "mu": 0.5, "N": 4, "S": 2, "K": 3, "R": 300}
    known: dict[str, Any] = {"distance": f.distance, "control_error": f.control_error, "sigma": 1.0}
    s = ud.theory.scaffold(**told, **known)
    total, weights, x = torch.zeros_like(f.problem.x0), 0.0, f.problem.x0
    checked = 0
    for r in ud.rounds(
        s.method(),
        f.problem,
        rounds=300,
        local=s.local(),
        participation=ud.Uniform(2),
        engine="batched",
        evaluate_every=300,
    ):
        w = s.decay ** (1 - r.round)
        total, weights = total + w * x, weights + w
        if r.round >= 1 / (0.5 * s.step):  # Lemma 5
            assert f.gaps(total / weights).sum() <= s.bound(r.round)
            checked += 1
        x = r.x
    assert checked > 50


def test_conditions_are_named_when_broken() -> None:
    told: dict[str, Any] = {"L": 1.0, "mu": 0.1, "N": 8, "S": 4, "K": 5, "distance": 1.0}
    with pytest.raises(ud.InvalidInput, match=r"R >= max.* got R = 100, 81 L / mu = 810 and 15 N"):
        ud.theory.scaffold(**told, R=100, control_error=0.0)
    with pytest.raises(ud.InvalidInput, match="mu <= L is needed, got mu = 2 and L = 1"):
        ud.theory.scaffold(**{**told, "mu": 2.0}, R=1000, control_error=0.0)
    with pytest.raises(ud.InvalidInput, match=r"eta_g must lie in \[1, inf\), got 0.5"):
        ud.theory.scaffold(**told, R=1000, control_error=0.0, eta_g=0.5)
    with pytest.raises(ud.InvalidInput, match=r"R >= 8 L / mu is needed, got R = 10 and 8 L / mu"):
        ud.theory.scaffold_everyone(L=1.0, mu=0.1, N=4, K=5, R=10, distance=1.0)


def test_runs_without_control_variates_have_no_lyapunov_function() -> None:
    f = random_quadratics(1, N=3, L=1.0, mu=0.2, count=1)
    told: dict[str, Any] = {"L": 1.0, "mu": 0.2, "N": 3, "S": 2, "K": 2, "R": 1000}
    s = ud.theory.scaffold(**told, distance=1.0, control_error=1.0)
    (r,) = ud.rounds(ud.FedAvg(), f.problem, rounds=1)
    with pytest.raises(ud.InvalidInput, match="no control variates"):
        ud.theory.scaffold_lyapunov(r.state, f.problem, s)
