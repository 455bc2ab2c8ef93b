"""Engines agree, repeat themselves bit for bit, and say so when they cannot do what was asked."""

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.algorithms.test_conformance import made
from tests.algorithms.test_optimum import quadratic
from tests.support.method_table import ROWS, Row
from tests.support.oracles.world import make_world
from tests.support.toy_problem import PlainFedAvg, WorldProblem, gap, path
from undrift.algorithms.fedavg import Up
from undrift.compiler import inductor
from undrift.compiler import step as steps
from undrift.compiler.kernels import gather as gathering
from undrift.compiler.kernels import products, small_products
from undrift.simulation.engines import choice as choices
from undrift.simulation.engines.choice import Choice, choose, cpp_compiler
from undrift.simulation.engines.compiled import PROGRAMS

compiled = import_module(
    "undrift.simulation.engines.compiled"
)  # whose name in the package is the engine's

needs_compiler = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler here")


class TracedWorld(WorldProblem):
    """The oracles' federation with a gradient that can be traced, its vector in two pieces."""

    pieces = [1, 3]

    def resident(self) -> tuple[Tensor, Tensor]:
        return self.A, self.b

    def inputs(self, minibatches: Any, K: int, batch: int | None) -> list[tuple[Tensor, ...]]:
        clients, samples = minibatches
        return [(torch.tensor(clients), each) for each in samples.unbind(1)]

    def grad_of(self, y: Tensor, resident: Sequence[Tensor], minibatch: Any) -> Tensor:
        A, b = resident
        which = tuple(minibatch)
        g = (A[which] @ y.unsqueeze(-1)).squeeze(-1) - b[which]
        return torch.cat(g.split(self.pieces, 1), 1)  # as a model's gradient is put together


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced steps are run as traced: all of the compiled engine but the compiler."""
    monkeypatch.setattr(inductor, "build", lambda graph, *_: lambda args: graph(*args))


@pytest.fixture
def refusals(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, logger="undrift")
    return lambda: [r.getMessage() for r in caplog.records if "not compiled" in r.getMessage()]


def local_of(row: Row, **more: Any) -> ud.Local:
    steps = [4, 2, 3, 1, 5, 3] if row.unequal else 3
    return ud.Local(**({"steps": steps, "lr": 0.05, "decay": 0.9} | row.local | more))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_traced_steps_are_the_methods_own(row: Row, interpreted: None, refusals: Any) -> None:
    problem = TracedWorld(make_world(6, d=4))
    settings: dict[str, Any] = {"rounds": 4, "local": local_of(row)}
    if row.partial:
        settings["participation"] = ud.Uniform(4)
    ours = path(made(row), problem, engine="compiled", **settings)
    assert gap(ours, path(made(row), problem, **settings)) < 1e-9
    assert refusals() == []


def ragged(dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """A small network on clients of unequal size."""
    torch.manual_seed(3)
    X, Y = torch.randn(60, 5, dtype=dtype), torch.randint(0, 3, (60,))
    sizes = [4, 11, 7, 16, 9, 13]
    starts = np.cumsum([0, *sizes])
    clients = [list(range(a, b)) for a, b in zip(starts, starts[1:], strict=False)]
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
    kinds: dict[str, Any] = {"model": net, "loss": F.cross_entropy, "clients": clients}
    return ud.federate((X, Y), **(kinds | more))


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


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_updates_folded_into_products_are_the_methods_own(
    row: Row, monkeypatch: pytest.MonkeyPatch, refusals: Any
) -> None:
    """As for large layers: gradients are added to the model by the product itself."""
    products: list[int] = []
    shared: list[int] = []

    def run_as_traced(graph: Any, *_: Any) -> Any:
        targets = [str(node.target) for node in graph.graph.nodes]
        added = ("baddbmm_", "summed_")  # to what is there, or to a sum of vectors
        products.append(sum(any(name in target for name in added) for target in targets))
        shared.append(sum("aten.mm" in target for target in targets))
        return lambda args: graph(*args)

    monkeypatch.setattr(inductor, "build", run_as_traced)
    monkeypatch.setattr(small_products, "SMALL", 0)
    monkeypatch.setattr(steps, "LARGE", 0)
    settings: dict[str, Any] = {
        "rounds": 3, "local": local_of(row, steps=3, batch=4, weight_decay=0.01)
    }  # fmt: skip
    if row.partial:
        settings["participation"] = ud.Uniform(4)
    ours = path(made(row), ragged(), engine="compiled", **settings)
    assert gap(ours, path(made(row), ragged(), **settings)) < 1e-9
    assert refusals() == []
    if row.name in FOLDED and not settings["local"].momentum:
        assert max(products) >= 2  # both layers
    if row.name in PRODUCTS:
        assert max(products) == PRODUCTS[row.name] and max(shared) >= 1


@needs_compiler
@pytest.mark.parametrize("algorithm", [ud.Scaffold(), ud.ScaffoldMVR(0.3)], ids=repr)
def test_compiled_products_of_large_layers(
    algorithm: Any, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config, lowering

    monkeypatch.setenv("CI", "true")  # where torch is stricter about operators in place
    for operator in (torch.ops.aten.baddbmm_.default, products.outputs, products.summed_):
        lowering.lowerings.pop(operator, None)
    # all products that can be are our own, those of the first layer with samples where they lie
    for module, name in ((gathering, "LONG"), (gathering, "WORTH"), (steps, "LARGE")):
        monkeypatch.setattr(module, name, 1)
    net = nn.Sequential(nn.Linear(5, 400), nn.ReLU(), nn.Linear(400, 3))
    problem = ragged(model=net.double())
    local = ud.Local(steps=4, batch=4, lr=0.1)
    settings: dict[str, Any] = {"rounds": 3, "participation": ud.Uniform(4), "local": local}
    with config.patch(force_disable_caches=True):
        ours = path(algorithm, problem, engine="compiled", **settings)
    assert gap(ours, path(algorithm, problem, **settings)) < 1e-9
    assert (path(algorithm, problem, engine="compiled", **settings) == ours).all()
    assert refusals() == []


@pytest.mark.parametrize(("capability", "bits"), [("default", 1), (None, None)])
def test_programs_on_disk_are_told_apart_by_what_they_were_made_for(
    capability: str | None, bits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code of another processor, or for another number of threads, would crash or be slow."""
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if capability is not None:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with inductor.inductor_config():
        assert config.cpp.simdlen == (bits or pick_vec_isa().bit_width() or 1)
        assert config.cpp.threads == 3


