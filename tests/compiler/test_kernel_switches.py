"""Every kernel of the compiler does something where it applies, and without it the run is the same up to rounding."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.compiled import needs_compiler, run_as_traced
from tests.support.everywhere import federation, models, played
from tests.support.toy_problem import gap
from undrift.compiler import inductor, kernels


def network(*layers: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Any:
    random = torch.Generator().manual_seed(0)
    X = torch.randn(64, *shape, dtype=dtype, generator=random)
    net = nn.Sequential(*layers).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=random) / 20)
    return ud.federate((X, torch.arange(64) % 3), model=net, loss=F.cross_entropy, clients=ud.IID(4))


def perceptron(inputs: int, hidden: int, dtype: torch.dtype = torch.float64) -> Any:
    layers = nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 3)
    return network(*layers, shape=(inputs,), dtype=dtype)


def convolutional() -> Any:
    layers = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    return network(*layers, shape=(2, 8, 8))


LOCAL = ud.Local(steps=3, batch=8, lr=0.1)
SETTINGS: dict[str, Any] = {"rounds": 2, "participation": ud.Everyone(), "local": LOCAL}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the operations of all programs that are built, which are then run as traced."""
    found: Counter[str] = Counter()

    def build(module: Any, *_: Any) -> Any:
        nodes = list(module.graph.nodes)
        found.update(str(node.target) for node in nodes if node.op == "call_function")
        found["hoisted"] += sum(node.name.startswith("ready_") for node in nodes)
        return run_as_traced(module)

    monkeypatch.setattr(inductor, "compile_graph", build)
    return found


# (a method and a problem where it applies, operations with it, operations without it)
CASES: dict[str, tuple[Any, Callable[[], Any], str, str]] = {
    "fuse-updates": (
        ud.Scaffold(),
        lambda: perceptron(300, 120),
        "undrift.summed_.default",
        "aten.copy_.default",
    ),
    "own-products": (
        ud.FedAvg(),
        lambda: perceptron(300, 120),
        "undrift.outputs.default",
        "aten.bmm.default",
    ),
    "hoist": (
        ud.Scaffold(),
        lambda: perceptron(300, 120),
        "hoisted",
        "undrift.weighted.default",
    ),
    "small-products": (
        ud.FedAvg(),
        lambda: perceptron(4, 5),
        "aten.sum.dim_IntList",
        "aten.bmm.default",
    ),
    "share-products": (
        ud.FedAvg_M_VR(beta=0.3),
        lambda: perceptron(200, 120),
        "aten.mm.default",
        "aten.bmm.default",
    ),
    "max-pool": (
        ud.FedAvg(),
        convolutional,
        "aten.maximum.default",
        "aten.scatter_add.default",
    ),
}


def test_every_switch_has_a_case() -> None:
    assert set(CASES) == set(kernels.KERNELS)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_does_something_and_changes_nothing(
    name: str,
    traced: Counter[str],
    refusals: Any,
) -> None:
    algorithm, make, with_it, without_it = CASES[name]
    problem = make()
    reference = models(played(algorithm, "sequential", problem, **SETTINGS))
    on = models(played(algorithm, "compiled", problem, **SETTINGS))
    with_kernel = Counter(traced)
    traced.clear()
    with kernels.without(name):  # on the same problem, whose programs are kept
        off = models(played(algorithm, "compiled", problem, **SETTINGS))
        assert not kernels.enabled(name)
    assert kernels.enabled(name)
    for found in (on, off):
        assert gap(found, reference) < 1e-9
    assert with_kernel[with_it] > traced[with_it]
    assert with_kernel[without_it] < traced[without_it]
    assert refusals() == []


