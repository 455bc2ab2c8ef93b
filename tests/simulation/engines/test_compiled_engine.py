"""The compiled engine: as the others and itself bit for bit, and each program compiled once."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.compiled import (
    TracedWorld,
    assert_compiled_whole,
    local_of,
    needs_compiler,
    ragged,
    run_as_traced,
)
from tests.support.method_table import FIRST, ROWS, Row, made
from tests.support.oracles.world import make_world
from tests.support.quadratics import quadratic
from tests.support.toy_problem import PlainFedAvg, gap, path
from undrift.algorithms.fedavg import Up
from undrift.compiler import inductor
from undrift.compiler import step as steps
from undrift.compiler.kernels import gather as gathering
from undrift.compiler.kernels import products, small_products
from undrift.simulation.engines import compiled
from undrift.simulation.engines.choice import EngineChoice
from undrift.simulation.engines.compiled import PROGRAMS


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_traced_steps_are_the_methods_own(row: Row, interpreted: None, refusals: Any) -> None:
    problem = TracedWorld(make_world(6, d=4))
    settings: dict[str, Any] = {"rounds": 4, "local": local_of(row)}
    if row.partial:
        settings["participation"] = ud.Uniform(4)
    ours = path(made(row), problem, engine="compiled", **settings)
    assert gap(ours, path(made(row), problem, **settings)) < 1e-9
    assert_compiled_whole(problem)
    assert refusals() == []


@pytest.mark.parametrize(
    "local",
    [
        {"steps": 5, "batch": 4},
        {"epochs": 2, "batch": 5, "momentum": 0.7, "weight_decay": 0.1},
        {"steps": (1, 6), "batch": 3, "clip": 0.5},
        {"steps": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("algorithm", [ud.FedAvg(), ud.Scaffold()], ids=repr)
def test_traced_steps_of_a_model_on_ragged_data(
    algorithm: Any, local: dict[str, Any], interpreted: None, refusals: Any
) -> None:
    settings: dict[str, Any] = {
        "rounds": 3, "participation": ud.Uniform(3), "local": ud.Local(lr=0.1, **local)
    }  # fmt: skip
    ours = path(algorithm, ragged(), engine="compiled", **settings)
    assert gap(ours, path(algorithm, ragged(), **settings)) < 1e-9
    for chunk in (1, 2):
        parts = path(algorithm, ragged(), engine="compiled", chunk=chunk, **settings)
        assert gap(parts, ours) < 1e-9
    assert refusals() == []


@needs_compiler
def test_compiled_steps_equal_the_others_and_themselves(refusals: Any) -> None:
    from torch._dynamo.utils import counters

    problem = ragged()
    settings: dict[str, Any] = {
        "rounds": 4, "participation": ud.Uniform(4), "local": ud.Local(steps=5, batch=4, lr=0.1)
    }  # fmt: skip
    ours = path(ud.Scaffold(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.Scaffold(), problem, **settings)) < 1e-9
    counters["inductor"].clear()
    assert (path(ud.Scaffold(), ragged(), engine="compiled", **settings) == ours).all()
    assert counters["inductor"]["fxgraph_cache_hit"] == 2  # on disk: the step, and what comes after
    assert refusals() == []


FOLDED = (
    "fedavg",
    "fedprox",
    "scaffold",
    "scaffold-m",
    "fedavg-m",
    "fedavg-m-vr",
    "fedhbm",
    "feddyn",
)
# Two gradients share the first layer's samples, so they are one product there; the past model is the same for all clients.
PRODUCTS = {"fedavg-m-vr": 2 + 1, "scaffold-m-vr": 3 + 2}  # of y and of the sum, in both layers


@pytest.mark.parametrize("row", [r for r in ROWS if r in FIRST or r.name in (*FOLDED, *PRODUCTS)], ids=str)
def test_updates_folded_into_products_are_the_methods_own(
    row: Row, monkeypatch: pytest.MonkeyPatch, refusals: Any
) -> None:
    """As for large layers: gradients are added to the model by the product itself."""
    products: list[int] = []
    shared: list[int] = []

    def build(graph: Any, *_: Any) -> Any:
        targets = [str(node.target) for node in graph.graph.nodes]
        added = ("baddbmm_", "summed_")  # to what is there, or to a sum of vectors
        products.append(sum(any(name in target for name in added) for target in targets))
        shared.append(sum("aten.mm" in target for target in targets))
        return run_as_traced(graph)

    monkeypatch.setattr(inductor, "compile_graph", build)
    monkeypatch.setattr(small_products, "SMALL", 0)
    monkeypatch.setattr(steps, "LARGE", 0)
    settings: dict[str, Any] = {
        "rounds": 3, "local": local_of(row, steps=3, batch=4, weight_decay=0.01)
    }  # fmt: skip
    if row.partial:
        settings["participation"] = ud.Uniform(4)
    problem = ragged()
    ours = path(made(row), problem, engine="compiled", **settings)
    assert gap(ours, path(made(row), ragged(), **settings)) < 1e-9
    assert_compiled_whole(problem)
    assert refusals() == []
    if row.name in FOLDED and not settings["local"].momentum:
        assert max(products) >= 2  # both layers
    if row.name in PRODUCTS:
        assert max(products) == PRODUCTS[row.name] and max(shared) >= 1


@needs_compiler
def test_compiled_products_of_large_layers(refusals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config, lowering

    monkeypatch.setenv("CI", "true")  # where torch is stricter about operators in place
    for operator in (torch.ops.aten.baddbmm_.default, products.outputs, products.summed_):
        lowering.lowerings.pop(operator, None)
    # all products that can be are our own, those of the first layer with samples where they lie
    for module, name in ((gathering, "LONG"), (gathering, "WORTH"), (steps, "LARGE")):
        monkeypatch.setattr(module, name, 1)
    net = nn.Sequential(nn.Linear(5, 400), nn.ReLU(), nn.Linear(400, 3))
    problem, algorithm = ragged(model=net.double()), ud.ScaffoldMVR(0.3)  # all kinds of products
    local = ud.Local(steps=4, batch=4, lr=0.1)
    settings: dict[str, Any] = {"rounds": 3, "participation": ud.Uniform(4), "local": local}
    with config.patch(force_disable_caches=True):
        ours = path(algorithm, problem, engine="compiled", **settings)
    assert gap(ours, path(algorithm, problem, **settings)) < 1e-9
    assert (path(algorithm, problem, engine="compiled", **settings) == ours).all()
    assert refusals() == []


@needs_compiler
def test_convolutions_are_right_where_somebody_compiles_them(refusals: Any) -> None:
    torch.manual_seed(0)
    X, Y = torch.randn(24, 2, 8, 8, dtype=torch.float64), torch.arange(24) % 3
    layers = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    net, clients = nn.Sequential(*layers).double(), ud.IID(4)
    problem = ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=clients)
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = path(ud.FedAvg(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), problem, engine="sequential", **settings)) < 1e-9
    assert refusals() == []


@needs_compiler
@pytest.mark.parametrize("name", ["scaffold-m", "fedavg-m", "fedhbm", "fedprox"])
def test_twenty_rounds_in_float32_are_the_batched_ones(name: str, refusals: Any) -> None:
    """Torch 2.7 to 2.11 got these wrong by 3 parts in 100 of the way, without a word."""
    torch.manual_seed(0)
    X, Y = torch.randn(1200, 20), torch.arange(1200) % 10
    layers = nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 150), nn.ReLU(), nn.Linear(150, 10)
    problem = ud.federate((X, Y), model=nn.Sequential(*layers), loss=F.cross_entropy, clients=ud.IID(12))
    settings: dict[str, Any] = {
        "rounds": 20, "participation": ud.Uniform(6), "local": ud.Local(steps=5, batch=16, lr=0.05)
    }  # fmt: skip
    ours, theirs = (path(ud.method(name), problem, engine=engine, **settings)[-1] for engine in ("compiled", "batched"))
    start = problem.x0.numpy()
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs - start)
    assert refusals() == []


@needs_compiler
def test_dropout_is_compiled_and_drops_the_same_units(refusals: Any) -> None:
    layers = nn.Linear(5, 40), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 3)
    net = nn.Sequential(*layers).double()
    settings: dict[str, Any] = {
        "rounds": 3, "participation": ud.Uniform(4), "local": ud.Local(epochs=1, batch=4, lr=0.1)
    }  # fmt: skip
    ours = path(ud.FedAvg(), ragged(model=net), engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), ragged(model=net), **settings)) < 1e-9
    assert refusals() == []


def test_two_gradients_on_a_minibatch_drop_the_same_units(interpreted: None, refusals: Any) -> None:
    net = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.3), nn.ReLU(), nn.Linear(40, 3)).double()
    local = ud.Local(epochs=1, batch=4, lr=0.1)  # some of them short
    settings: dict[str, Any] = {"rounds": 3, "participation": ud.Uniform(4), "local": local}
    ours = path(ud.FedAvg_M_VR(0.3), ragged(model=net), engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg_M_VR(0.3), ragged(model=net), **settings)) < 1e-9
    assert refusals() == []


def test_unequal_steps_of_any_number_run_the_same_program(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made_here = []
    monkeypatch.setattr(
        inductor,
        "compile_graph",
        lambda graph, *_: made_here.append(1) or run_as_traced(graph),
    )
    local = ud.Local(steps=(1, 9), batch=4, lr=0.1)
    ud.run(
        ud.Scaffold(),
        ragged(),
        rounds=12,
        participation=ud.Uniform(4),
        local=local,
        engine="compiled",
    )
    assert len(made_here) <= 2  # one for ragged visits, and one if steps happen to be equal


@needs_compiler
def test_other_numbers_run_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step sizes, rounds and hyper-parameters are inputs: nothing is compiled again for them."""
    made_here = []
    original = inductor.compile_graph
    monkeypatch.setattr(inductor, "compile_graph", lambda *args: made_here.append(1) or original(*args))
    problem = quadratic()
    for beta, lr in ((0.3, 0.1), (0.6, 0.05)):
        settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, lr=lr, decay=0.5)}
        ours = path(ud.FedAvg_M(beta=beta), problem, engine="compiled", **settings)
        assert gap(ours, path(ud.FedAvg_M(beta=beta), problem, **settings)) < 1e-9
    assert len(made_here) == 2  # the step, and what comes after the steps