@pytest.mark.parametrize(
    ("numbers", "kept"), [(inductor.MAX_CACHED_CONSTANTS, True), (10**6, False)]
)
def test_programs_with_large_frozen_parts_are_not_kept(numbers: int, kept: bool) -> None:
    frozen = torch.ones(numbers)
    module, _ = inductor.trace(lambda x: [x + frozen], [torch.ones(1)], lambda graph: True)
    assert (inductor.constants_in(module) <= inductor.MAX_CACHED_CONSTANTS) is kept


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

    monkeypatch.setattr(inductor, "build", build)
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ours = path(ud.FedAvg(), ragged(), engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), ragged(), **settings)) < 1e-9
    (line,) = refusals()
    assert "its program computes something else" in line


@needs_compiler
@pytest.mark.parametrize("name", ["scaffold-m", "fedavg-m", "fedhbm", "fedprox"])
def test_twenty_rounds_in_float32_are_the_batched_ones(name: str, refusals: Any) -> None:
    """Torch 2.7 to 2.11 got these wrong by 3 parts in 100 of the way, without a word."""
    torch.manual_seed(0)
    X, Y = torch.randn(1200, 20), torch.arange(1200) % 10
    layers = nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 150), nn.ReLU(), nn.Linear(150, 10)
    problem = ud.federate(
        (X, Y), model=nn.Sequential(*layers), loss=F.cross_entropy, clients=ud.IID(12)
    )
    settings: dict[str, Any] = {
        "rounds": 20, "participation": ud.Uniform(6), "local": ud.Local(steps=5, batch=16, lr=0.05)
    }  # fmt: skip
    ours, theirs = (
        path(ud.method(name), problem, engine=engine, **settings)[-1]
        for engine in ("compiled", "batched")
    )
    start = problem.x0.numpy()
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs - start)
    assert refusals() == []


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


def test_a_program_that_loses_its_momentum_is_given_up(
    monkeypatch: pytest.MonkeyPatch, refusals: Any
) -> None:
    """The first step from a momentum of zero is right: only several, from one that is not, show the mistake."""
    build = lambda graph, *_: Once(lambda args: graph(*args), carried=4)
    monkeypatch.setattr(inductor, "build", build)
    local = ud.Local(steps=3, batch=4, lr=0.1, momentum=0.9)
    settings: dict[str, Any] = {"rounds": 3, "local": local}
    ours = path(ud.FedAvg(), ragged(), engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), ragged(), **settings)) < 1e-9
    (line,) = refusals()
    assert "its program computes something else" in line


