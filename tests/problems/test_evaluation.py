"""Models are evaluated alike, alone or several at once, whoever multiplies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import undrift as ud
from tests.support.small_model import X, Y, federation, mlp
from undrift.compiler.kernels.dense import OWN_PRODUCTS, fast_layers, own_products
from undrift.problems.evaluation import evaluate_each
from undrift.problems.model import ModelProblem
from undrift.simulation.batched_runs.problem import StackedProblem
from undrift.simulation.engines.choice import EngineChoice, cpp_compiler

WAYS = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")),
]
DIMS = [  # along which samples, layers and biases are mapped over; None: the same for all
    (None, 0, 0), (0, 0, 0), (1, 1, 1), (0, None, None), (None, None, 0), (None, 0, None), (0, 0, None),
]  # fmt: skip


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("own", WAYS)
@pytest.mark.parametrize("length", [5, 300])  # 300: long enough for products of our own
@pytest.mark.parametrize("lead", [(), (7,), (2, 150)], ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_layers_are_torchs_own(dims: Sequence[int | None], lead: tuple[int, ...], length: int, own: bool) -> None:
    shapes = (*lead, length), (6, length), (6,)
    given = [
        random(*shape) if dim is None else random(4, *shape).movedim(0, dim)
        for shape, dim in zip(shapes, dims, strict=True)
    ]
    layer = vmap(F.linear, in_dims=tuple(dims))
    with torch.no_grad(), own_products(own), fast_layers(several=True):
        found = layer(*given)
    assert torch.allclose(found, layer(*given), rtol=0, atol=1e-9)


@pytest.mark.parametrize("own", WAYS)
def test_a_layer_without_a_bias_and_a_layer_alone(own: bool) -> None:
    x, w, b = random(2, 3, 300), random(6, 300), random(6)
    with torch.no_grad(), own_products(own), fast_layers(several=True):
        assert torch.allclose(F.linear(x, w), x @ w.T, rtol=0, atol=1e-9)
        assert torch.allclose(F.linear(x, w, bias=b), x @ w.T + b, rtol=0, atol=1e-9)
        mapped = vmap(lambda w: F.linear(x, w))(w.view(2, 3, 300))
        assert torch.allclose(mapped[1], x @ w[3:].T, rtol=0, atol=1e-9)


def problem_of(**settings: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    data = random(50, 300), torch.arange(50) % 3
    return ud.federate(data, model=net, loss=F.cross_entropy, clients=ud.IID(5), **settings)


@pytest.mark.parametrize("own", WAYS)
@pytest.mark.parametrize("figures", [("test",), ("test", "clients", "train")], ids=str)
def test_several_models_are_evaluated_as_each_is_alone(
    figures: tuple[str, ...], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelProblem, "evaluation_batch", 20)
    problem = problem_of(metrics=figures)
    models = problem.x0 + random(30, problem.x0.numel())
    alone = [problem.evaluate(x) for x in models]
    with own_products(own):
        together = evaluate_each(problem, models)
        again = [problem.evaluate(x) for x in models]
    for expected, *found in zip(alone, together, again, strict=True):
        assert all(each == pytest.approx(expected, rel=1e-9, abs=1e-12) for each in found)
    assert len({each["loss"] for each in alone}) == 30


class Products(TorchDispatchMode):
    """Notes the shapes of all products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name in ("undrift::dense", "aten::bmm"):
            self.found.append(list(out.shape))
        return out


def test_samples_are_multiplied_with_the_layers_of_all_models_at_once() -> None:
    problem = problem_of()
    with Products() as products:
        evaluate_each(problem, problem.x0.repeat(5, 1))
    assert products.found == [[50, 5 * 4], [5, 50, 3]]


