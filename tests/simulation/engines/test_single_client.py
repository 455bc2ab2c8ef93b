"""Compiled visits of one client at a time, as convolutional networks are trained."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.compiled import Careful, TracedWorld, local_of, needs_compiler
from tests.support.images import NETS, images
from tests.support.method_table import FIRST, Row, made
from tests.support.oracles.world import make_world
from tests.support.toy_problem import PlainFedAvg, gap, path
from undrift.algorithms.fedavg import Up
from undrift.compiler import CannotCompile
from undrift.simulation.engines.choice import EngineChoice
from undrift.simulation.engines.compiled import programs_of


@pytest.mark.parametrize("layers", NETS.values(), ids=NETS)
def test_one_client_at_a_time_as_traced(layers: Any, interpreted: None, refusals: Any) -> None:
    problem = images(*layers)
    local = ud.Local(epochs=1, batch=4, lr=0.1)  # short minibatches, too
    choice = EngineChoice("compiled", workers=2)
    for method in (ud.Scaffold(), ud.FedAvg_M_VR(0.3)):
        ours = path(method, problem, rounds=2, local=local, engine=choice)
        alone = path(method, problem, rounds=2, local=local, engine="sequential")
        assert gap(ours, alone) < 1e-9
    assert refusals() == []


class Shared(nn.Module):
    """A ReLU's values that are used by others than the pooling."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        return F.max_pool2d(x, 2).flatten(1).sum(1, keepdim=True) + x.flatten(1)


def test_a_relu_that_others_use_stays_before_the_pooling(interpreted: None, refusals: Any) -> None:
    problem = images(Shared())
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=4, lr=0.01)}
    ours = path(ud.FedAvg(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), problem, engine="sequential", **settings)) < 1e-9
    assert refusals() == []


@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.name)
def test_every_method_one_client_at_a_time(row: Row, interpreted: None, refusals: Any) -> None:
    problem = TracedWorld(make_world(6, d=4))
    settings: dict[str, Any] = {"rounds": 3, "local": local_of(row)}
    if row.partial:
        settings["participation"] = ud.Uniform(4)
    ours = path(made(row), problem, engine="compiled", chunk=1, **settings)
    assert gap(ours, path(made(row), problem, **settings)) < 1e-9
    assert refusals() == []


@needs_compiler
def test_any_number_of_workers_gives_the_same_bits(refusals: Any) -> None:
    problem = images(*NETS["dropout"], dtype=torch.float32)
    threads = torch.get_num_threads()
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, batch=2, lr=0.1)}
    one, *others = (
        path(ud.Scaffold(), problem, engine=EngineChoice("compiled", workers=n), **settings) for n in (1, 2, 3)
    )
    assert all((each == one).all() for each in others)
    assert gap(one, path(ud.Scaffold(), problem, engine="sequential", **settings)) < 1e-5
    assert torch.get_num_threads() == threads
    assert refusals() == []


def test_convolutions_in_chunks_are_right_too(interpreted: None, refusals: Any) -> None:
    problem = images(*NETS["relu, pool"])
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = path(ud.FedAvg(), problem, engine=EngineChoice("compiled", 4), **settings)
    assert gap(ours, path(ud.FedAvg(), problem, engine="sequential", **settings)) < 1e-9
    assert refusals() == []


def test_rounds_before_the_first_compiled_one_are_sequential(interpreted: None) -> None:
    problem = images(*NETS["pool"], dtype=torch.float32)
    settings: dict[str, Any] = {"local": ud.Local(steps=2, batch=4, lr=0.1)}
    late = EngineChoice("compiled", workers=2, since=3)
    ours = ud.run(ud.Scaffold(), problem, rounds=4, engine=late, **settings)
    early = ud.run(ud.Scaffold(), problem, rounds=2, engine=late, **settings)
    alone = ud.run(ud.Scaffold(), problem, rounds=2, engine="sequential", **settings)
    assert torch.equal(early.x, alone.x)
    resumed = ud.run(ud.Scaffold(), problem, rounds=4, engine=late, start=early, **settings)
    assert torch.equal(resumed.x, ours.x)


