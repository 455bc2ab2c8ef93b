"""Torch models on data: flat vectors, minibatches, engines that agree, partitions."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import undrift as ud
from tests.support.small_model import X, Y, federation, mlp
from tests.support.toy_problem import gap, path
from undrift.core.rng import Key
from undrift.problems.flat import FlatModel

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
                seen = [int(s) for k in range(first, first + K) for s in drawn.samples[0, k, : int(drawn.counts[0, k])]]
                assert sorted(seen) == sorted(problem.samples(client).tolist())


def test_no_steps_draw_no_minibatches() -> None:
    minibatches = federation().draw(Key(0, 1), [0, 3], [0, 0], 5)
    assert minibatches.samples.shape[:2] == minibatches.counts.shape == (2, 0)


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
        path(ud.FedAvg(), problem, rounds=3, local=local)
        for local in (ud.Local(epochs=2, batch=4, lr=0.1), ud.Local(steps=6, batch=4, lr=0.1))
    )
    assert (a == b).all()


def test_result_gives_the_module_back() -> None:
    problem = federation(test=(X[:20], Y[:20]))
    result = ud.run(ud.FedAvg(), problem, rounds=30, local=ud.Local(epochs=1, batch=8, lr=0.3))
    net = result.model()
    with torch.no_grad():
        output = net(X[:20])
    assert not net.training
    assert result.history[-1].metrics["loss"] == pytest.approx(float(F.cross_entropy(output, Y[:20])))
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


def test_randomness_that_hides_in_a_model_is_seeded_and_not_batched() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(F.dropout(x, 0.5, self.training))

    problem = federation(model=Noisy().double())
    assert problem.engine == "sequential"
    first, again = (path(ud.FedAvg_M_VR(0.3), problem, rounds=3, engine="auto") for _ in range(2))
    assert (first == again).all()
    with pytest.raises(ud.InvalidInput, match="random numbers of its own"):
        ud.run(ud.FedAvg(), problem, rounds=1, engine="batched")


def test_a_buffer_that_changes_is_refused_by_name() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += len(x)
            return self.out(x)

    with pytest.raises(ud.InvalidInput, match="buffer 'seen'"):
        federation(model=Counts().double())


# augmentation


def test_crop_and_flip_does_what_it_says() -> None:
    image = torch.arange(2 * 3 * 5 * 5, dtype=torch.uint8).reshape(2, 3, 5, 5)
    augment = ud.CropFlip(pad=2)
    still = torch.tensor([[2, 2, 0], [2, 2, 0]])
    assert torch.equal(augment.apply(image, still), image)
    mirrored = torch.tensor([[2, 2, 1], [2, 2, 0]])
    assert torch.equal(augment.apply(image, mirrored)[0], image[0].flip(-1))
    moved = augment.apply(image, torch.tensor([[3, 1, 0], [2, 2, 0]]))[0]
    assert torch.equal(moved[:, :4, 1:], image[0, :, 1:, :4])
    assert (moved[:, 4] == 0).all() and (moved[:, :, 0] == 0).all()
    pair = augment.apply(image[None].repeat(4, 1, 1, 1, 1), mirrored[None].repeat(4, 1, 1))
    assert pair.shape == (4, 2, 3, 5, 5) and torch.equal(pair[3, 0], image[0].flip(-1))
    drawn = augment.draw(np.random.default_rng(0), (3000,))
    assert set(drawn[:, 0]) == set(range(5)) and abs(drawn[:, 2].mean() - 0.5) < 0.05


def test_engines_agree_with_augmentation_and_bytes() -> None:
    rng = np.random.default_rng(0)
    images = torch.as_tensor(rng.integers(0, 256, (60, 1, 6, 6)), dtype=torch.uint8)
    labels = torch.as_tensor(rng.integers(0, 3, 60))
    problem = ud.federate(
        (images, labels),
        model=nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double(),
        loss=F.cross_entropy,
        clients=ud.IID(7),
        prepare=lambda x: x.float() / 255,
        augment=ud.CropFlip(pad=1),
    )
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(epochs=1, batch=4, lr=0.3)}
    for algorithm in (ud.FedAvg(), ud.FedAvg_M_VR(0.3)):
        a, b = (path(algorithm, problem, engine=e, **settings) for e in ("sequential", "batched"))
        assert gap(a, b) < 1e-9
    minibatches = problem.draw(Key(0, 1), [0], [2], 4)
    assert torch.equal(*(problem.grad(problem.x0, minibatches, 0) for _ in range(2)))


# figures


def test_figures_on_request() -> None:
    problem = federation(test=(X[:30], Y[:30]), metrics=["test", "train", "clients", "gradient"], weights="samples")
    x = problem.x0
    found = problem.evaluate(x)
    assert set(found) == {
        "loss", "accuracy", "train_loss", "train_accuracy", "client_loss", "client_accuracy",
        "client_loss_worst_tenth", "client_accuracy_worst_tenth", "grad_norm",
    }  # fmt: skip
    each = [
        float(F.cross_entropy(problem.flat(x, X[problem.samples(i)]), Y[problem.samples(i)]).detach()) for i in range(7)
    ]
    assert found["client_loss"] == pytest.approx(np.mean(each))
    assert found["client_loss_worst_tenth"] == pytest.approx(max(each))
    gradient = sum(p * problem.full_grad(x, [i]) for i, p in enumerate(problem.weights))
    assert isinstance(gradient, torch.Tensor)
    assert found["grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-9)
    with pytest.raises(ud.InvalidInput, match="unknown metric 'tset'"):
        federation(metrics=["tset"])


def test_final_quality_and_best_model() -> None:
    result = ud.run(ud.FedAvg(), federation(), rounds=12, local=ud.Local(epochs=1, batch=8, lr=2.0))
    accuracy = [r.metrics["accuracy"] for r in result.history]
    assert result.final("accuracy", last=5) == pytest.approx(np.mean(accuracy[-5:]))
    assert result.final("accuracy") == accuracy[-1]  # a tenth of them, as in reports
    assert result.best is not None and result.best.value == max(accuracy)
    assert result.best.round == accuracy.index(max(accuracy)) + 1
    again = result.problem.evaluate(result.best.x)
    assert again["accuracy"] == result.best.value
    with pytest.raises(ud.InvalidInput, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        result.final("acuracy")


def test_describe_and_plot(capsys: pytest.CaptureFixture[str]) -> None:
    problem = federation(clients=ud.Dirichlet(7, alpha=0))
    problem.describe()
    told = capsys.readouterr().out
    assert "7 clients by Dirichlet(N=7, alpha=0, concentration" in told and "classes a client: 1.0 of 3" in told
    h = problem.heterogeneity()
    assert h.divergence == pytest.approx(2 / 3, abs=0.05)
    assert federation().heterogeneity().divergence < 0.3  # pyright: ignore[reportOptionalOperand]
    figure = problem.plot()
    assert len(figure.axes) == 3
    import matplotlib.pyplot as plt

    plt.close(figure)


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

    problem = ud.federate((images, labels), model=Recurrent(), loss=F.cross_entropy, clients=ud.IID(3))
    assert problem.engine == "sequential"
    assert ud.run(ud.Scaffold(), problem, **settings).stopped is None


def test_datasets_arrays_and_client_names() -> None:
    arrays = X.numpy(), Y.numpy()
    names = np.array(["berlin", "oslo", "rome"])[np.arange(101) % 3]
    problems = [
        ud.federate(data, model=mlp(), loss=F.cross_entropy, clients=names)
        for data in ((X, Y), arrays, TensorDataset(X, Y))
    ]
    ends = [path(ud.FedAvg(), p, rounds=2, local=ud.Local(epochs=1, batch=10))[-1] for p in problems]
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