@pytest.mark.parametrize("engine", ["compiled", "auto", Choice("compiled", 4, since=2)], ids=str)
def test_an_untested_torch_does_not_compile(
    engine: Any, monkeypatch: pytest.MonkeyPatch, refusals: Any
) -> None:
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


def test_unequal_steps_of_any_number_run_the_same_program(
    interpreted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_here = []
    monkeypatch.setattr(
        inductor, "build", lambda graph, *_: made_here.append(1) or (lambda args: graph(*args))
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
    original = inductor.build
    monkeypatch.setattr(inductor, "build", lambda *args: made_here.append(1) or original(*args))
    problem = quadratic()
    for beta, lr in ((0.3, 0.1), (0.6, 0.05)):
        settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, lr=lr, decay=0.5)}
        ours = path(ud.FedAvg_M(beta=beta), problem, engine="compiled", **settings)
        assert gap(ours, path(ud.FedAvg_M(beta=beta), problem, **settings)) < 1e-9
    assert len(made_here) == 2  # the step, and what comes after the steps


def test_a_resumed_run_with_its_choice_gives_the_same_bits(interpreted: None) -> None:
    problem = ragged(torch.float32)
    settings: dict[str, Any] = {
        "participation": ud.Uniform(3), "local": ud.Local(steps=3, batch=4, lr=0.1),
        "engine": Choice("compiled", chunk=2, since=3),
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


def test_a_value_that_begins_as_another_old_one(
    interpreted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=4, batch=4, lr=0.1)}
    problem, method = ragged(), Leapfrog()
    for method.factor in (2.0, 1.5):  # also a number of a method that is no dataclass is an input
        ours = path(method, problem, engine="compiled", **settings)
        assert gap(ours, path(method, problem, **settings)) < 1e-9


def test_a_zero_step_size_is_computed_once(
    interpreted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ragged()
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=2, batch=4, lr=0.0)}
    alone = path(ud.Scaffold(), problem, **settings)
    monkeypatch.setattr(compiled, "visit_chunk", lambda *_: pytest.fail("computed again"))
    assert gap(path(ud.Scaffold(), problem, engine="compiled", **settings), alone) < 1e-9


def test_ragged_minibatches_do_not_change_how_others_are_computed(interpreted: None) -> None:
    """A visit that cannot be compiled, because of its minibatches, says nothing about the next."""
    problem = ragged()
    problem.Y[
        problem.samples(0)[0]
    ] = -100  # ignored, so that short minibatches cannot be filled up
    settings: dict[str, Any] = {
        "participation": ud.Fixed([[1, 3], [0, 1], [3, 5]]), "engine": "compiled",
        "local": ud.Local(steps=2, batch=7, lr=0.1),
    }  # fmt: skip
    whole = ud.run(ud.FedAvg(), problem, rounds=3, **settings)
    half = ud.run(ud.FedAvg(), problem, rounds=2, **settings)
    PROGRAMS.clear()  # as in another process
    assert torch.equal(ud.run(ud.FedAvg(), problem, rounds=3, start=half, **settings).x, whole.x)


# workers


@pytest.mark.parametrize("algorithm", [ud.FedAvg(), ud.Scaffold(B=1), ud.FedHBM()], ids=repr)
def test_any_number_of_workers_gives_the_same_bits(algorithm: Any) -> None:
    problem, threads = ragged(torch.float32), torch.get_num_threads()
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(epochs=1, batch=4, lr=0.1)}
    one = path(algorithm, problem, workers=1, **settings)
    for workers in (2, 3, 8):
        assert (path(algorithm, problem, workers=workers, **settings) == one).all()
    assert gap(path(algorithm, problem, engine="batched", **settings), one) < 1e-5
    assert torch.get_num_threads() == threads


def test_errors_of_workers_name_the_client() -> None:
    class Broken(PlainFedAvg):
        def local(self, down: Any, client: Any, work: Any) -> Any:
            if 2 in work.clients:
                raise ZeroDivisionError("the client's own fault")
            return super().local(down, client, work)

    broken: Any = Broken()
    with pytest.raises(ud.MethodFailure, match="client 2, round 1, stage local: ZeroDivision"):
        ud.run(broken, ragged(), rounds=1, workers=2)