def test_what_is_refused_is_computed_as_the_sequential_engine_does(refusals: Any) -> None:
    careful: Any = Careful()
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=4, lr=0.1)}
    problem = images(*NETS["pool"])
    ours = path(careful, problem, engine=EngineChoice("compiled", workers=2), **settings)
    assert (ours == path(careful, problem, engine="sequential", **settings)).all()
    assert len(refusals()) == 1 and "not compiled" in refusals()[0]


def test_who_diverges_is_left_out(interpreted: None) -> None:
    problem = images(*NETS["relu, pool"])
    problem.X[problem.samples(2)] *= 1e200
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = ud.run(ud.Scaffold(), problem, engine=EngineChoice("compiled", workers=2), **settings)
    alone = ud.run(ud.Scaffold(), problem, engine="sequential", **settings)
    assert [r.left_out for r in ours.history] == [r.left_out for r in alone.history] == [(2,)] * 2
    assert [r.bytes_up for r in ours.history] == [r.bytes_up for r in alone.history]
    assert gap(ours.x.numpy(), alone.x.numpy()) < 1e-9


def test_errors_name_the_client(interpreted: None) -> None:
    class Broken(PlainFedAvg):
        def local(self, down: Any, client: Any, work: Any) -> Any:
            raise ZeroDivisionError("the method's own fault")

    broken: Any = Broken()
    with pytest.raises(ud.MethodFailure, match="client 0, round 1, stage local: ZeroDivision"):
        ud.run(broken, images(nn.ReLU()), rounds=1, engine=EngineChoice("compiled", workers=2))


class Counting(PlainFedAvg):
    """Carries a whole number through its steps."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        def step(y: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
            return y - work.lr * work.grad(y) / (count + 1), count + 1

        start = torch.zeros_like(work.K, dtype=torch.int64)
        return Up(down.x - work.loop(step, down.x, start)[0]), None


def test_whole_numbers_are_carried(interpreted: None, refusals: Any) -> None:
    problem, counting = images(nn.ReLU()), Counting()
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = path(counting, problem, engine=EngineChoice("compiled", workers=2), **settings)
    assert gap(ours, path(counting, problem, engine="sequential", **settings)) < 1e-9
    assert refusals() == []


class Frozen(nn.Module):
    """Has a layer that is not trained, and a branch that cannot be batched if asked for."""

    def __init__(self, branches: bool = False) -> None:
        super().__init__()
        self.branches, self.drop = branches, nn.Dropout(0.2)
        self.fixed = nn.Conv2d(4, 4, 1).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.fixed(self.drop(x))
        return 2 * out if self.branches and float(out.detach().sum()) > 0 else out


@needs_compiler
def test_what_is_not_trained_is_a_part_of_the_program(refusals: Any) -> None:
    problem = images(Frozen(), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    mean = torch.tensor(0.5, dtype=torch.float64)
    problem.prepare = lambda x: (x - mean) / 2
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=2, lr=0.1)}
    ours = path(ud.FedAvg(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), problem, engine="sequential", **settings)) < 1e-9
    assert refusals() == []


def test_a_model_that_cannot_be_batched_has_twins() -> None:
    problem = images(Frozen(branches=True))
    assert problem.not_batched
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=2, lr=0.1)}
    one, two = (path(ud.FedAvg(), problem, workers=n, **settings) for n in (1, 2))
    assert (one == two).all()


def test_refusals_keep_nothing(interpreted: None) -> None:
    """What is refused is refused again and again, and must not hold on to the visits it was asked for in."""
    problem, careful = images(nn.ReLU()), Careful()
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=2, lr=0.1)}
    ud.run(careful, problem, engine=EngineChoice("compiled", workers=2), **settings)
    (why,) = programs_of(problem).specs.values()
    assert isinstance(why, CannotCompile)
    assert why.__traceback__ is None and why.__cause__ is None
