"""Torch models on data: flat vectors, minibatches, engines that agree, partitions."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import undrift as ud
from tests.federation import gap, path
from undrift.keyed import Key
from undrift.problems.flat import FlatModel

RNG = np.random.default_rng(0)
X = torch.as_tensor(RNG.normal(size=(101, 6)))
Y = torch.as_tensor(RNG.integers(0, 3, size=101))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def federation(**more: Any) -> ud.ModelProblem:
    arguments: dict[str, Any] = {"model": mlp(), "loss": F.cross_entropy, "clients": ud.IID(7)}
    return ud.federate((X, Y), **(arguments | more))


METHODS = [
    ud.FedAvg(),
    ud.Scaffold(option=1, B=2),
    ud.ScaffoldMVR(0.3),
    ud.Mime(opt="sgdm"),
    ud.FedHBM(),
    ud.FedNova(mu=0.1),
]


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: a.spec.name)
@pytest.mark.parametrize(
    "local",
    [
        {"steps": 5, "batch": 4},
        {"epochs": 1, "batch": 4},  # short last minibatches
        {"epochs": (1, 3), "batch": 6, "weight_decay": 0.01},
        {"steps": [1, 5, 2, 4, 3, 1, 6], "batch": 64, "clip": 0.5},  # more than a client has
        {"steps": 2, "batch": None},
    ],
    ids=str,
)
def test_engines_agree_on_ragged_data(algorithm: Any, local: dict[str, Any]) -> None:
    problem = federation()
    settings: dict[str, Any] = {
        "rounds": 5, "participation": ud.Uniform(4), "local": ud.Local(lr=0.1, **local), "seed": 1
    }  # fmt: skip
    one = path(algorithm, problem, engine="sequential", **settings)
    all_ = path(algorithm, problem, engine="batched", **settings)
    assert gap(all_, one) < 1e-9
    assert np.abs(one[-1] - one[0]).max() > 1e-3
    for chunk in (1, 3):
        assert (path(algorithm, problem, engine="batched", chunk=chunk, **settings) == all_).all()


def test_gradient_is_autograds() -> None:
    problem, net = federation(), mlp()
    minibatches = problem.draw(Key(0, 1), [3], [2], 5)
    samples = minibatches.samples[0, 1, : int(minibatches.counts[0, 1])]
    F.cross_entropy(net(X[samples]), Y[samples]).backward()
    expected = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    assert torch.allclose(problem.grad(problem.x0, minibatches, 1), expected, rtol=0, atol=1e-14)


def test_an_epoch_visits_every_sample_once() -> None:
    problem = federation()
    for batch in (1, 4, 14, 15, 100, None):
        for client in range(7):
            K = problem.steps_per_epoch(client, batch)
            drawn = problem.draw(Key(0, 1), [client], [2 * K], batch)
            for first in (0, K):
                seen = [
                    int(s)
                    for k in range(first, first + K)
                    for s in drawn.samples[0, k, : int(drawn.counts[0, k])]
                ]
                mine = problem.index[problem.ends[client] : problem.ends[client + 1]].tolist()
                assert sorted(seen) == sorted(mine)


def test_minibatches_depend_on_their_key_only() -> None:
    problem = federation()
    alone = problem.draw(Key(0, 3), [2], [6], 4).samples[0]
    beside = problem.draw(Key(0, 3), [0, 2, 5], [9, 6, 2], 4).samples[1, :6]
    assert torch.equal(alone, beside)
    assert not torch.equal(alone, problem.draw(Key(0, 4), [2], [6], 4).samples[0])
    assert not torch.equal(alone, problem.draw(Key(1, 3), [2], [6], 4).samples[0])


def test_steps_and_epochs_are_one_stream() -> None:
    problem = federation(clients=[range(12 * i, 12 * (i + 1)) for i in range(8)])
    a, b = (
        path(ud.FedAvg(), problem, rounds=3, local=ud.Local(batch=4, lr=0.1, **kind))
        for kind in ({"epochs": 2}, {"steps": 6})
    )
    assert (a == b).all()


def test_result_gives_the_module_back() -> None:
    problem = federation(test=(X[:20], Y[:20]))
    result = ud.run(ud.FedAvg(), problem, rounds=30, local=ud.Local(epochs=1, batch=8, lr=0.3))
    net = result.model()
    with torch.no_grad():
        output = net(X[:20])
    assert not net.training
    assert result.history[-1].metrics["loss"] == pytest.approx(
        float(F.cross_entropy(output, Y[:20]))
    )
    accuracy = float((output.argmax(1) == Y[:20]).double().mean())
    assert result.history[-1].metrics["accuracy"] == pytest.approx(accuracy)
    assert accuracy > 0.5


def test_the_users_model_is_not_touched() -> None:
    net = mlp()
    before = [p.clone() for p in net.parameters()]
    problem = ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=ud.IID(3))
    ud.run(ud.FedAvg(), problem, rounds=2, local=ud.Local(steps=2))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_frozen_and_tied_parameters() -> None:
    net: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    net[1].weight = net[0].weight  # tied: counted once
    frozen = net[2].bias.requires_grad_(False)  # stays out
    flat = FlatModel(net)
    assert flat.x0.numel() == 16 + 4 + 4 + 8
    x = torch.randn(4)[None]
    assert torch.equal(flat(flat.x0, x), net(x))
    moved: Any = flat.module(flat.x0 + 1)
    assert torch.equal(moved[0].weight, moved[1].weight)
    assert torch.equal(moved[2].bias, frozen)


def test_dropout_repeats_on_the_same_minibatch() -> None:
    net = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, 3)).double()
    problem = ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=ud.IID(4))
    minibatches = problem.draw(Key(0, 1), [0], [2], 5)
    a, b, c = (problem.grad(problem.x0, minibatches, k) for k in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert problem.engine == "sequential"
    first, again = (path(ud.FedAvg_M_VR(0.3), problem, rounds=3, engine="auto") for _ in range(2))
    assert (first == again).all()
    with pytest.raises(ud.InvalidInput, match="dropout"):
        ud.run(ud.FedAvg(), problem, rounds=1, engine="batched")


def test_auto_picks_the_engine_that_fits() -> None:
    assert federation().engine == "batched"
    images, labels = torch.randn(12, 1, 8, 8), torch.arange(12) % 3
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    problem = ud.federate((images, labels), model=conv, loss=F.cross_entropy, clients=ud.IID(3))
    assert problem.engine == "sequential"
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=2)}
    a, b = (path(ud.Scaffold(), problem, engine=e, **settings) for e in ("auto", "batched"))
    assert np.abs(a - b).max() < 1e-5

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.cell(x[:, 0])[0][:, -1])

    problem = ud.federate(
        (images, labels), model=Recurrent(), loss=F.cross_entropy, clients=ud.IID(3)
    )
    assert problem.engine == "sequential"
    assert ud.run(ud.Scaffold(), problem, **settings).stopped is None


def test_datasets_arrays_and_client_names() -> None:
    arrays = X.numpy(), Y.numpy()
    names = np.array(["berlin", "oslo", "rome"])[np.arange(101) % 3]
    problems = [
        ud.federate(data, model=mlp(), loss=F.cross_entropy, clients=names)
        for data in ((X, Y), arrays, TensorDataset(X, Y))
    ]
    ends = [
        path(ud.FedAvg(), p, rounds=2, local=ud.Local(epochs=1, batch=10))[-1] for p in problems
    ]
    assert (ends[0] == ends[1]).all() and (ends[0] == ends[2]).all()
    assert [problems[0].size(i) for i in range(3)] == [34, 34, 33]


def test_weights_by_samples() -> None:
    parts = [range(10), range(10, 101)]
    problem = federation(clients=parts, weights="samples")
    assert problem.weights == pytest.approx((10 / 101, 91 / 101))
    local = ud.Local(steps=1, lr=1.0)
    ours = path(ud.FedAvg(), problem, rounds=1, local=local)[-1]
    whole = federation(clients=[range(101)])
    assert gap(ours, path(ud.FedAvg(), whole, rounds=1, local=local)[-1]) < 1e-12


def test_synthetic_repeats_and_differs() -> None:
    a, b, c = (ud.Synthetic(1, 1, N=8, seed=s, dtype=torch.float64) for s in (0, 0, 1))
    assert torch.equal(a.X, b.X) and torch.equal(a.Y, b.Y)
    assert a.X.shape != c.X.shape or not torch.equal(a.X, c.X)
    assert a.X.shape[1] == 60 and set(a.Y.tolist()) <= set(range(10))
    assert all(a.size(i) >= 45 for i in range(8))
    assert a.weights[0] == pytest.approx(a.size(0) / len(a.X))
    result = ud.run(ud.FedNova(), a, rounds=20, local=ud.Local(epochs=1, batch=20, lr=0.02))
    assert result.history[-1].metrics["loss"] < result.history[0].metrics["loss"]


# partitions


@given(
    st.integers(1, 30), st.sampled_from([0.0, 0.01, 0.3, 1.0, 100.0]), st.integers(0, 99), st.data()
)
@settings(max_examples=80, deadline=None)
def test_dirichlet_deals_every_sample_once(N: int, alpha: float, seed: int, data: Any) -> None:
    classes = data.draw(st.integers(1, 6))
    n = data.draw(st.integers(60, 300))
    labels = np.random.default_rng(seed).integers(0, classes, n)
    if alpha == 0 and N < len(np.unique(labels)):
        with pytest.raises(ud.InvalidInput, match="classes need as many clients"):
            ud.Dirichlet(N, alpha).split(n, labels, seed)
        return
    try:
        parts = ud.Dirichlet(N, alpha).split(n, labels, seed)
    except ud.InvalidInput as error:
        assert "fewer samples than clients" in str(error)
        return
    assert len(parts) == N
    assert sorted(np.concatenate(parts)) == list(range(n))
    assert min(map(len, parts)) >= 1
    if alpha > 0:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert all(len(set(labels[p])) == 1 for p in parts)
    again = ud.Dirichlet(N, alpha).split(n, labels, seed)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


def test_dirichlet_mixtures_have_the_right_spread() -> None:
    """While the pools last, a client's share of a class has the variance of Dirichlet(alpha)."""
    labels = np.repeat(np.arange(5), 4000)
    for alpha in (0.3, 2.0):
        parts = ud.Dirichlet(200, alpha).split(len(labels), labels, 0)[:60]
        shares = np.array([np.bincount(labels[p], minlength=5) / len(p) for p in parts])
        expected = 0.2 * 0.8 / (5 * alpha + 1)
        assert shares.var() == pytest.approx(expected, rel=0.25)


@given(st.integers(1, 50), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_iid_deals_every_sample_once(N: int, seed: int) -> None:
    parts = ud.IID(N).split(57, None, seed)
    assert sorted(np.concatenate(parts)) == list(range(57))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
