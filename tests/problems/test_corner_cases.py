"""Corner cases of models on data: uneven clients, unusual losses and layers, targets of many forms."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.small_model import X, federation, mlp
from tests.support.toy_problem import gap, path

SIZES = [3, 11, 10, 10, 10, 7, 13, 20, 17]


def uneven(**more: Any) -> ud.ModelProblem:
    ends = np.cumsum([0, *SIZES])
    parts = [list(range(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return federation(clients=parts, **more)


@pytest.mark.parametrize("local", [{"epochs": 1, "batch": 8}, {"steps": 3}], ids=str)
def test_clients_of_all_sizes_give_the_same_bits_in_any_chunk(local: dict[str, Any]) -> None:
    problem = uneven()
    settings: dict[str, Any] = {
        "rounds": 3,
        "local": ud.Local(lr=0.1, **local),
        "engine": "batched",
    }
    paths = [path(ud.Scaffold(), problem, chunk=c, **settings) for c in (1, 2, 3, 4, 9)]
    for other in paths[1:]:
        assert (other == paths[0]).all()


LOSSES: dict[str, Any] = {
    "class weights": lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([0.2, 1.0, 5.0]).double()),
    "ignored targets": lambda o, t: F.cross_entropy(o, t, ignore_index=1),
    "a sum": lambda o, t: F.cross_entropy(o, t, reduction="sum") / 10,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_any_loss_is_the_same_in_both_engines(loss: str) -> None:
    problem = uneven(loss=LOSSES[loss])
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(epochs=1, batch=8, lr=0.1)}
    a, b = (path(ud.FedAvg(), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-9


def test_statistics_of_a_minibatch_hold_nobody_elses_samples() -> None:
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    net = nn.Sequential(nn.Linear(6, 5), norm, nn.ReLU(), nn.Linear(5, 3)).double()
    problem = uneven(model=net)
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, lr=0.1)}
    a, b = (path(ud.FedAvg(), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-9


def test_training_and_evaluation_mode_do_not_leak() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x) * (2 if self.training else 1)

    problem = federation(model=Moody().double())
    ends = [
        path(ud.FedAvg(), problem, rounds=4, engine=e, evaluate_every=n)[-1]
        for e in ("sequential", "batched")
        for n in (1, 9)
    ]
    assert max(gap(end, ends[0]) for end in ends) < 1e-12


def test_full_gradients_draw_nothing() -> None:
    net = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 3)).double()
    problem = federation(model=net)
    paths = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        paths.append(path(ud.MimeLite(opt="sgdm"), problem, rounds=3))
    assert (paths[0] == paths[1]).all()


def test_regression_with_a_column_of_targets() -> None:
    data = X, X[:, :1] * 2
    problem = ud.federate(data, model=nn.Linear(6, 1).double(), loss=F.mse_loss, clients=ud.IID(7))
    local = ud.Local(epochs=1, batch=8, lr=0.05)
    assert ud.run(ud.Scaffold(), problem, rounds=30, local=local).history[-1].metrics["loss"] < 0.5


def test_x0_from_parameters_and_runs_without_gradients() -> None:
    problem = federation()
    x0 = nn.utils.parameters_to_vector(mlp().parameters())
    result = ud.run(ud.FedAvg(), problem, rounds=2, x0=x0)
    assert not result.x.requires_grad
    with torch.no_grad():
        ends = [ud.run(ud.FedAvg(), problem, rounds=2, engine=e).x for e in ("sequential", "batched")]
    assert torch.allclose(ends[0], result.x, rtol=0, atol=1e-12)
    assert torch.allclose(ends[1], result.x, rtol=0, atol=1e-12)


def test_clients_in_many_forms() -> None:
    masks = [np.arange(101) < 40, np.arange(101) >= 40]
    names = [0] * 40 + [1] * 61
    forms: list[Any] = [
        masks,
        names,
        np.array(names),
        torch.tensor(names),
        [range(40), range(40, 101)],
    ]
    for form in forms:
        problem = federation(clients=form)
        assert [problem.size(i) for i in range(2)] == [40, 61]
        assert sorted(problem.samples(0).tolist()) == list(range(40))


def test_numpy_numbers_are_numbers() -> None:
    two: Any = np.int64(2)
    local = ud.Local(steps=two, batch=two, lr=float(np.float32(0.1)), momentum=np.float64(0.5))
    result = ud.run(
        ud.FedAvg(), federation(), rounds=two, local=local, seed=two,
        participation=ud.Uniform(two),
    )  # fmt: skip
    assert len(result.history) == 2
    assert ud.GHBM(tau=two).tau == 2


def test_a_singular_quadratic_is_fine() -> None:
    H = torch.diag(torch.tensor([1.0, 0.0]).double()).repeat(3, 1, 1)
    e = torch.tensor([[1.0, 0], [2, 0], [3, 0]]).double()
    result = ud.run(ud.FedAvg(), ud.Quadratic(H, e), rounds=200, local=ud.Local(lr=0.2))
    assert result.history[-1].metrics["distance"] < 1e-10


def test_prepare_sees_one_batch_dimension_in_every_engine() -> None:
    images = torch.rand(60, 1, 4, 4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    problem = ud.federate(
        (images, torch.arange(60) % 3),
        model=net,
        loss=F.cross_entropy,
        clients=ud.IID(5),
        prepare=lambda b: b - b.mean((1, 2, 3), keepdim=True),
    )
    a, b = (path(ud.FedAvg(), problem, rounds=3, engine=e) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-9


def test_large_clients_gradients_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = federation(clients=ud.IID(2))
    whole = problem.full_grad(problem.x0, [0])
    monkeypatch.setattr("undrift.problems.evaluation.EVALUATION_BATCH", 7)
    assert torch.allclose(problem.full_grad(problem.x0, [0]), whole, rtol=0, atol=1e-12)


def test_numpys_randomness_in_a_model_is_refused() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x) * float(np.random.rand())

    with pytest.raises(ud.InvalidInput, match="numpy's or Python's random numbers"):
        federation(model=Skips().double())


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_yes_and_no_are_targets(engine: str) -> None:
    inputs = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    yes = inputs.sum(1) > 0

    def trained(targets: torch.Tensor) -> ud.Result:
        torch.manual_seed(0)
        problem = ud.federate(
            (inputs, targets),
            model=nn.Linear(5, 1).double(),
            loss=lambda o, t: F.binary_cross_entropy_with_logits(o.squeeze(1), t.double()),
            clients=ud.Dirichlet(4, alpha=1.0),
        )
        return ud.run(
            ud.FedAvg(), problem, rounds=3, local=ud.Local(steps=2, batch=3), engine=engine,
            metrics=("test", "clients", "f1"), progress=False,
        )  # fmt: skip

    as_bool, as_numbers = trained(yes), trained(yes.long())
    assert torch.equal(as_bool.x, as_numbers.x)
    assert as_bool.history[-1].metrics == as_numbers.history[-1].metrics
    assert as_bool.history[-1].metrics["accuracy"] > 0.5


def test_a_refusal_of_shapes_is_not_preceded_by_warnings() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(ud.InvalidInput, match="broadcast against each other"):
            ud.federate((X, X[:, 0]), model=nn.Linear(6, 1).double(), loss=F.mse_loss, clients=ud.IID(4))
    assert not said


def test_what_warns_and_is_not_refused_still_warns() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        warnings.warn("look here", stacklevel=1)
        return F.cross_entropy(output, target)

    with pytest.warns(UserWarning, match="look here"):
        uneven(loss=loss)
