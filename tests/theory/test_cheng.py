"""Cheng et al.: (5), (8), (9), (11) transcribed a second time, their lemmas' conditions, and what must be refused."""

from math import ceil, e, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.random_quadratics import random_quadratics

positive = st.floats(1e-3, 1e3)
counts = st.integers(1, 200)
FULL = {
    "L": positive,
    "Delta": positive,
    "G0": st.just(0.0) | positive,
    "sigma": st.just(0.0) | positive,
    "N": counts,
    "K": st.integers(1, 50),
    "R": st.integers(1, 10_000),
}


@given(**FULL, c=st.floats(0.01, 1))
@settings(deadline=None)
def test_fedavg_m(**k: Any) -> None:
    s = ud.theory.fedavg_m(**k)
    L, Delta, G0, sigma, N, K, R, c = k.values()
    free = c if sigma == 0 else sqrt(N * K * L * Delta / (sigma**2 * R))
    assert s.beta == pytest.approx(min(c, free))
    assert s.gamma == pytest.approx(min(1 / (24 * L), s.beta / (6 * L)))
    x, b, g = s.lr * K * L, s.beta, s.gamma * L
    near = 1 + 1e-9
    assert x <= near * min(1, 1 / (b * g * R), (b * N) ** -0.5, (b**3 * N * K) ** -0.25)
    assert x**2 * G0 * b**3 * R <= near * L * Delta
    assert x * b <= near
    assert 288 * e * x**2 * ((1 - b) ** 2 + e * (b * g * R) ** 2) <= near
    assert 4 * b * x**2 * (1 / K + 2 * (x * b) ** 2) <= near * 2 / (N * K)
    assert s.bound(R) == pytest.approx(s.bound())
    assert s.bound(R) <= s.bound(1)


@given(**FULL, c=st.floats(0.01, 1))
@settings(deadline=None)
def test_fedavg_m_vr(**k: Any) -> None:
    s = ud.theory.fedavg_m_vr(**k)
    L, Delta, G0, sigma, N, K, R, c = k.values()
    free = c if sigma == 0 else np.cbrt(N * K * L**2 * Delta**2 / (sigma**4 * R**2))
    assert s.beta == pytest.approx(min(c, free))
    assert s.gamma == pytest.approx(min(1 / (24 * L), sqrt(s.beta * N * K / (54 * L**2))))
    assert s.B is not None and abs(s.B - K / (R * s.beta**2)) < 1 + 1e-9 * s.B
    x, b, g = s.lr * K * L, s.beta, s.gamma * L
    near = 1 + 1e-9
    assert x**2 * G0 * g * R <= near * L * Delta
    assert x <= near * min((b / N) ** 0.5, (b / (N * K)) ** 0.25, 1 / (4 * e))
    assert 288 * e * x**2 * (289 / 72 * (1 - b) ** 2 + 8 * e * (g * b * R) ** 2) <= near * b**2
    assert 32 * b * x**2 * (1 / K + 2 * x**2) <= near * b**2 / (N * K)
    assert 128 * x**2 / b * (1 / K + 2 * x**2) * g**2 <= near * b / 18


@given(**FULL, c=st.floats(0.01, 1), share=st.floats(0, 1))
@settings(deadline=None)
def test_scaffold_m(share: float, **k: Any) -> None:
    L, Delta, G0, sigma, N, K, R, c = k.values()
    S = max(1, round(share * N))
    s = ud.theory.scaffold_m(S=S, **k)
    b, g, x = s.beta, s.gamma * L, s.lr * K * L
    options = [c, S / N ** (2 / 3)]
    options += [sqrt(L * Delta * S * K / (sigma**2 * R))] if sigma else []
    options += [sqrt(L * Delta * S**2 / (G0 * N))] if G0 else []
    assert b == pytest.approx(min(options))
    assert s.B == ceil(N * K / (S * R))
    near, rho = 1 + 1e-9, (N - S) / max(N - 1, 1)
    assert g <= near * min(1 / 24, b / 12)
    assert x <= near * min(S**-0.5, 1 / (b * K**0.25), S**0.5 / N, N * g / (5 * S))
    assert b * x <= near / (24 * K**0.25)
    first = 160 * e * b * x**2 + 24 * (b * g * N / S) ** 2 * (6 * rho / S + 80 * e * b * x**2)
    assert first <= near * b / 9
    second = 10 * x**2 * (1 / K + 2 * (b * x) ** 2) + 960 * e * b * x**2 / K
    assert second <= near * 4 / (S * K)
    assert 80 * e * b * x**2 <= near * 4 / S


@given(
    L=positive,
    Delta=positive,
    sigma=st.just(0.0) | positive,
    N=counts,
    K=st.integers(1, 50),
    R=st.integers(1, 10_000),
    share=st.floats(0, 1),
)
@settings(deadline=None)
def test_scaffold_m_vr(share: float, **k: Any) -> None:
    L, Delta, sigma, N, K, R = k.values()
    S = max(1, round(share * N))
    s = ud.theory.scaffold_m_vr(S=S, **k)
    b, g, x = s.beta, s.gamma * L, s.lr * K * L
    free = [(K * L * Delta / (sigma**2 * R)) ** (2 / 3) * S ** (1 / 3)] if sigma else []
    assert b == pytest.approx(min([S / N, *free]))
    near, rho = 1 + 1e-9, (N - S) / max(N - 1, 1)
    assert g <= near * min(1 / 24, sqrt(b * S / 126), 1, sqrt(b * S))
    assert x <= near * min((b / S) ** 0.5, (b / (S * K)) ** 0.25, 1 / (4 * e), N * g / (10 * S))
    u = 720 * x**2 / b
    assert u + 18 * (b * g * N / S) ** 2 * (4 * rho / S + u) <= near * b / 9
    assert 64 * x**2 / b * (1 / K + 2 * x**2) + 8640 * x**2 / (b * K) <= near * 5 / (S * K)
    assert u <= near / S