class Hidden(nn.Module):
    """Draws random numbers of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.dropout(x, 0.3, self.training))


def test_problems_that_threads_cannot_share_are_refused() -> None:
    hidden: Any = ragged(model=Hidden())
    world: Any = WorldProblem(make_world(3))
    for problem, reason in ((hidden, "random numbers"), (world, r"no twin\(\)")):
        with pytest.raises(
            ud.InvalidInput, match=f"cannot compute this problem side by side.*{reason}"
        ):
            ud.run(ud.FedAvg(), problem, rounds=1, workers=2)


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
    assert choose(problem, rounds=10**9, **settings).engine == "sequential"


class Careful(PlainFedAvg):
    """Its step has a branch on a value."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        def step(y: Any) -> Any:
            g = work.grad(y)
            return y - work.lr * (g if float(g.norm()) < 1e9 else 0 * g)

        return Up(down.x - work.loop(step, down.x)), None


def test_a_step_with_branches_runs_as_written(refusals: Any) -> None:
    careful: Any = Careful()
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, batch=4, lr=0.1)}
    ours = path(careful, ragged(), engine="compiled", **settings)
    assert (ours == path(careful, ragged(), engine="batched", **settings)).all()
    assert len(refusals()) == 1 and "not compiled" in refusals()[0]


def test_without_a_compiler_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, refusals: Any
) -> None:
    def none(*args: Any) -> Any:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(inductor, "build", none)
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


def test_ignored_targets_are_not_padded(interpreted: None, refusals: Any) -> None:
    problem = ragged()
    problem.Y[::7] = -100
    settings: dict[str, Any] = {"rounds": 2, "local": ud.Local(steps=3, batch=6, lr=0.1)}
    ours = path(ud.FedAvg(), problem, engine="compiled", **settings)
    assert gap(ours, path(ud.FedAvg(), problem, **settings)) < 1e-9
    assert len(refusals()) == 1 and "negative" in refusals()[0]


# choices


def asked(problem: Any, **settings: Any) -> Choice:
    usual: dict[str, Any] = {
        "rounds": 5, "participation": ud.Uniform(3), "local": ud.Local(steps=4, batch=4)
    }  # fmt: skip
    return choose(problem, **(usual | settings))


def test_short_runs_stay_eager_and_long_ones_are_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = ragged()
    monkeypatch.setattr(choices, "step_seconds", lambda *args: 0.001)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: "g++")
    assert asked(problem) == Choice("batched", 3)
    with caplog.at_level(logging.INFO, logger="undrift"):
        ud.rounds(ud.FedAvg(), problem, rounds=5, participation=ud.Uniform(3))
    assert "engine: clients in chunks of 3, batched" in caplog.text
    assert asked(problem, rounds=10_000) == Choice("compiled", 3, since=2)
    assert "from round 2 on" in str(asked(problem, rounds=10_000))
    assert asked(problem, rounds=10_000, engine="batched") == Choice("batched", 3)
    monkeypatch.setattr(choices, "cpp_compiler", lambda: None)
    with caplog.at_level(logging.WARNING, logger="undrift"):
        assert asked(problem, rounds=10_000) == Choice("batched", 3)
    assert "no C++ compiler was found" in caplog.text


def test_a_quadratic_is_shared() -> None:
    local = ud.Local(steps=3, lr=0.1)
    one, two = (
        ud.run(ud.Scaffold(), quadratic(), rounds=3, local=local, workers=n).x for n in (1, 2)
    )
    assert torch.equal(one, two)


def test_convolutions_take_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = torch.randn(8, 1, 6, 6), torch.arange(8) % 2
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 2))
    problem = ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=ud.IID(4))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert asked(problem) == Choice("sequential", workers=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert asked(problem) == Choice("sequential")
    assert asked(problem, workers=3) == Choice("sequential", workers=3)


def test_memory_too_small_for_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "free_bytes", lambda device: 2000)
    with pytest.raises(ud.InvalidInput, match=r"one client needs about .* MiB: 8 vectors of 57"):
        ud.run(ud.FedAvg(), ragged(), rounds=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "warp"}, "warp"),
        ({"workers": 0}, "workers must lie in"),
        ({"engine": "batched", "workers": 2}, "leave workers out"),
        ({"engine": Choice("batched", 2), "chunk": 3}, "give one or the other"),
    ],
    ids=str,
)
def test_impossible_choices_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        ud.run(ud.FedAvg(), ragged(), rounds=1, **settings)
