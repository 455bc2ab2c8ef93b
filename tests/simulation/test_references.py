"""Training without a federation is what it says: in numpy, with the same minibatches and without a byte."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.everywhere import federation
from undrift.simulation.references import VISITS

SIZES, D, LR, K, ROUNDS = (4, 6, 5), 3, 0.1, 2, 7


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


A, B = normal(sum(SIZES), D, seed=0), normal(sum(SIZES), 1, seed=1)
TA, TB = normal(9, D, seed=2), normal(9, 1, seed=3)
EDGES = np.cumsum([0, *SIZES])


def least_squares(test: Any, **more: Any) -> Any:
    model = nn.Linear(D, 1, bias=False).double()
    parts = {f"h{i}": (A[a:b], B[a:b]) for i, (a, b) in enumerate(zip(EDGES, EDGES[1:], strict=False))}
    return ud.federate(parts, test, model=model, loss=F.mse_loss, **more)


def descended(x: np.ndarray, rows: slice, steps: int) -> np.ndarray:
    """Gradient descent on the mean of squares of some rows."""
    a, b = A[rows].numpy(), B[rows].numpy()[:, 0]
    for _ in range(steps):
        x = x - LR * 2 * a.T @ (a @ x - b) / len(b)
    return x


def mse(x: np.ndarray, a: Tensor, b: Tensor) -> float:
    return float(np.mean((a.numpy() @ x - b.numpy()[:, 0]) ** 2))


OWNED = {"h0": (TA[:2], TB[:2]), "h1": (TA[2:6], TB[2:6]), "h2": (TA[6:], TB[6:])}
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "local": ud.Local(steps=K, batch=None, lr=LR),
    "metrics": ("test", "clients"),
}


@pytest.mark.parametrize("kind", ["centralised", "local-only", "fine-tuned"])
def test_references_are_gradient_descent(kind: str) -> None:
    problem = least_squares(OWNED)
    x0, start = problem.x0.numpy(), normal(D, seed=4)
    rows = [slice(a, b) for a, b in zip(EDGES, EDGES[1:], strict=False)]
    if kind == "centralised":
        models = [descended(x0, slice(None), ROUNDS * K * len(SIZES))] * 3
    elif kind == "local-only":
        models = [descended(x0, each, ROUNDS * K) for each in rows]
    else:
        models = [descended(start.numpy(), each, VISITS * K) for each in rows]
    settings: dict[str, Any] = SETTINGS | ({"model": start} if kind == "fine-tuned" else {})
    result = ud.reference(kind, problem, **settings)
    found = result.history[-1].metrics
    own = [mse(x, *OWNED[name]) for x, name in zip(models, OWNED, strict=True)]
    assert [found[f"client: {name} loss"] for name in OWNED] == pytest.approx(own, rel=1e-9)
    assert found["loss"] == pytest.approx(np.average(own, weights=[2, 4, 3]), rel=1e-9)
    assert all(r.bytes_up == r.bytes_down == 0 for r in result.history)


def test_without_test_clients_every_model_meets_all_test_samples() -> None:
    problem = least_squares((TA, TB))
    found = ud.reference("local-only", problem, **SETTINGS).history[-1].metrics["loss"]
    rows = [slice(a, b) for a, b in zip(EDGES, EDGES[1:], strict=False)]
    each = [mse(descended(problem.x0.numpy(), mine, ROUNDS * K), TA, TB) for mine in rows]
    assert found == pytest.approx(np.mean(each), rel=1e-9)


def test_clients_alone_have_the_minibatches_of_the_federation() -> None:
    """With one round a method's local model is that of the client alone: FedAvg's mean is the mean of these."""
    problem = federation()
    settings: dict[str, Any] = {"rounds": 1, "local": ud.Local(steps=3, batch=4, lr=0.1), "seed": 3}
    alone = ud.reference("local-only", problem, **settings)
    together = ud.run(ud.FedAvg(), problem, engine="sequential", **settings)
    models = alone.state.clients.gather(range(problem.N)).y
    assert torch.allclose(models.mean(0), together.x, rtol=1e-9)


def test_what_is_wrong_is_named() -> None:
    problem = least_squares(OWNED)
    with pytest.raises(ud.InvalidInput, match="unknown reference 'local'.*local-only"):
        ud.reference("local", problem, rounds=1)
    with pytest.raises(ud.InvalidInput, match="fine-tuned needs the model that it begins with"):
        ud.reference("fine-tuned", problem, rounds=1)
    quadratic: Any = ud.Quadratic(torch.eye(2).repeat(2, 1, 1), torch.zeros(2, 2))
    with pytest.raises(ud.InvalidInput, match="a reference needs a model on data"):
        ud.reference("centralised", quadratic, rounds=1)