def test_products_are_our_own_from_the_first_compiled_round_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    monkeypatch.setattr(type(problem), "evaluate", lambda self, x: seen.append(OWN_PRODUCTS.get()) or {})
    settings: dict[str, Any] = {"rounds": 4, "local": ud.Local(steps=1, lr=0.1)}
    ud.run(ud.FedAvg(), problem, engine=EngineChoice("compiled", 2, since=3), **settings)
    ud.run(ud.FedAvg(), problem, engine="batched", **settings)
    assert seen == [False, False, True, True, *[False] * 4] and not OWN_PRODUCTS.get()


class Odd(nn.Module):
    """A layer that is used in an unusual way."""

    def __init__(self, way: str):
        super().__init__()
        self.layer, self.way = nn.Linear(300, 3).double(), way

    def forward(self, x: Tensor) -> Tensor:
        scores = self.layer(x)
        if self.way == "centred":  # depends on the batch
            return scores - scores.mean(0)
        if self.way == "gradient":
            return scores + torch.func.grad(lambda z: self.layer(z).square().sum())(x)[:, :3]
        if self.way == "tangent":
            return scores + torch.func.jvp(self.layer, (x,), (torch.ones_like(x),))[1]
        if self.way == "one row":
            return scores + F.linear(x, self.layer.weight[0]).unsqueeze(1)
        if self.way == "nobody":
            return scores + self.layer(x[:0]).sum()
        with torch.enable_grad():  # "autograd"
            z = x.detach().requires_grad_()
            return scores + torch.autograd.grad(self.layer(z).square().sum(), z)[0][:, :3]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # which torch's own jvp uses
@pytest.mark.parametrize("own", WAYS)
@pytest.mark.parametrize("way", ["centred", "gradient", "tangent", "one row", "nobody", "autograd"])
def test_layers_that_are_used_in_unusual_ways(way: str, own: bool) -> None:
    data = random(50, 300), torch.arange(50) % 3
    problem = ud.federate(data, model=Odd(way), loss=F.cross_entropy, clients=ud.IID(5))
    models = problem.x0 + random(11, problem.x0.numel())
    alone = [problem.evaluate(x) for x in models]
    with own_products(own):
        assert [problem.evaluate(x) for x in models] == [pytest.approx(a, rel=1e-9) for a in alone]
        if way != "autograd":  # which vmap does not know
            together = evaluate_each(problem, models)
            assert together == [pytest.approx(a, rel=1e-9) for a in alone]


def test_a_round_whose_evaluation_fails_is_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, local = problem_of(), ud.Local(steps=2, batch=5, lr=0.1)
    trials = [ud.Trial(ud.Scaffold(), problem, local, seed) for seed in (0, 1)]
    evaluate, rounds = StackedProblem.evaluate, iter(range(1, 5))

    def once(self: StackedProblem, x: Tensor) -> Any:
        if next(rounds) == 3:
            raise RuntimeError("out of luck")
        return evaluate(self, x)

    monkeypatch.setattr(StackedProblem, "evaluate", once)
    found = ud.run_together(trials, rounds=5, engine="batched")
    for trial, mine in zip(trials, found, strict=True):
        alone = ud.run(ud.Scaffold(), problem, rounds=5, local=local, seed=trial.seed, engine="batched")
        assert torch.allclose(mine.x, alone.x, rtol=0, atol=1e-9)
        assert [r.round for r in mine.history] == [1, 2, 3, 4, 5]


def test_sequences_as_targets() -> None:
    """Scores [n, T, classes] with a loss that turns them round: no accuracy is better than a wrong one."""
    tokens = torch.as_tensor(np.random.default_rng(0).integers(0, 7, (40, 5)))

    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(x))

    loss = lambda o, t: F.cross_entropy(o.transpose(1, 2), t)
    problem = ud.federate((tokens, tokens), model=Next(), loss=loss, clients=ud.IID(4))
    result = ud.run(ud.FedAvg(), problem, rounds=2, local=ud.Local(epochs=1, batch=4))
    assert set(result.history[-1].metrics) == {"loss"}


# accuracy only where it is one


