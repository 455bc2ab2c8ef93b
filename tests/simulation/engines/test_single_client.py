"""Compiled visits of one client at a time: pooling and dropout for the compiler, workers, what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import undrift as ud
from tests.algorithms.test_conformance import made
from tests.simulation.engines.test_compiled_engine import (
    Careful,
    TracedWorld,
    interpreted,
    local_of,
    needs_compiler,
    refusals,
)
from tests.support.method_table import ROWS, Row
from tests.support.oracles.world import make_world
from tests.support.toy_problem import PlainFedAvg, gap, path
from undrift.algorithms.fedavg import Up
from undrift.compiler import CannotCompile
from undrift.compiler.inductor import trace
from undrift.compiler.kernels.max_pool import BACKWARD, POOL
from undrift.compiler.visit import _rewrite_pooling
from undrift.problems.dropout import kept, kept_compiled
from undrift.simulation.engines import choice as choices
from undrift.simulation.engines.choice import Choice, choose
from undrift.simulation.engines.compiled import programs_of

__all__ = ["interpreted", "refusals"]  # fixtures


def images(*layers: nn.Module, dtype: torch.dtype = torch.float64, side: int = 8) -> Any:
    """A small convolutional network on clients of unequal size; pixels have few values, so maxima are often ties."""
    torch.manual_seed(5)
    X = torch.randint(0, 2, (40, 2, side, side)).to(dtype)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), *layers, nn.Flatten(), nn.LazyLinear(3)).to(dtype)
    net(X)
    sizes = np.cumsum([0, 5, 12, 8, 15])
    clients = [list(range(a, b)) for a, b in zip(sizes, sizes[1:], strict=False)]
    return ud.federate((X, torch.arange(40) % 3), model=net, loss=F.cross_entropy, clients=clients)


NETS = {
    "relu, pool": (nn.ReLU(), nn.MaxPool2d(2)),
    "pool": (nn.MaxPool2d(2),),
    "pool, relu": (nn.MaxPool2d(2), nn.ReLU()),
    "rows that no window has": (nn.ReLU(), nn.MaxPool2d((4, 3))),
    "a window of one row": (nn.ReLU(), nn.MaxPool2d((1, 2))),
    "two": (nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.MaxPool2d(2)),
    "overlapping windows": (nn.ReLU(), nn.MaxPool2d(3, stride=2)),
    "padding": (nn.ReLU(), nn.MaxPool2d(2, padding=1)),
    "up to the edge": (nn.ReLU(), nn.MaxPool2d(4, ceil_mode=True)),
    "dropout": (nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)),
    "no pool": (nn.Sigmoid(),),
}


@pytest.mark.parametrize("layers", NETS.values(), ids=NETS)
def test_one_client_at_a_time_as_traced(layers: Any, interpreted: None, refusals: Any) -> None:
    problem = images(*layers)
    local = ud.Local(epochs=1, batch=4, lr=0.1)  # short minibatches, too
    choice = Choice("compiled", workers=2)
    for method in (ud.FedAvg(), ud.Scaffold(), ud.FedAvg_M_VR(0.3)):
        ours = path(method, problem, rounds=3, local=local, engine=choice)
        alone = path(method, problem, rounds=3, local=local, engine="sequential")
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


def pooled(x: Tensor, kernel: Any, relu: bool) -> list[Tensor]:
    """The pooled image, and the gradient of some sum of it."""
    z = x.detach().requires_grad_()
    with torch.enable_grad():
        out = F.max_pool2d(F.relu(z) if relu else z, kernel)
        weights = torch.arange(out.numel(), dtype=out.dtype).view(out.shape) + 1
        return [out.detach(), torch.autograd.grad((out * weights).sum(), z)[0]]


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    relu=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_pooling_by_windows_has_the_same_bits(
    size: Any, kernel: Any, relu: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(
        -2, 3, size, generator=random
    ).float()  # many ties, zeros, all-negative windows
    x = x.contiguous(memory_format=torch.channels_last)
    graph, _ = trace(lambda x: pooled(x, kernel, relu), [x], _rewrite_pooling)
    targets = {node.target for node in graph.graph.nodes}
    assert not targets & {POOL, BACKWARD}
    for ours, theirs in zip(graph(x), pooled(x, kernel, relu), strict=True):
        assert torch.equal(ours, theirs)


@settings(deadline=None)
@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    units=st.integers(1, 2000),
    p=st.floats(0.01, 0.99),
)
def test_the_compilers_dropout_drops_the_same_units(seeds: list[int], units: int, p: float) -> None:
    seed = torch.tensor(seeds)
    assert torch.equal(kept(seed, [units], p), kept_compiled(seed, [units], p))


@pytest.mark.parametrize("row", ROWS, ids=str)
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
        path(ud.Scaffold(), problem, engine=Choice("compiled", workers=n), **settings)
        for n in (1, 2, 3)
    )
    assert all((each == one).all() for each in others)
    assert gap(one, path(ud.Scaffold(), problem, engine="sequential", **settings)) < 1e-5
    assert torch.get_num_threads() == threads
    assert refusals() == []


def test_convolutions_in_chunks_are_right_too(interpreted: None, refusals: Any) -> None:
    problem = images(*NETS["relu, pool"])
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = path(ud.FedAvg(), problem, engine=Choice("compiled", 4), **settings)
    assert gap(ours, path(ud.FedAvg(), problem, engine="sequential", **settings)) < 1e-9
    assert refusals() == []


def test_rounds_before_the_first_compiled_one_are_sequential(interpreted: None) -> None:
    problem = images(*NETS["pool"], dtype=torch.float32)
    settings: dict[str, Any] = {"local": ud.Local(steps=2, batch=4, lr=0.1)}
    late = Choice("compiled", workers=2, since=3)
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
    ours = path(careful, problem, engine=Choice("compiled", workers=2), **settings)
    assert (ours == path(careful, problem, engine="sequential", **settings)).all()
    assert len(refusals()) == 1 and "not compiled" in refusals()[0]


def test_who_diverges_is_left_out(interpreted: None) -> None:
    problem = images(*NETS["relu, pool"])
    problem.X[problem.samples(2)] *= 1e200
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = ud.run(ud.Scaffold(), problem, engine=Choice("compiled", workers=2), **settings)
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
        ud.run(broken, images(nn.ReLU()), rounds=1, engine=Choice("compiled", workers=2))


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
    ours = path(counting, problem, engine=Choice("compiled", workers=2), **settings)
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
    ud.run(careful, problem, engine=Choice("compiled", workers=2), **settings)
    (why,) = programs_of(problem).specs.values()
    assert isinstance(why, CannotCompile)
    assert why.__traceback__ is None and why.__cause__ is None


# choices


def test_long_runs_of_convolutions_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = images(*NETS["relu, pool"])
    usual: dict[str, Any] = {
        "participation": ud.Uniform(3), "local": ud.Local(steps=4, batch=4)
    }  # fmt: skip
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 0.01)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: "g++")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert choose(problem, rounds=100, **usual) == Choice("sequential", workers=2)
    long = choose(problem, rounds=10_000, **usual)
    assert long == Choice("compiled", workers=2, since=2)
    assert str(long) == "clients one after another, 2 side by side, compiled from round 2 on"
    assert choose(problem, rounds=1, engine="compiled", **usual) == Choice("compiled", workers=2)
    assert choose(problem, rounds=1, engine="compiled", chunk=3, **usual) == Choice("compiled", 3)
    own = choose(problem, rounds=1, engine="compiled", workers=3, **usual)
    assert own == Choice("compiled", workers=3)
    assert choose(problem, rounds=10_000, workers=3, **usual) == Choice("compiled", 1, 3, since=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert choose(problem, rounds=10_000, **usual) == Choice("compiled", since=2)


def test_recurrent_layers_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(2, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0][:, -1]

    X, Y = torch.randn(8, 4, 2), torch.arange(8) % 3
    problem = ud.federate((X, Y), model=Recurrent(), loss=F.cross_entropy, clients=ud.IID(4))
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 10.0)
    local = ud.Local(steps=4, batch=2)
    choice = choose(problem, rounds=10**6, participation=ud.Uniform(3), local=local)
    assert choice.engine == "sequential"


def test_workers_need_chunks_of_one() -> None:
    with pytest.raises(ud.InvalidInput, match="'compiled' with chunk=1"):
        Choice("compiled", 2, workers=2)


def test_what_is_no_pooling_is_left_alone() -> None:
    x = torch.randn(1, 2, 6, 6).contiguous(memory_format=torch.channels_last)
    graph, _ = trace(lambda x: [F.avg_pool2d(x, 2)], [x], _rewrite_pooling)
    assert torch.allclose(graph(x)[0], F.avg_pool2d(x, 2))


def test_on_ray_each_worker_takes_one_client_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from undrift.simulation.ray import choice as on_ray

    problem = images(*NETS["relu, pool"])
    monkeypatch.setattr(on_ray, "cpus", lambda: 2)
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 1.0)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: "g++")
    usual: dict[str, Any] = {"participation": ud.Uniform(3), "local": ud.Local(steps=4, batch=4)}
    choice = on_ray.choose_on_ray(problem, Choice("ray"), None, rounds=1000, **usual)
    assert choice == Choice("ray", workers=2, since=2, shards=2, inside="compiled")
    assert choice.inner == Choice("compiled", since=2)
    assert (
        str(choice)
        == "2 workers on Ray, 2 shards; in each, clients one after another, compiled from round 2 on"
    )
