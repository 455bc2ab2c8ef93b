"""Constants of problems: exact on quadratics, near a dense Hessian's on models."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.quadratics import P, quadratic


@given(seed=st.integers(0, 10_000), N=st.integers(1, 5), d=st.integers(1, 8))
@settings(deadline=None, max_examples=30)
def test_exact_on_quadratics(seed: int, N: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(N, d, d))
    H = np.einsum("nij,nkj->nik", A, A) + 0.1 * np.eye(d)
    e = rng.normal(size=(N, d))
    p = rng.uniform(0.1, 1, N)
    p = p / p.sum()
    problem = ud.Quadratic(torch.as_tensor(H), torch.as_tensor(e), p.tolist())
    x = rng.normal(size=d)
    found = ud.theory.estimate(problem, torch.as_tensor(x))
    values, of_f = np.linalg.eigvalsh(H), np.linalg.eigvalsh(np.einsum("n,nij->ij", p, H))
    g = H @ x - e
    mean = p @ g
    zeta = np.sqrt(p @ ((g - mean) ** 2).sum(1))
    assert found.L == pytest.approx(values.max(), rel=1e-10)
    assert found.L_f == pytest.approx(of_f.max(), rel=1e-10)
    assert found.mu == pytest.approx(values.min(), rel=1e-8)
    assert found.mu_f == pytest.approx(of_f.min(), rel=1e-8)
    assert found.zeta == pytest.approx(zeta, rel=1e-10, abs=1e-12)
    assert found.gradient == pytest.approx(np.linalg.norm(mean), rel=1e-10)
    assert found.G0 == pytest.approx(p @ (g**2).sum(1), rel=1e-10)
    assert found.sigma == 0


def test_noise_is_that_of_minibatches() -> None:
    q = quadratic()
    problem = ud.Quadratic(q.H, q.e, variance=4.0)
    found = ud.theory.estimate(problem, draws=4000)
    assert found.sigma == pytest.approx(2.0, rel=0.03)
    assert found.L == pytest.approx(np.linalg.eigvalsh(q.H.numpy()).max(), rel=1e-10)


def test_repeated_and_vanishing_curvature() -> None:
    H = torch.diag_embed(torch.tensor([[2.0, 2.0, 2.0], [1.0, 0.0, 0.0]]).double())
    found = ud.theory.estimate(ud.Quadratic(H, torch.ones(2, 3).double()))
    assert found.L == pytest.approx(2.0)
    assert found.mu is None  # one client is flat
    assert found.mu_f == pytest.approx(1.0)
    saddle = ud.Quadratic(torch.diag_embed(torch.tensor([[1.0, -3.0]]).double()), torch.ones(1, 2).double())
    found = ud.theory.estimate(saddle)
    assert found.L == pytest.approx(3.0) and found.mu is None


def test_many_parameters_are_told_from_a_few_products() -> None:
    values = np.concatenate([np.linspace(1, 2, 299), [10.0]])
    H = torch.diag_embed(torch.as_tensor(values)[None])
    found = ud.theory.estimate(ud.Quadratic(H, torch.zeros(1, 300).double()), iterations=60)
    assert found.L == pytest.approx(10.0, rel=1e-8)
    assert found.mu is None or found.mu == pytest.approx(1.0, rel=1e-2)


def federated() -> ud.ModelProblem:
    torch.manual_seed(0)
    X, Y = torch.randn(60, 3).double(), torch.arange(60) % 2
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    return ud.federate((X, Y), model=net.double(), loss=F.cross_entropy, clients=ud.IID(3))


def test_models() -> None:
    """Against dense Hessians from differences of full gradients."""
    problem = federated()
    x = problem.x0
    D = x.numel()
    dense = []
    for i in range(3):
        step = 1e-5 * torch.eye(D, dtype=x.dtype)
        ahead, behind = (problem.full_grad(x + way * step, [i] * D) for way in (1, -1))
        H = ((ahead - behind) / 2e-5).numpy()
        dense.append((H + H.T) / 2)
    found = ud.theory.estimate(problem, batch=5)
    values = [np.abs(np.linalg.eigvalsh(H)).max() for H in dense]
    tolerance = 1e-6
    assert found.L == pytest.approx(max(values), rel=tolerance)
    assert found.L_f == pytest.approx(np.abs(np.linalg.eigvalsh(np.mean(dense, axis=0))).max(), rel=tolerance)
    assert found.sigma > 0 and found.zeta > 0
    assert ud.theory.estimate(problem).sigma == pytest.approx(0, abs=1e-6)  # whole batches
    fewer = ud.theory.estimate(problem, clients=[0])
    assert fewer.L == pytest.approx(values[0], rel=tolerance)
    assert fewer.zeta == pytest.approx(found.zeta)


def test_the_same_again_and_weights_count() -> None:
    a, b = (ud.theory.estimate(federated(), batch=5, seed=3) for _ in range(2))
    assert a == b
    even, uneven = (ud.theory.estimate(quadratic(w)) for w in (None, P))
    assert even.L == uneven.L and even.L_f != uneven.L_f


def test_estimates_feed_prescriptions() -> None:
    problem = quadratic()
    c = ud.theory.estimate(problem)
    Delta = problem.evaluate(problem.x0)["gap"]
    s = ud.theory.fedavg_m(L=c.L, Delta=Delta, G0=c.G0, sigma=c.sigma, N=6, K=3, R=50)
    result = ud.run(s.method(), problem, rounds=50, local=s.local())
    squares = [r.metrics["grad_norm"] ** 2 for r in result.history]
    assert np.mean([c.gradient**2, *squares[:-1]]) <= s.bound()


def test_wrong_input_is_named() -> None:
    problem = quadratic()
    with pytest.raises(ud.InvalidInput, match=r"x has \[3\] numbers, the model \[4\]"):
        ud.theory.estimate(problem, torch.zeros(3))
    with pytest.raises(ud.InvalidInput, match="x has NaN"):
        ud.theory.estimate(problem, torch.full((4,), torch.nan))
    with pytest.raises(ud.InvalidInput, match=r"clients are some of 0, ..., 5, got \[6\]"):
        ud.theory.estimate(problem, clients=[6])
    with pytest.raises(ud.InvalidInput, match="draws must lie in"):
        ud.theory.estimate(problem, draws=1)
    with pytest.raises(ud.InvalidInput, match="batch must lie in"):
        ud.theory.estimate(problem, batch=0)
    with pytest.raises(ud.InvalidInput, match=r"estimate: str has no full_grad\(y, clients\)"):
        ud.theory.estimate("digits")  # pyright: ignore