def test_methods_and_local_settings_are_what_is_prescribed() -> None:
    told: dict[str, Any] = {"L": 2.0, "Delta": 1.0, "sigma": 0.5, "N": 12, "K": 3, "R": 50}
    cases = [
        (ud.theory.fedavg_m(G0=1.0, **told), ud.FedAvg_M),
        (ud.theory.fedavg_m_vr(G0=1.0, **told), ud.FedAvg_M_VR),
        (ud.theory.scaffold_m(G0=1.0, S=4, **told), ud.ScaffoldM),
        (ud.theory.scaffold_m_vr(S=4, **told), ud.ScaffoldMVR),
    ]
    for setting, kind in cases:
        method = setting.method()
        assert isinstance(method, kind)
        assert (method.beta, method.gamma) == (setting.beta, setting.gamma)
        if setting.B is not None:
            assert method.B == setting.B
        assert setting.local(batch=8) == ud.Local(steps=3, lr=setting.lr, batch=8)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"L": -1.0}, r"L must lie in \(0, inf\), got -1"),
        ({"sigma": -0.1}, "sigma must lie in"),
        ({"K": 0}, r"K must lie in \[1, inf\), got 0"),
        ({"K": 1.5}, "K must be a whole number"),
        ({"S": 11}, "S <= N is needed, got S = 11 and N = 10"),
        ({"Delta": float("nan")}, "Delta must lie in"),
        ({"R": 0}, "R must lie in"),
        ({"c": 2.0}, "c must lie in"),
    ],
)
def test_wrong_constants_are_named(wrong: dict[str, Any], words: str) -> None:
    right: dict[str, Any] = {
        "L": 1.0,
        "Delta": 1.0,
        "G0": 1.0,
        "sigma": 1.0,
        "N": 10,
        "S": 5,
        "K": 2,
        "R": 9,
    }
    with pytest.raises(ud.InvalidInput, match=words):
        ud.theory.scaffold_m(**(right | wrong))


def test_rates_fall_with_rounds_and_draw_as_arrays() -> None:
    R = np.array([10.0, 100.0, 1000.0])
    told: dict[str, Any] = {"L": 1.0, "Delta": 2.0, "sigma": 1.0, "K": 4}
    bound = ud.theory.fedavg_m(G0=1.0, N=10, R=1000, **told).bound
    curves = [
        ud.theory.fedavg_m_rate(R, N=10, **told),
        ud.theory.fedavg_m_vr_rate(R, N=10, **told),
        ud.theory.scaffold_m_rate(R, N=10, S=5, **told),
        ud.theory.scaffold_m_vr_rate(R, N=10, S=5, **told),
        ud.theory.ghbm_rate(R, N=10, **told),
        ud.theory.fedgm_rate(R, N=10, K=4),
        ud.theory.fedgm_rate(R, N=10, K=4, S=5),
        ud.theory.autonomous_fedgm_rate(R, S=5, K=4, delay=2),
        ud.theory.fednova_rate(R, steps=[2, 5]),
        ud.theory.fedprox_rate(R, steps=[2, 5]),
        bound(R),
    ]
    for curve in curves:
        assert curve.shape == (3,) and (np.diff(curve) < 0).all()
    with pytest.raises(ud.InvalidInput, match="R <= 1000, the rounds that it is for, is needed, got R = 1001"):
        bound([10, 1001])  # its steps are chosen for so many
    with pytest.raises(ud.InvalidInput, match="R >= 1 is needed, got -3"):
        bound(-3)
    with pytest.raises(ud.InvalidInput, match=r"fedavg_m_rate: L must lie in \(0, inf\), got -1"):
        ud.theory.fedavg_m_rate(R, N=10, **{**told, "L": -1.0})
    with pytest.raises(ud.InvalidInput, match="R is a number of rounds, or an array of them; got 'many'"):
        ud.theory.ghbm_rate("many", N=10, **told)
    # the dominant term: 4 times the clients, half the error, for large R
    far: dict[str, Any] = {"L": 1.0, "Delta": 2.0, "sigma": 10.0, "K": 4}
    few, many = (float(ud.theory.fedavg_m_rate(1e12, N=N, **far)) for N in (10, 40))
    assert many / few == pytest.approx(0.5, rel=1e-3)
    same = ud.theory.fedavg_m_rate(R, N=10, **told)
    assert ud.theory.ghbm_rate(R, N=10, **told) == pytest.approx(same)


def test_momentum_error_settles_where_noise_alone_puts_it() -> None:
    """At gamma -> 0 the model stands still and g is an average of noise."""
    f = random_quadratics(0, N=4, L=1.0, mu=0.5, count=20, sigma=2.0)
    f.problem.x0 = f.problem.optimum
    errors = []
    for r in ud.rounds(
        ud.FedAvg_M(beta=0.3, gamma=0.0),
        f.problem,
        rounds=600,
        local=ud.Local(steps=2, lr=1e-9),
        engine="batched",
        evaluate_every=600,
    ):
        if r.round > 30:
            errors.append(float(torch.sum(r.state.server.g**2)))
    floor = ud.theory.momentum_error_floor(beta=0.3, sigma=2.0, N=4, K=2)
    assert np.mean(errors) == pytest.approx(floor, rel=0.05)
    with pytest.raises(ud.InvalidInput, match=r"beta must lie in \(0, 1\], got 2"):
        ud.theory.momentum_error_floor(beta=2.0, sigma=1.0, N=1, K=1)
