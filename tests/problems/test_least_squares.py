"""Least squares: gradients and optimum by hand, the same in every engine, and what variance reduction is for."""

from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.everywhere import models, other_engines, played
from undrift.core.rng import Key

N, n, d = 8, 20, 4


def problem(seed: int = 0, weights: Any = None) -> ud.LeastSquares:
    """Clients with truths of their own, and noisy targets."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(N, n, d))
    b = np.einsum("ijk,ik->ij", A, rng.normal(size=d) + rng.normal(size=(N, d))) + rng.normal(size=(N, n))
    return ud.LeastSquares(torch.as_tensor(A), torch.as_tensor(b), weights)


def test_everything_is_what_numpy_says() -> None:
    made = problem(weights=[i / 36 for i in range(1, N + 1)])
    A, b = made.A.view(N, n, d).numpy(), made.b.view(N, n).numpy()
    p = np.arange(1, N + 1) / 36
    rows = np.sqrt(p)[:, None] / np.sqrt(n)
    optimum = np.linalg.lstsq((rows[..., None] * A).reshape(-1, d), (rows * b).ravel(), rcond=None)[0]
    assert np.allclose(made.optimum, optimum, rtol=0, atol=1e-12)
    x = np.random.default_rng(1).normal(size=d)
    full = A[3].T @ (A[3] @ x - b[3]) / n
    assert np.allclose(made.full_grad(torch.as_tensor(x), [3]), full, rtol=0, atol=1e-12)
    loss = lambda y: sum(p[i] * ((A[i] @ y - b[i]) ** 2).mean() / 2 for i in range(N))
    found = made.evaluate(torch.as_tensor(x))
    assert found["loss"] == pytest.approx(loss(x), rel=1e-12)
    assert found["gap"] == pytest.approx(loss(x) - loss(optimum), rel=1e-10)
    drawn = made.draw(Key(0, 1), [3, 5], [9, 2], 3)  # seven minibatches a pass, the last of two samples
    assert drawn.counts.tolist() == [[3] * 6 + [2, 3, 3], [3, 3] + [0] * 7]
    assert set(drawn.samples[0, :7].flatten().tolist()[:20]) == set(range(60, 80))
    for k in (0, 6):
        mine = drawn.samples[0, k, : int(drawn.counts[0, k])].numpy() - 3 * n
        g = A[3][mine].T @ (A[3][mine] @ x - b[3][mine]) / len(mine)
        assert np.allclose(made.grad(torch.as_tensor(x), drawn, k), g, rtol=0, atol=1e-12)


@other_engines
def test_every_engine_computes_the_same(engine: str) -> None:
    how = {"problem": problem(), "local": ud.Local(steps=8, batch=3, lr=0.02)}
    for algorithm in (ud.ScaffoldMVR(0.3),) if engine == "compiled" else (ud.FedAvg(), ud.ScaffoldMVR(0.3)):
        expected = models(played(algorithm, "sequential", **how))
        assert np.allclose(models(played(algorithm, engine, **how)), expected, rtol=0, atol=1e-10)


def test_two_gradients_on_a_minibatch_differ_by_less_than_their_noise() -> None:
    """|g(x) - g(y) - (grad f(x) - grad f(y))| shrinks with |x - y|: with Quadratic's noise it would be zero."""
    made, x = problem(), torch.ones(d, dtype=torch.float64)
    drawn = made.draw(Key(0, 1), [0], [1], 1)
    noise = lambda y: made.grad(y, drawn, 0) - made.full_grad(y, [0])
    far, near = (float((noise(x + s) - noise(x)).norm()) for s in (1.0, 0.1))
    assert near == pytest.approx(far / 10, rel=1e-9) and far > 0.1


def floor(method: Any, made: ud.LeastSquares) -> float:
    local = ud.Local(steps=4, batch=1, lr=0.01, replacement=True)
    return ud.run(method, made, rounds=600, local=local, engine="batched", evaluate_every=5).final("gap", last=60)


@pytest.mark.parametrize("seed", [0, 1])
def test_variance_reduction_lowers_the_floor(seed: int) -> None:
    """With the same steps and the same beta (Cheng et al., (5) against (8)): at least by a factor of four."""
    made = problem(seed)
    assert floor(ud.FedAvg_M_VR(0.01, B=20), made) < floor(ud.FedAvg_M(0.01), made) / 4
    assert floor(ud.ScaffoldMVR(0.01, B=20), made) < floor(ud.ScaffoldM(0.01), made) / 4


def test_exact_gradients_are_those_of_a_quadratic() -> None:
    made = problem()
    other = ud.Quadratic(made.H, made.e)
    how: dict[str, Any] = {"rounds": 20, "local": ud.Local(steps=3, lr=0.05), "participation": ud.Uniform(3)}
    assert torch.allclose(ud.run(ud.Scaffold(), made, **how).x, ud.run(ud.Scaffold(), other, **how).x, atol=1e-12)
    assert ud.theory.estimate(made).L == pytest.approx(float(torch.linalg.eigvalsh(other.H).max()), rel=1e-8)


def test_refused() -> None:
    A = torch.ones(2, 3, 4)
    with pytest.raises(ud.InvalidInput, match=r"needs A \[N, n, d\] and b \[N, n\].*got \[2, 3, 4\].*and \[2, 4\]"):
        ud.LeastSquares(A, torch.ones(2, 4))
    with pytest.raises(ud.InvalidInput, match="b has NaN or Inf at client 1"):
        ud.LeastSquares(A, torch.tensor([[1.0, 2, 3], [1, float("nan"), 3]]))