@needs_compiler
def test_without_own_products_no_code_of_ours_is_called(traced: Counter[str]) -> None:
    """Also the product that an update is added to, and those of evaluations."""
    problem = perceptron(300, 120)
    with pytest.MonkeyPatch.context() as patch, kernels.without("own-products"):
        for module in ("gather", "dense", "products"):
            patch.setattr(f"undrift.compiler.kernels.{module}.compiled_products", _must_not_be_called)
        played(ud.Scaffold(), "compiled", problem, **SETTINGS)
    ours = ("undrift.summed_.default", "undrift.outputs.default", "undrift.weighted.default")
    assert not any(traced[name] for name in ours) and traced["aten.baddbmm_.default"]


def _must_not_be_called() -> Any:
    raise AssertionError("own products are switched off")


def test_runs_together_share_products(traced: Counter[str], refusals: Any) -> None:
    problem = perceptron(4, 5)
    trials = [ud.Trial(ud.FedAvg(), problem, ud.Local(steps=3, batch=8, lr=lr), 0) for lr in (0.1, 0.2)]

    def together() -> list[torch.Tensor]:
        found = ud.run_together(trials, rounds=2, engine="compiled")
        return [result.x for result in found]

    with kernels.without("small-products"):
        on, with_kernel = together(), Counter(traced)
        traced.clear()
        with kernels.without("share-products"):
            off = together()
    assert with_kernel["aten.bmm.default"] and with_kernel != traced
    for lr, *found in zip((0.1, 0.2), on, off, strict=True):
        local = ud.Local(steps=3, batch=8, lr=lr)
        alone = ud.run(ud.FedAvg(), problem, rounds=2, local=local, engine="sequential").x
        for x in found:
            assert gap(x.numpy(), alone.numpy()) < 1e-9
    assert refusals() == []


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["hoist", "all"])
def test_what_torch_inductor_is_left_with_compiles(name: str, refusals: Any) -> None:
    """In float32, where the numbers before vectors must be cast: with doubles there is nothing to cast."""
    problem = perceptron(300, 120, torch.float32)
    reference = models(played(ud.Scaffold(), "batched", problem, **SETTINGS))
    with kernels.without(name):
        found = models(played(ud.Scaffold(), "compiled", problem, **SETTINGS))
    assert gap(found, reference) < 1e-5
    assert refusals() == []


# switches


def test_switches_add_up_and_end() -> None:
    assert all(map(kernels.enabled, kernels.KERNELS))
    with kernels.without("hoist", "max-pool"):
        with kernels.without("fuse-updates"):
            off = [name for name in kernels.KERNELS if not kernels.enabled(name)]
            assert off == ["fuse-updates", "hoist", "max-pool"]
        assert kernels.enabled("fuse-updates") and not kernels.enabled("hoist")
    with pytest.raises(ZeroDivisionError), kernels.without("hoist"):
        raise ZeroDivisionError
    assert all(map(kernels.enabled, kernels.KERNELS))


def test_a_switch_that_is_not_there_is_refused_in_words() -> None:
    message = "without: unknown kernel 'hoits'; did you mean 'hoist'.* Known: all, fuse-updates, .*share-products"
    with pytest.raises(ud.InvalidInput, match=message), kernels.without("hoits"):
        raise AssertionError
    with pytest.raises(ValueError, match="there is no kernel 'hoits'"):
        kernels.enabled("hoits")


def test_a_switch_in_the_environment_that_is_not_there_stops_a_run_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDRIFT_KERNELS_OFF", "hoist, max-pol")
    with pytest.raises(
        ud.InvalidInput,
        match="UNDRIFT_KERNELS_OFF: unknown kernel 'max-pol'; did you mean 'max-pool'",
    ):
        ud.rounds(ud.FedAvg(), federation(), rounds=1, engine="compiled")
    ud.rounds(ud.FedAvg(), federation(), rounds=1, engine="batched")  # which has no kernels


@pytest.mark.parametrize(
    ("words", "off"),
    [("", []), (" hoist ,max-pool,", ["hoist", "max-pool"]), ("all", list(kernels.KERNELS))],
)
def test_switches_in_the_environment(words: str, off: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_KERNELS_OFF", words)
    assert [name for name in kernels.KERNELS if not kernels.enabled(name)] == off