def test_one_logit_says_yes_or_no() -> None:
    loss = lambda o, t: F.binary_cross_entropy_with_logits(o.squeeze(1), t.to(o.dtype))
    data = X, (X[:, 0] > 0).long()
    problem = ud.federate(data, model=nn.Linear(6, 1).double(), loss=loss, clients=ud.IID(4))
    right = ((problem.module(problem.x0)(X).squeeze(1) > 0).long() == data[1]).double().mean()
    assert problem.evaluate(problem.x0)["accuracy"] == pytest.approx(float(right), rel=1e-12)


def test_targets_to_be_ignored_do_not_count() -> None:
    targets = torch.where(torch.arange(101) % 2 == 0, -100, 1)
    net = nn.Linear(6, 3).double()
    nn.init.zeros_(net.weight)
    net.bias.data = torch.tensor([0.0, 5.0, 0.0]).double()
    problem = ud.federate((X, targets), model=net, loss=F.cross_entropy, clients=ud.IID(4))
    found = problem.evaluate(problem.x0)
    assert found["accuracy"] == 1.0
    assert found["loss"] == pytest.approx(float(F.cross_entropy(net(X), targets).detach()))


def test_negative_whole_numbers_count_where_they_are_no_classes() -> None:
    targets = torch.where(torch.arange(101) < 60, 1, -1)  # the last batches are of -1 alone
    loss = lambda out, target: F.softplus(-target * out.squeeze(1)).mean()
    problem = ud.federate((X, targets), model=nn.Linear(6, 1).double(), loss=loss, clients=ud.IID(4))
    expected = loss(problem.module(problem.x0)(X), targets)
    assert problem.evaluate(problem.x0)["loss"] == pytest.approx(float(expected.detach()), rel=1e-12)


def test_a_test_set_of_ones_own_has_no_natural_clients() -> None:
    who = torch.arange(101) % 5
    names = tuple("abcde")
    data = ud.Data("toy", (X, X[:, 0].gt(0).long()), (X[:50], X[:50, 0].gt(0).long()), who, who[:50], names, 2)
    settings: dict[str, Any] = {
        "model": nn.Linear(6, 2).double(), "loss": F.cross_entropy, "metrics": "clients"
    }  # fmt: skip
    own = X[:7], X[:7, 0].gt(0).long()
    for problem in (
        ud.federate(data, clients=ud.Natural(), **settings),
        ud.federate(data, own, clients=ud.Natural(), **settings),
        ud.federate(data, clients=ud.Natural(at_least=21), **settings),
    ):
        found = problem.evaluate(problem.x0)
        assert 0 <= found["client_accuracy"] <= 1
    assert problem.N == 1 and problem.test_clients is not None
    assert (problem.test_clients >= 0).sum() == 10
    few = ud.federate(data, clients=ud.Natural(), test_samples=9, **settings)
    assert few.test is not None and len(few.test[0]) == 9
    assert few.test_clients is not None and len(few.test_clients) == 9


def test_figures_are_those_of_samples_that_somebody_holds() -> None:
    problem = federation(clients=[range(10), range(10, 20)], metrics="train")
    expected = F.cross_entropy(mlp()(X[:20]), Y[:20])
    assert problem.evaluate(problem.x0)["train_loss"] == pytest.approx(float(expected.detach()))


