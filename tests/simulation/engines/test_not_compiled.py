"""What cannot be compiled is computed all the same, after one line of notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.compiled import Careful, ragged
from tests.support.toy_problem import gap, path
from undrift.compiler import inductor
from undrift.problems import evaluation, model
from undrift.simulation.engines import choice as choices
from undrift.simulation.engines.choice import EngineChoice, choose_engine


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.fill_(torch.nan),
        lambda t: t.mul_(1.01),
        lambda t: t,
        lambda t: t.mul_(1 + 1e-10),
    ],
)
def test_a_program_that_computes_something_else_is_given_up(
    monkeypatch: pytest.MonkeyPatch, refusals: Any, wrong: Callable[[Tensor], Tensor]
) -> None:

    def build(graph: Any, *_: Any) -> Any:
        is_step = not next(iter(graph.graph.find_nodes(op="output"))).args[0]
        return lambda args: wrong(args[0]) if is_step else graph(*args)

    monkeypatch.setattr(inductor, "compile_graph", build)
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = path(ud.FedAvg(), ragged(), engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), ragged(), **settings)) < 1e-9
    (line,) = refusals()
    assert line == "not compiled: its results differ from those of the uncompiled visit by more than rounding"


class Once:
    """A program that is right in its first step and wrong in all others, as one that drops its momentum is."""

    def __init__(self, program: Callable[..., Any], carried: int):
        self.program, self.carried, self.calls = program, carried, 0

    def __call__(self, args: list[Tensor]) -> Any:
        self.calls += 1
        if self.calls % 3 == 1:
            return self.program(args)
        args[self.carried] *= 0
        return self.program(args)


def test_a_program_that_loses_its_momentum_is_given_up(monkeypatch: pytest.MonkeyPatch, refusals: Any) -> None:
    """The first step from a momentum of zero is right: only several, from one that is not, show the mistake."""
    build = lambda graph, *_: Once(lambda args: graph(*args), carried=4)
    monkeypatch.setattr(inductor, "compile_graph", build)
    local = ud.Local(steps=3, batch=4, lr=0.1, momentum=0.9)
    settings: dict[str, Any] = {"rounds": 3, "local": local}
    ours = path(ud.FedAvg(), ragged(), engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), ragged(), **settings)) < 1e-9
    (line,) = refusals()
    assert line == "not compiled: its results differ from those of the uncompiled visit by more than rounding"


@pytest.mark.parametrize("engine", ["compiled", "auto", EngineChoice("compiled", 4, since=2)], ids=str)
def test_an_untested_torch_does_not_compile(engine: Any, monkeypatch: pytest.MonkeyPatch, refusals: Any) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.1")
    monkeypatch.setattr(choices, "COMPILING_SECONDS", 0.0)
    inductor.untested_torch.cache_clear()
    try:
        settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=3, batch=4, lr=0.1)}
        ours = path(ud.Scaffold(), ragged(), engine=engine, **settings)
        assert (ours == path(ud.Scaffold(), ragged(), engine="batched", **settings)).all()
    finally:
        inductor.untested_torch.cache_clear()
    (line,) = refusals()
    assert "torch 2.99.1 has not been tested with the compiler" in line


# what cannot be compiled runs all the same, after one line


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return 2 * out if float(self.layer.weight.detach().sum()) > 0 else out


def test_a_model_with_branches_runs_one_by_one(refusals: Any) -> None:
    problem = ragged(model=Branches())
    with pytest.raises(ud.InvalidInput, match="engine 'compiled' cannot run this problem: torch"):
        ud.run(ud.FedAvg(), problem, rounds=1, engine="compiled")
    settings: dict[str, Any] = {"participation": ud.Uniform(3), "local": ud.Local(batch=4)}
    assert choose_engine(problem, rounds=10**9, **settings).engine == "sequential"


def test_a_step_with_branches_runs_as_written(refusals: Any) -> None:
    careful: Any = Careful()
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, batch=4, lr=0.1)}
    ours = path(careful, ragged(), engine="compiled", **settings)
    assert (ours == path(careful, ragged(), engine="batched", **settings)).all()
    assert len(refusals()) == 1 and "not compiled" in refusals()[0]


def test_without_a_compiler_there_is_one_line(monkeypatch: pytest.MonkeyPatch, refusals: Any) -> None:
    def none(*args: Any) -> Any:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(inductor, "compile_graph", none)
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, batch=4, lr=0.1)}
    ours = path(ud.Scaffold(), ragged(), engine="compiled", **settings)
    assert (ours == path(ud.Scaffold(), ragged(), engine="batched", **settings)).all()
    assert len(refusals()) == 1 and "No working C++ compiler" in refusals()[0]


def test_losses_that_are_no_mean_are_not_padded(interpreted: None, refusals: Any) -> None:
    def worst(out: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(out, target, reduction="none").max()

    problem = ragged(loss=worst)
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=6, lr=0.1)}
    ours = path(ud.FedAvg(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), problem, **settings)) < 1e-9
    assert len(refusals()) == 1 and "no mean over its samples" in refusals()[0]


def test_a_loss_that_weighs_classes_is_no_mean(interpreted: None, refusals: Any) -> None:
    """Of the first samples all are of one class, for which it is a mean; so are the first cohort's minibatches."""
    torch.manual_seed(0)
    X, Y = torch.randn(40, 5).double(), torch.tensor([0] * 20 + [0, 1] * 10)
    loss = nn.CrossEntropyLoss(torch.tensor([1.0, 5.0]).double())
    net, clients = nn.Linear(5, 2).double(), [range(0, 10), range(10, 20), range(20, 30), range(30, 40)]
    problem = ud.federate((X, Y), model=net, loss=loss, clients=clients)
    settings: dict[str, Any] = {
        "rounds": 4, "participation": ud.Fixed([[0, 1], [2, 3]] * 2), "local": ud.Local(epochs=1, batch=4, lr=0.1)
    }  # fmt: skip
    ours = path(ud.FedAvg(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), problem, engine="sequential", **settings)) < 1e-9
    assert "no mean over its samples" in refusals()[0]


def test_the_full_gradient_of_many_samples_is_that_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 8)
    monkeypatch.setattr(model, "EVALUATION_BATCH", 8)
    torch.manual_seed(0)
    X, Y = torch.randn(40, 5).double(), torch.arange(40) // 30
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(torch.tensor([1.0, 5.0]).double())):
        problem = ud.federate((X, Y), model=nn.Linear(5, 2).double(), loss=loss, clients=ud.IID(1))
        x = problem.x0.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(problem.flat(x, X), Y), x)
        assert torch.allclose(problem.full_grad(problem.x0, [0]), expected, rtol=1e-12)


def test_ignored_targets_are_not_padded(interpreted: None, refusals: Any) -> None:
    problem = ragged()
    problem.Y[::7] = -100
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=6, lr=0.1)}
    ours = path(ud.FedAvg(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), problem, **settings)) < 1e-9
    assert len(refusals()) == 1 and "negative" in refusals()[0]
