"""FedNova: closed limits against long runs, constants against their printed forms, chi2, (101) and Corollary 2."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.oracles import closed_forms
from tests.support.oracles.fednova import coefficients
from tests.support.quadratics import STEPS, P, quadratic

lists = st.lists(st.integers(1, 12), min_size=1, max_size=6)


@given(steps=st.integers(1, 15), alpha=st.floats(0, 0.9), rho=st.floats(0, 0.95))
@settings(deadline=None)
def test_accumulation_is_what_the_solver_does(steps: int, alpha: float, rho: float) -> None:
    a = ud.theory.accumulation(steps, alpha=alpha, rho=rho)
    assert a == pytest.approx(coefficients(steps, 1.0, alpha, rho), rel=1e-9)


def test_accumulation_has_the_printed_norms() -> None:
    """(34), (43), (45)."""
    a = ud.theory.accumulation(7, alpha=0.2)
    assert a == pytest.approx([0.8**k for k in range(6, -1, -1)])
    assert a.sum() == pytest.approx((1 - 0.8**7) / 0.2)
    b, rho = ud.theory.accumulation(7, rho=0.9), 0.9
    assert b == pytest.approx([(1 - rho ** (7 - k)) / (1 - rho) for k in range(7)])
    assert b.sum() == pytest.approx((7 - rho * (1 - rho**7) / (1 - rho)) / (1 - rho))


def weights(m: int) -> np.ndarray:
    p = np.arange(1.0, m + 1)
    return p / p.sum()


@given(steps=lists)
@settings(deadline=None)
def test_fedavgs_constants_as_printed(steps: list[int]) -> None:
    """(121)-(124)."""
    tau, p, m = np.array(steps, dtype=float), weights(len(steps)), len(steps)
    c = ud.theory.nova_constants(steps, p=p.tolist())
    mean = p @ tau
    var = p @ tau**2 - mean**2
    assert c.tau_eff == pytest.approx(mean)
    assert c.w == pytest.approx(p * tau / mean)
    assert c.A == pytest.approx(m * (p**2 @ tau) / mean)
    assert c.B == pytest.approx(mean - 1 + var / mean, abs=1e-9)
    assert c.C == pytest.approx(tau.max() * (tau.max() - 1))


@given(steps=lists, alpha=st.floats(0.01, 0.9))
@settings(deadline=None)
def test_fedproxs_constants_as_printed(steps: list[int], alpha: float) -> None:
    """(127)-(131), and (132): alpha -> 0 is FedAvg."""
    tau, p, m = np.array(steps, dtype=float), weights(len(steps)), len(steps)
    c = ud.theory.nova_constants(steps, p=p.tolist(), alpha=alpha)
    q = 1 - (1 - alpha) ** tau
    two = (1 - (1 - alpha) ** (2 * tau)) / (1 - (1 - alpha) ** 2)
    assert c.tau_eff == pytest.approx(p @ q / alpha)
    assert c.w == pytest.approx(p * q / (p @ q))
    assert c.A == pytest.approx(m * alpha / (p @ q) * (p**2 @ two))
    assert c.B == pytest.approx((p * q / (p @ q)) @ (two - 1), abs=1e-9)
    top = (1 - (1 - alpha) ** tau.max()) / alpha
    assert c.C == pytest.approx(top * (top - 1), abs=1e-9)
    small, none = (ud.theory.nova_constants(steps, p=p.tolist(), alpha=a) for a in (1e-9, 0.0))
    assert (small.A, small.B, small.C) == pytest.approx((none.A, none.B, none.C), abs=1e-5)


def test_variants_of_tau_eff() -> None:
    told: dict[str, Any] = {"alpha": 0.3, "normalised": True, "p": [0.2, 0.8]}
    a, steps, number = (ud.theory.nova_constants([2, 6], tau_eff=t, **told) for t in ("a", "steps", 3))
    assert a.tau_eff == pytest.approx(0.2 * 1.7 + 0.8 * (1 - 0.7**6) / 0.3)
    assert steps.tau_eff == pytest.approx(0.2 * 2 + 0.8 * 6)
    assert number.tau_eff == 3
    assert a.A / a.tau_eff == pytest.approx(steps.A / steps.tau_eff)
    assert a.w == pytest.approx([0.2, 0.8])
    with pytest.raises(ud.InvalidInput, match=r"tau_eff \('a', 'steps' or a number\) must be a number"):
        ud.theory.nova_constants([2, 6], tau_eff="mean")
    with pytest.raises(ud.InvalidInput, match=r"must lie in \(0, inf\), got -1"):
        ud.theory.nova_constants([2, 6], tau_eff=-1)


def test_lemma_4_from_these_functions() -> None:
    """H_i = 1, e = +-2, steps 3 and 7: FedAvg ends at squared gradient .64 = chi2(p || w) kappa^2, with /w as in (103)."""
    H, e = torch.ones(2, 1, 1).double(), torch.tensor([[2.0], [-2.0]]).double()
    problem = ud.Quadratic(H, e)
    c = ud.theory.nova_constants([3, 7])
    assert c.chi2 == pytest.approx(4 / 21)
    assert ((c.w - 0.5) ** 2 / 0.5).sum() == pytest.approx(0.16)  # the other way round
    x = ud.theory.fedavg_limit(problem, steps=[3, 7], lr=1e-9)
    square = float((problem.full_grad(x.expand(2, -1), [0, 1]).mean()) ** 2)
    gradients = problem.full_grad(x.expand(2, -1), [0, 1]).numpy().ravel()
    kappa2 = c.w @ (gradients - c.w @ gradients) ** 2
    assert kappa2 == pytest.approx(4 * c.w[0] * c.w[1] * 4)
    assert square == pytest.approx(0.64, rel=1e-6)
    assert c.chi2 * kappa2 == pytest.approx(square, rel=1e-6)
    bound = ud.theory.inconsistency_bound(0.0, c, kappa=sqrt(kappa2))
    assert bound == pytest.approx(2 * square, rel=1e-6)


@given(p=st.lists(st.floats(0.01, 1), min_size=1, max_size=8), data=st.data())
@settings(deadline=None)
def test_chi2_is_zero_only_for_equal_weights(p: list[float], data: st.DataObject) -> None:
    a = np.array(p) / sum(p)
    other = data.draw(st.lists(st.floats(0.01, 1), min_size=len(p), max_size=len(p)))
    w = np.array(other) / sum(other)
    assert ud.theory.chi2(a, a) == 0
    assert ud.theory.chi2(a, w) == pytest.approx((a**2 / w).sum() - 1, abs=1e-9)


@pytest.mark.parametrize(
    "p, w, words",
    [
        ([0.5, 0.5], [1.0, 0.0], "w_1 is 0 where p_1 = 0.5"),
        ([0.5, 0.6], [0.5, 0.5], "chi2: p: 2 weights that are not negative and sum to one are needed"),
        ([0.5, 0.5], [1.5, -0.5], "chi2: w: 2 weights that are not negative"),
        ([1.0], [0.5, 0.5], "two lists of one length"),
    ],
)
def test_weights_that_are_none(p: list[float], w: list[float], words: str) -> None:
    with pytest.raises(ud.InvalidInput, match=words):
        ud.theory.chi2(p, w)


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_limits_are_where_long_runs_end(mu: float, rho: float) -> None:
    problem, lr = quadratic(P), 0.1
    run: dict[str, Any] = {
        "rounds": 500,
        "local": ud.Local(steps=STEPS, lr=lr, momentum=rho),
        "engine": "batched",
        "evaluate_every": 500,
    }
    told: dict[str, Any] = {"steps": STEPS, "lr": lr, "mu": mu, "rho": rho}
    nova = ud.run(ud.FedNova(mu=mu), problem, **run).x
    assert (nova - ud.theory.fednova_limit(problem, **told)).abs().max() < 1e-9
    if not (mu and rho):  # FedProx with local momentum pulls through the buffer
        avg = ud.run(ud.FedProx(mu=mu) if mu else ud.FedAvg(), problem, **run).x
        assert (avg - ud.theory.fedavg_limit(problem, **told)).abs().max() < 1e-9


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_limits_as_printed(mu: float) -> None:
    """(28) with the inverse of H_i + mu, and its FedNova counterpart."""
    problem = quadratic(P)
    args = (problem.H.numpy(), problem.e.numpy(), np.array(P), STEPS, 0.1, mu)
    told: dict[str, Any] = {"steps": STEPS, "lr": 0.1, "mu": mu}
    ours = ud.theory.fedavg_limit(problem, **told).numpy()
    assert ours == pytest.approx(closed_forms.fedavg_limit(*args), rel=1e-10)
    ours = ud.theory.fednova_limit(problem, **told).numpy()
    assert ours == pytest.approx(closed_forms.fednova_limit(*args), rel=1e-10)


def test_the_example_of_lemma_1() -> None:
    """(29), (30)."""
    e = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, -1.0]]).double()
    problem, tau = ud.Quadratic(torch.eye(2).double().repeat(3, 1, 1), e), np.array([1, 4, 9])
    q = 1 - 0.9**tau
    x = ud.theory.fedavg_limit(problem, steps=tau.tolist(), lr=0.1).numpy()
    assert x == pytest.approx((q @ e.numpy()) / q.sum())
    x = ud.theory.fedavg_limit(problem, steps=tau.tolist(), lr=1e-8).numpy()
    assert x == pytest.approx((tau @ e.numpy()) / tau.sum(), abs=1e-6)


def test_equal_work_leaves_no_inconsistency() -> None:
    problem = quadratic(P)
    one = ud.theory.fedavg_limit(problem, steps=1, lr=0.3)
    assert (one - problem.optimum).abs().max() < 1e-12
    same = [ud.theory.fedavg_limit, ud.theory.fednova_limit]
    a, b = (limit(problem, steps=5, lr=0.3) for limit in same)
    assert (a - b).abs().max() < 1e-12
    assert ud.theory.nova_constants([4] * 6, p=P).chi2 == pytest.approx(0, abs=1e-30)


@given(steps=lists, L=st.floats(0.01, 10), B2=st.floats(1, 5), rho=st.floats(0, 0.9))
@settings(deadline=None)
def test_fednovas_step_size(steps: list[int], L: float, B2: float, rho: float) -> None:
    c = ud.theory.nova_constants(steps, normalised=True, rho=rho)
    a = [coefficients(tau, 1.0, 0.0, rho).sum() for tau in steps]
    largest = min(1 / (max(a) * sqrt(2 * B2 + 1)), 1 / np.mean(a)) / (2 * L)
    assert ud.theory.largest_lr(c, L=L, B2=B2) == pytest.approx(largest)
    share = len(steps) / np.mean(steps)
    R = int(np.ceil(share / largest**2)) + 1
    told: dict[str, Any] = {"L": L, "Delta": 1.0, "steps": steps, "B2": B2, "rho": rho}
    s = ud.theory.fednova(R=R, **told)
    assert s.lr == pytest.approx(sqrt(share / R)) and s.lr <= largest
    assert s.method() == ud.FedNova(rho=rho) and s.local().steps == steps
    if R > 4:
        with pytest.raises(ud.InvalidInput, match=r"by \(101\), is needed, got lr = "):
            ud.theory.fednova(R=R // 4, **told)


def test_fedproxs_mu_is_the_cube_root_of_the_rounds() -> None:
    """Corollary 2: alpha = sqrt(m/tau_bar) / T^(1/6) with eta = sqrt(m/(tau_bar T)); (139) is where (138) is smallest."""
    steps, R = [40, 60, 50], 8000
    s = ud.theory.fedprox(L=1.0, Delta=1.0, steps=steps, R=R)
    assert s.mu == pytest.approx(20) and s.alpha == pytest.approx(s.lr * s.mu)
    assert s.alpha == pytest.approx(sqrt(3 / 50) / R ** (1 / 6))
    assert s.method() == ud.FedProx(mu=s.mu)

    def error(alpha: float) -> float:  # (138), its derivative taken without the 2 as in (139)
        return alpha * 50 / sqrt(3 * 50 * R) + 3 / (2 * alpha**2 * 50 * R)

    assert error(s.alpha) < min(error(0.99 * s.alpha), error(1.01 * s.alpha))
    with pytest.raises(ud.InvalidInput, match=r"alpha = .* below 1 is needed, got alpha = "):
        ud.theory.fedprox(L=1.0, Delta=1.0, steps=[1] * 10, R=100)
    with pytest.raises(ud.InvalidInput, match=r"by \(101\)"):
        ud.theory.fedprox(L=100.0, Delta=1.0, steps=steps, R=100)


def test_fedproxs_bound_counts_the_weights_of_the_first_steps() -> None:
    """(69) by hand: the weights of k steps are (1 - alpha)^(k - 1 - s); B and C then leave out the smallest, not the last."""
    steps, R = [40, 60, 50], 8000
    told: dict[str, Any] = {"L": 1.0, "Delta": 1.0, "steps": steps, "R": R}
    s = ud.theory.fedprox(**told)
    q, c = 1 - s.alpha, ud.theory.nova_constants(steps, alpha=s.alpha)
    first = [q ** np.arange(tau - 1) for tau in steps]  # of the tau - 1 steps before the last gradient
    B = sum(w * (each**2).sum() for w, each in zip(c.w, first, strict=True))
    C = max((1 - q**tau) / s.alpha * each.sum() for tau, each in zip(steps, first, strict=True))
    noisy, unlike = ud.theory.fedprox(**told, sigma=1.0), ud.theory.fedprox(**told, kappa=1.0)
    assert noisy.floor == pytest.approx(4 * s.lr * c.A / 3 + 6 * s.lr**2 * B)
    assert unlike.floor == pytest.approx(12 * s.lr**2 * C)
    assert B > c.B and C > c.C


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ud.theory.nova_constants([]), "steps lists the local steps"),
        (lambda: ud.theory.nova_constants(5), "steps lists the local steps"),  # pyright: ignore
        (lambda: ud.theory.nova_constants([2, 0]), "steps must lie in"),
        (lambda: ud.theory.nova_constants([2, float("nan")]), "steps must be a whole number"),  # pyright: ignore
        (lambda: ud.theory.nova_constants([2, 3], p=[float("nan"), 1.0]), "2 weights that are not negative"),
        (
            lambda: ud.theory.inconsistency_bound(-1.0, ud.theory.nova_constants([2]), kappa=1.0),
            "surrogate must lie in",
        ),
        (lambda: ud.theory.fedavg_limit(quadratic(), steps=3, lr=9.0), r"do not end anywhere, .* not inside \(0, 2\)"),
        (lambda: ud.theory.nova_constants([2, 2.5]), "whole number"),  # pyright: ignore
        (
            lambda: ud.theory.nova_constants([2, 3], p=[0.5, 0.6]),
            "2 weights that are not negative and sum to one are needed",
        ),
        (
            lambda: ud.theory.fedavg_limit(quadratic(), steps=[1, 2], lr=0.1),
            "a number of steps for each client is needed, got clients = 6 and numbers = 2",
        ),
        (lambda: ud.theory.fedavg_limit(quadratic(), steps=2, lr=0.0), "lr must lie in"),
        (lambda: ud.theory.fedavg_limit(quadratic(), steps=2, lr=0.1, mu=20.0), "alpha must"),
        (lambda: ud.theory.fedavg_limit(3, steps=2, lr=0.1), "ud.Quadratic is needed"),  # pyright: ignore
        (lambda: ud.theory.fednova(L=1, Delta=1, steps=[2], R=9, B2=0.5), "B2 must lie in"),
    ],
)
def test_wrong_input_is_named(call: Any, words: str) -> None:
    with pytest.raises(ud.InvalidInput, match=words):
        call()