STRENGTH = 0.5


def scaled(d: Tensor) -> Tensor:
    return STRENGTH * d


class Tuning:
    strength = 0.5


class ReadsAround(PlainFedAvg):
    """A method whose numbers are no attributes of it: they belong to its module, its class, another class."""

    strength = 0.5

    def local(self, down: Any, client: Any, work: Any) -> Any:
        factor = Tuning.strength * self.strength
        y = work.loop(lambda y: work.step(y, factor * scaled(work.grad(y))), down.x)
        return Up(down.x - y), None


@pytest.mark.parametrize(
    "where, name",
    [
        (import_module(__name__), "STRENGTH"),
        (ReadsAround, "strength"),
        (Tuning, "strength"),
        (import_module(__name__), "scaled"),
    ],
    ids=["module", "class", "another class", "function"],
)
def test_what_a_method_reads_around_it_belongs_to_its_program(
    where: Any, name: str, interpreted: None, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, settings = ragged(), {"rounds": 2, "local": ud.Local(steps=2, batch=4, lr=0.1)}
    for value in (vars(where)[name], 0.25 if name != "scaled" else lambda d: 2 * d):
        monkeypatch.setattr(where, name, value)
        ours = path(ReadsAround(), problem, engine="compiled", **settings)
        assert gap(ours, path(ReadsAround(), problem, **settings)) < 1e-9
    assert refusals() == []


class Halved(ReadsAround):
    """Another method, but for its step."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, client = super().local(down, client, work)
        return Up(0.5 * up.delta), client


def test_a_method_may_call_the_one_that_it_extends(
    interpreted: None, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, settings = ragged(), {"rounds": 2, "local": ud.Local(steps=2, batch=4, lr=0.1)}
    for strength in (0.5, 0.25):
        monkeypatch.setattr(ReadsAround, "strength", strength)
        ours = path(Halved(), problem, engine="compiled", **settings)
        assert gap(ours, path(Halved(), problem, **settings)) < 1e-9
    assert refusals() == []


def test_what_may_change_around_a_method_is_not_compiled(
    interpreted: None, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadsAround, "strength", np.array(0.5))
    path(ReadsAround(), ragged(), engine="compiled", rounds=2, local=ud.Local(steps=2, batch=4))
    assert [line for line in refusals() if "reads strength, a ndarray" in line]


def test_a_resumed_run_with_its_choice_gives_the_same_bits(interpreted: None) -> None:
    problem = ragged(torch.float32)
    settings: dict[str, Any] = {
        "participation": ud.Uniform(3), "local": ud.Local(steps=3, batch=4, lr=0.1),
        "engine": EngineChoice("compiled", chunk=2, since=3),
    }  # fmt: skip
    whole = ud.run(ud.Scaffold(), problem, rounds=6, **settings)
    for pause in (1, 2, 3, 5):
        half = ud.run(ud.Scaffold(), ragged(torch.float32), rounds=pause, **settings)
        resumed = ud.run(ud.Scaffold(), problem, rounds=6, start=half, **settings)
        assert torch.equal(resumed.x, whole.x)


@needs_compiler
def test_an_old_value_that_is_carried_on_is_the_old_one(refusals: Any) -> None:
    """CE-LSGD carries the model of the step before; a compiler may think that a copy of it is none."""
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=4, batch=4, lr=0.1)}
    ours = path(ud.CELSGD(0.3), ragged(), engine="compiled", **settings)
    assert gap(ours, path(ud.CELSGD(0.3), ragged(), **settings)) < 1e-9
    assert refusals() == []


class Leapfrog(PlainFedAvg):
    """Makes a new vector of the one before the last, to which a gradient is added."""

    factor = 2.0

    def local(self, down: Any, client: None, work: Any) -> tuple[Up, None]:
        def step(past: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return y, past - self.factor * work.lr * work.grad(y)

        return Up(down.x - work.loop(step, down.x, down.x)[1]), None


def test_a_value_that_begins_as_another_old_one(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=4, batch=4, lr=0.1)}
    problem, method = ragged(), Leapfrog()
    for method.factor in (2.0, 1.5):  # also a number of a method that is no dataclass is an input
        ours = path(method, problem, engine="compiled", **settings)
        assert gap(ours, path(method, problem, **settings)) < 1e-9


def test_a_zero_step_size_is_computed_once(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ragged()
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=4, lr=0.0)}
    alone = path(ud.Scaffold(), problem, **settings)
    monkeypatch.setattr(compiled, "visit_chunk", lambda *_: pytest.fail("computed again"))
    assert gap(path(ud.Scaffold(), problem, engine="compiled", **settings), alone) < 1e-9


def test_ragged_minibatches_do_not_change_how_others_are_computed(interpreted: None) -> None:
    """A visit that cannot be compiled, because of its minibatches, says nothing about the next."""
    problem = ragged()
    problem.Y[problem.samples(0)[0]] = -100  # ignored, so that short minibatches cannot be filled up
    settings: dict[str, Any] = {
        "participation": ud.Fixed([[1, 3], [0, 1], [3, 5]]), "engine": "compiled",
        "local": ud.Local(steps=2, batch=7, lr=0.1),
    }  # fmt: skip
    whole = ud.run(ud.FedAvg(), problem, rounds=3, **settings)
    half = ud.run(ud.FedAvg(), problem, rounds=2, **settings)
    PROGRAMS.clear()  # as in another process
    assert torch.equal(ud.run(ud.FedAvg(), problem, rounds=3, start=half, **settings).x, whole.x)