@pytest.mark.parametrize("first", [nn.Identity(), nn.ReLU(inplace=True)])
def test_the_test_set_is_prepared_once_and_a_model_may_write_over_it(first: nn.Module) -> None:
    calls = []

    def prepare(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x.double() / 2

    net = nn.Sequential(first, nn.Linear(X.shape[1], 3)).double()
    test = X[:40], Y[:40]
    problem = ud.federate((X, Y), test, model=net, loss=F.cross_entropy, clients=ud.IID(4), prepare=prepare)
    found = [problem.evaluate(scale * problem.x0) for scale in (1.0, 3.0, 1.0)]
    assert found[0] == found[2] != found[1]
    calls.clear()
    problem.evaluate(problem.x0)
    assert calls == ([] if isinstance(first, nn.Identity) else [40])


def test_a_captured_evaluation_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undrift.compiler.capture.CALLS", 2)
    monkeypatch.setattr(ModelProblem, "evaluation_batch", 20)
    problem, other = problem_of(), problem_of()
    other.scored = other.score
    for number in range(9):
        x = problem.x0 + (1 + number) * random(problem.x0.numel())
        assert problem.evaluate(x) == other.evaluate(x)
    assert [found is not None for found in problem.scored.captured.values()] == [
        True,
        True,
    ]  # 20 samples, and the last 10


def test_an_evaluation_with_statistics_of_batchnorm_layers_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undrift.compiler.capture.CALLS", 2)
    net = nn.Sequential(nn.Linear(300, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    data = random(50, 300), torch.arange(50) % 3
    clients, loss = ud.IID(5), F.cross_entropy
    problem = ud.federate(data, model=net, loss=loss, clients=clients, local_parameters="batch-norm")
    for _ in range(5):
        problem.evaluate(problem.x0)
    assert not problem.scored.captured


def test_an_evaluation_that_changes_without_a_trace_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undrift.compiler.capture.CALLS", 2)
    monkeypatch.setattr("undrift.problems.model.values_held", lambda each: None)  # as if nothing were seen of it
    scale = [1.0]
    net = nn.Linear(300, 3).double()
    loss = lambda out, target: scale[0] * F.cross_entropy(out, target)
    problem = ud.federate((random(50, 300), torch.arange(50) % 3), model=net, loss=loss, clients=ud.IID(5))
    for _ in range(3):
        problem.evaluate(problem.x0)
    scale[0] = 2.0
    with pytest.raises(RuntimeError, match="must not change between rounds.*metric of your own in place of 'test'"):
        problem.evaluate(problem.x0)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_is_torchs_own(dtype: torch.dtype, several: bool) -> None:
    scores, target = (30 * random(3, 50, 7)).to(dtype), torch.arange(50) % 7
    target[::5] = -100  # ignored
    given = scores if several else scores[0]
    loss = lambda rows: F.cross_entropy(rows, target)
    with torch.no_grad():
        expected = vmap(loss)(given) if several else loss(given)
        with own_products(True), fast_layers(several=several):
            found = vmap(loss)(given) if several else nn.CrossEntropyLoss()(given, target)
    assert torch.allclose(found, expected, rtol=1e-12 if dtype == torch.float64 else 1e-5, atol=0)


@pytest.mark.parametrize("target", [torch.tensor([0, -1, 2]), torch.tensor([0, 3, 2])], ids=["negative", "too large"])
def test_a_class_that_is_none_is_an_error_of_cross_entropy(target: Tensor) -> None:
    with torch.no_grad(), own_products(True), fast_layers(several=False), pytest.raises((IndexError, RuntimeError)):
        F.cross_entropy(random(3, 3), target)


@pytest.mark.parametrize("settings", [
    {"weight": torch.tensor([1.0, 2.0, 3.0]).double()}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"ignore_index": 1}
], ids=str)  # fmt: skip
def test_cross_entropy_with_settings_is_torchs_own(settings: dict[str, Any]) -> None:
    scores, target = random(12, 3), torch.arange(12) % 3
    with torch.no_grad(), own_products(True), fast_layers(several=False):
        found = F.cross_entropy(scores, target, **settings)
    assert torch.allclose(found, F.cross_entropy(scores, target, **settings), rtol=1e-12)


@pytest.mark.parametrize(("net", "samples"), [
    (nn.Linear(4, 3), 16384), (nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 3)), 4096),
    (nn.Sequential(nn.Linear(4, 5000), nn.Linear(5000, 3)), 2048),
    (nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), 2048),
], ids=["narrow", "wider", "wide", "not dense alone"])  # fmt: skip
def test_narrow_dense_models_are_evaluated_on_more_samples_at_once(net: nn.Module, samples: int) -> None:
    data = torch.randn(12, 4), torch.arange(12) % 3
    assert ud.federate(data, model=net, loss=F.cross_entropy, clients=ud.IID(3)).evaluation_batch == samples
