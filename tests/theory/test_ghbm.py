"""GHBM: (122), where its window makes it unstable, and which clients a window misses."""

from math import e, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud

positive = st.floats(1e-2, 1e2)


@given(
    L=positive,
    Delta=positive,
    G_tau=st.just(0.0) | positive,
    sigma=st.just(0.0) | positive,
    S=st.integers(1, 10),
    tau=st.integers(1, 60),
    K=st.integers(1, 20),
    R=st.integers(60, 5000),
)
@settings(deadline=None)
def test_step_sizes(tau: int, S: int, **k: Any) -> None:
    N = S * tau
    s = ud.theory.ghbm(N=N, S=S, **k)
    L, Delta, G, sigma, K, R = k.values()
    near = 1 + 1e-9
    assert s.tau == tau
    assert s.beta == pytest.approx(min(1, sqrt(N * K * L * Delta / (sigma**2 * R))) if sigma else 1)
    b, h, x = s.beta, s.eta * L, s.lr * K * L
    assert h <= near * min(1 / 24, b / sqrt(8))
    if tau <= 38:
        assert h == pytest.approx(min(1 / 24, b / sqrt(8)))
    assert h <= near * ud.theory.ghbm_largest_step(tau, b) / 2
    assert x <= near * min(1, 1 / (b * h * sqrt(tau) * R), 1 / sqrt(b * N))
    assert x <= near * (b**3 * N * K) ** -0.25
    assert x**2 * b**3 * tau * G * R <= near * L * Delta
    assert 112 * e**2 * x**2 * ((1 - b) ** 2 + e * (b * h * R) ** 2 + tau - 1) <= near / 8
    assert 2 * b * x**2 * (1 / K + 2 * (x * b) ** 2) <= near / (N * K)
    assert s.method() == ud.GHBMTheory(tau=tau, beta=b, eta=s.eta)


def radius(tau: int, beta: float, k: float) -> float:
    """Of the matrix of a round on x^2/2: the last tau models and m."""
    A = np.zeros((tau + 1, tau + 1))
    A[tau, :tau], A[tau, tau] = beta / tau, 1 - beta
    A[0, 0] = 1
    A[0] -= k * A[tau]
    A[range(1, tau), range(tau - 1)] = 1
    return float(np.abs(np.linalg.eigvals(A)).max())


@pytest.mark.parametrize("beta", [1.0, 0.9, 0.3, 0.05])
@pytest.mark.parametrize("tau", [1, 2, 3, 10, 60])
def test_the_largest_step_is_that_of_the_matrix_of_a_round(tau: int, beta: float) -> None:
    k = ud.theory.ghbm_largest_step(tau, beta)
    assert radius(tau, beta, 0.99 * k) < 1 < radius(tau, beta, 1.01 * k)


def test_a_window_without_momentum() -> None:
    for tau in (1, 2, 5, 118):
        expected = tau * (1 - np.cos(np.pi / tau))
        assert ud.theory.ghbm_largest_step(tau, 1.0) == pytest.approx(expected)


def test_missed_clients_as_drawn() -> None:
    """Against cohorts of ud.Uniform: the share, and its square."""
    N, S, tau, times = 20, 3, 7, 3000
    weights = np.full(N, 1 / N)
    cohorts = [set(ud.Uniform(S).draw(0, t, weights).clients) for t in range(1, tau * times + 1)]
    shares = np.array([1 - len(set().union(*cohorts[tau * i : tau * (i + 1)])) / N for i in range(times)])
    error = shares.std() / sqrt(times)
    assert shares.mean() == pytest.approx(ud.theory.missed_clients(N, S, tau), abs=4 * error)
    error = (shares**2).std() / sqrt(times)
    squared = ud.theory.missed_clients_squared(N, S, tau)
    assert (shares**2).mean() == pytest.approx(squared, abs=4 * error)


def test_missed_clients_at_its_ends() -> None:
    assert ud.theory.missed_clients(100, 10, 10) == pytest.approx(0.349, abs=1e-3)
    assert ud.theory.missed_clients(5, 5, 1) == ud.theory.missed_clients_squared(5, 5, 1) == 0
    assert ud.theory.missed_clients_squared(10, 3, 1) == pytest.approx(0.7**2)  # one cohort: exact
    assert ud.theory.missed_clients_squared(1, 1, 3) == 0


def test_wrong_input_is_named() -> None:
    told: dict[str, Any] = {"L": 1.0, "Delta": 1.0, "G_tau": 1.0, "sigma": 0.0, "K": 2, "R": 9}
    with pytest.raises(ud.InvalidInput, match=r"S that divides N .* got N = 10 and S = 3"):
        ud.theory.ghbm(N=10, S=3, **told)
    with pytest.raises(ud.InvalidInput, match="tau = N/S <= R is needed, got N/S = 10 and R = 9"):
        ud.theory.ghbm(N=10, S=1, **told)
    with pytest.raises(ud.InvalidInput, match="S <= N is needed, got S = 4 and N = 3"):
        ud.theory.missed_clients(3, 4, 1)
    with pytest.raises(ud.InvalidInput, match=r"tau must lie in \[1, inf\)"):
        ud.theory.missed_clients(3, 2, 0)
    with pytest.raises(ud.InvalidInput, match="no proven bound"):
        ud.theory.ghbm(N=10, S=5, **told).bound()
