"""Runs on real data: small, but what people come for."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.real_data import real_data


@pytest.fixture(autouse=True)
def data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(real_data()))


load = cache(ud.load)


def mnist(clients: Any, seed: int = 0) -> ud.ModelProblem:
    """Evaluated on 2,000 of the test samples, which is half of the time."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"model": ud.models.mlp(784, 200, 10), "loss": F.cross_entropy}
    return ud.federate(load("mnist"), clients=clients, seed=seed, test_samples=2000, **settings)


def rounds_to(target: float, algorithm: Any, problem: Any, lr: float, most: int, seed: int) -> int | None:
    """The first round with that test accuracy; 16 steps of 32 samples, 10 clients a round."""
    local, who = ud.Local(steps=16, batch=32, lr=lr), ud.Uniform(10)
    settings: dict[str, Any] = {"participation": who, "local": local, "seed": seed}
    for r in ud.rounds(algorithm, problem, rounds=most, **settings):
        if r.metrics["accuracy"] >= target:
            return r.round
    return None


@pytest.mark.slow
def test_fedavg_on_iid_mnist_reaches_97_percent_in_100_rounds() -> None:
    assert rounds_to(0.97, ud.FedAvg(), mnist(ud.IID(100)), lr=0.1, most=100, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_scaffold_m_is_ahead_of_fedavg_on_non_iid_mnist(seed: int) -> None:
    """Dirichlet 0.2, beta 0.2: with the step size that suits it SCAFFOLD-M has 95 % while FedAvg, with any step size
    of the papers' grid that learns at all in this time, has not."""
    problem = mnist(ud.Dirichlet(100, alpha=0.2), seed)
    needed = rounds_to(0.95, ud.ScaffoldM(beta=0.2), problem, lr=0.5, most=60, seed=seed)
    assert needed is not None
    for lr in (0.1, 0.5):  # at 0.05 it is slower still (docs/data.md)
        assert rounds_to(0.95, ud.FedAvg(), problem, lr, most=needed, seed=seed) is None


@pytest.mark.slow
@pytest.mark.xdist_group("cifar")
def test_lenet_on_cifar10(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(cifar10))
    data = ud.load("cifar10")
    assert data.test is not None
    X, Y = data.test
    torch.manual_seed(0)
    problem = ud.federate(
        data,
        (X[:300], Y[:300]),
        model=ud.models.lenet(),
        loss=F.cross_entropy,
        clients=ud.Dirichlet(100, alpha=0.5),
        augment=ud.CropFlip(),
    )
    assert problem.engine == "sequential"
    local = ud.Local(steps=8, batch=16, lr=0.05)
    history = ud.run(ud.GHBM(tau=10), problem, rounds=8, participation=ud.Uniform(5), local=local).history
    assert history[-1].metrics["loss"] < history[0].metrics["loss"] - 0.05


NATURAL: dict[str, tuple[Any, ud.Local]] = {
    "mnist-writers": (lambda: ud.models.mlp(784, 50, 10), ud.Local(epochs=1, batch=20, lr=0.1)),
    "hapt": (lambda: ud.models.mlp(6 * 128, 50, 12), ud.Local(epochs=1, batch=32, lr=0.05)),
    "heart": (lambda: ud.models.logistic(13, 2), ud.Local(epochs=1, batch=16, lr=0.1)),
    "shakespeare": (lambda: ud.models.char_lstm(), ud.Local(steps=3, batch=10, lr=1.0)),
}


@pytest.mark.parametrize("name", NATURAL)
def test_natural_federations(name: str) -> None:
    make, local = NATURAL[name]
    torch.manual_seed(0)
    data = load(name)
    assert data.test is not None and data.clients is not None
    few = data.test[0][:500], data.test[1][:500]
    problem = ud.federate(data, few, model=make(), loss=F.cross_entropy, clients=ud.Natural(2))
    assert problem.N == len(data.client_names)
    who = ud.Uniform(min(5, problem.N))
    history = ud.run(ud.ScaffoldM(0.2), problem, rounds=8, participation=who, local=local).history
    assert history[-1].metrics["loss"] < history[0].metrics["loss"]


def test_parkinsons_is_a_regression() -> None:
    data = ud.load("parkinsons")
    problem = ud.federate(data, model=nn.Linear(19, 1), loss=F.mse_loss, clients=ud.Natural())
    local = ud.Local(epochs=1, batch=32, lr=0.001)
    history = ud.run(ud.Scaffold(), problem, rounds=10, participation=ud.Uniform(10), local=local).history
    assert set(history[-1].metrics) == {"loss", "mae", "r2"}
    assert history[-1].metrics["loss"] < history[0].metrics["loss"]
