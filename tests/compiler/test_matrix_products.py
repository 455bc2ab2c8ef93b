"""Products of our own: the compiled code by itself, and where it serves."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud
from tests.support.compiled import needs_compiler, ragged
from tests.support.toy_problem import gap, path
from undrift.algorithms.fedavg import FedAvg, Up
from undrift.compiler import inductor, step
from undrift.compiler.kernels import gather as gathering
from undrift.compiler.kernels import products, small_products
from undrift.simulation.engines import EngineChoice

SIZES = {"clients": (1, 3), "runs": (1, 3), "n": (1, 25), "m": (1, 70), "k": (1, 5)}


def drawn(random: torch.Generator, dtype: torch.dtype, *shape: int, turned: bool = False) -> Tensor:
    """Random numbers, laid out so that rows or columns are side by side."""
    shape = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    t = torch.randn(*shape, dtype=dtype, generator=random)
    return t.transpose(-1, -2) if turned else t


def samples_of(
    random: torch.Generator, dtype: torch.dtype, *shape: int, turned: bool, by_number: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Samples `[clients, samples, length]` as products take them, with their numbers if they have some, and as they are."""
    if not by_number:
        x = drawn(random, dtype, *shape, turned=turned)
        return x, None, x
    clients, samples, length = shape
    data = drawn(random, dtype, 9, length)
    numbers = torch.randint(-9, 9, (clients, samples), generator=random)
    return data, numbers, data[numbers]


KINDS = st.sampled_from([torch.float32, torch.float64])


@needs_compiler
@settings(max_examples=150, deadline=None)
@given(
    sizes=st.fixed_dictionaries({name: st.integers(*ends) for name, ends in SIZES.items()}),
    dtype=KINDS,
    v_is=st.sampled_from(["none", "shared", "apart", "whole"]),
    f_is=st.sampled_from(["none", "shared", "each"]),
    turned=st.tuples(st.booleans(), st.booleans()),
    by_number=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_it_is_the_sum(
    sizes: dict[str, int],
    dtype: torch.dtype,
    v_is: str,
    f_is: str,
    turned: tuple[bool, bool],
    by_number: bool,
    seed: int,
) -> None:
    """Whatever the shapes, with v and f of all rows, of each or of none, and matrices laid out either way."""
    clients, runs, n, m, k = sizes.values()
    random = torch.Generator().manual_seed(seed)
    rows = clients * runs
    around = drawn(random, dtype, rows * n * m + 200)  # nothing beside y is to be touched
    before = around.clone()
    y = around[100:-100].view(rows, n * m)
    v = {
        "none": None,
        "shared": drawn(random, dtype, 1, n * m).expand(rows, -1),
        "apart": drawn(random, dtype, rows, n * m + 3)[:, : n * m],
        "whole": drawn(random, dtype, rows, n * m),
    }[v_is]
    f = None if f_is == "none" else drawn(random, dtype, rows if f_is == "each" else 1, 1)
    a = drawn(random, dtype, clients, runs * n, k, turned=turned[0])
    x, numbers, samples = samples_of(random, dtype, clients, k, m, turned=turned[1], by_number=by_number)
    exact = y.double() if f is None else f.double() * y.double()
    exact = exact + (a.double() @ samples.double()).view(rows, -1) + (0 if v is None else v)
    products.summed_(y, v, f, a, x, numbers)
    assert float((y.double() - exact).abs().max()) < 100 * torch.finfo(dtype).eps
    assert torch.equal(around[:100], before[:100]) and torch.equal(around[-100:], before[-100:])


@needs_compiler
@settings(max_examples=150, deadline=None)
@given(
    clients=st.integers(1, 3),
    samples=st.integers(1, 13),
    n=st.sampled_from([1, 2, 3, 4, 5, 9, 50, 51, 107]),
    k=st.sampled_from([1, 7, 16, 40, 64, 1023, 1024, 1031, 2100]),
    dtype=KINDS,
    turned=st.tuples(st.booleans(), st.booleans()),
    one_layer=st.booleans(),
    by_number=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_it_is_the_product(
    clients: int,
    samples: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    turned: tuple[bool, bool],
    one_layer: bool,
    by_number: bool,
    seed: int,
) -> None:
    """Whatever the shapes, with a layer for each client or one for all, and matrices laid out either way."""
    random = torch.Generator().manual_seed(seed)
    w = drawn(random, dtype, 1 if one_layer else clients, n, k, turned=turned[0])
    w = w.expand(clients, -1, -1)
    x, numbers, whole = samples_of(random, dtype, clients, samples, k, turned=turned[1], by_number=by_number)
    exact = whole.double() @ w.double().transpose(1, 2)
    found = products.outputs(x, numbers, w)
    assert found.shape == (clients, samples, n) and found.dtype == dtype
    # sums of k products that may be large and cancel
    assert float((found.double() - exact).abs().max()) < 100 * k * torch.finfo(dtype).eps


@pytest.mark.parametrize("each", [False, True], ids=["one factor", "a factor each"])
def test_vectors_times_numbers(each: bool) -> None:
    torch.manual_seed(0)
    own, shared = torch.randn(3, 7).double(), torch.randn(1, 7).double().expand(3, -1)
    factors = torch.randn(3 if each else 1, 2).double()
    for vectors in ([own, shared], [shared, own], [shared, shared], [own, own]):
        expected = factors[:, :1] * vectors[0] + factors[:, 1:] * vectors[1]
        found = products.weighted(vectors, factors)
        assert found.shape == (3, 7) and torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def large(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let steps run as they are traced, those of small layers as if they were large; the operations in them."""
    seen: list[str] = []

    def built(graph: Any, *_: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        found = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.index.Tensor)
        seen.extend(f"gathered {node.meta['val'].dtype}" for node in found)
        return lambda args: graph(*args)

    monkeypatch.setattr(inductor, "compile_graph", built)
    monkeypatch.setattr(small_products, "SMALL", 0)
    monkeypatch.setattr(step, "LARGE", 0)
    monkeypatch.setattr(gathering, "LONG", 1)
    monkeypatch.setattr(gathering, "WORTH", 1)
    return seen


SETTINGS: dict[str, Any] = {
    "rounds": 3, "participation": ud.Uniform(4), "local": ud.Local(steps=5, batch=4, lr=0.1)
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [(ud.Scaffold(), "v v"), (ud.ScaffoldM(0.3), "v v"), (ud.FedProx(0.2), "f v f v")],
    ids=repr,
)
def test_what_stays_the_same_is_made_once_a_visit(algorithm: Any, parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, made = large(monkeypatch), []
    monkeypatch.setattr(step.CompiledStep, "prepare", _counted(step.CompiledStep.prepare, made))
    ours = path(algorithm, ragged(), engine="compiled", **SETTINGS)
    assert gap(ours, path(algorithm, ragged(), **SETTINGS)) < 1e-9
    assert "undrift.summed_.default" in seen and "undrift.weighted.default" not in seen
    # once when the program is checked, then in every round; what both layers need, f only if it is not one
    assert len(made) == 1 + SETTINGS["rounds"]
    assert {len(each) for each in made} == {len(parts.split())}


def _counted(ready: Any, made: list[Any]) -> Any:
    def counted(self: Any, steady: Any) -> Any:
        made.append(ready(self, steady))
        return made[-1]

    return counted


@pytest.mark.parametrize("algorithm", [ud.Scaffold(), ud.ScaffoldM(0.3)], ids=repr)
def test_where_it_cannot_be_compiled_a_library_does(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = large(monkeypatch)
    monkeypatch.setattr(gathering, "compiled_products", dict)
    ours = path(algorithm, ragged(), engine="compiled", **SETTINGS)
    assert gap(ours, path(algorithm, ragged(), **SETTINGS)) < 1e-9
    assert "aten.baddbmm_.default" in seen and "undrift.summed_.default" not in seen


@needs_compiler
def test_large_minibatches_are_a_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = large(monkeypatch)
    monkeypatch.setattr(gathering, "MOST_BYTES", 0)
    ours = path(ud.Scaffold(), ragged(), engine="compiled", **SETTINGS)
    assert gap(ours, path(ud.Scaffold(), ragged(), **SETTINGS)) < 1e-9
    assert "aten.baddbmm_.default" in seen and "undrift.summed_.default" not in seen


@needs_compiler
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedavg-m-vr", "scaffold-m-vr"])
def test_samples_are_read_where_they_lie(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, algorithm = large(monkeypatch), ud.method(name)
    ours = path(algorithm, plain(), engine="compiled", **SETTINGS)
    assert gap(ours, path(algorithm, plain(), **SETTINGS)) < 1e-9
    assert "undrift.outputs.default" in seen and "undrift.summed_.default" in seen
    assert "gathered torch.int64" in seen and "gathered torch.float64" not in seen  # only targets


def plain(clients: Any = None) -> Any:
    """Clients with as many samples each, which the model takes as they are stored."""
    torch.manual_seed(0)
    X, Y = torch.randn(40, 6, dtype=torch.float64), torch.arange(40) % 3
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return ud.federate((X, Y), model=net, loss=cross_entropy, clients=clients or ud.IID(8))


class Compact:
    """A partition that counts samples in 32 bits."""

    def split(self, samples: Any, seed: int) -> Any:
        found = ud.IID(8).split(samples, seed)
        return replace(found, index=found.index.astype(np.int32))


@needs_compiler
def test_numbers_of_another_kind_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = large(monkeypatch)
    ours = path(ud.FedAvg(), plain(Compact()), engine="compiled", **SETTINGS)
    assert gap(ours, path(ud.FedAvg(), plain(Compact()), **SETTINGS)) < 1e-9
    assert "gathered torch.float64" in seen


@needs_compiler
def test_runs_together_read_samples_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, problem = large(monkeypatch), plain()
    trials = [
        ud.Trial(ud.FedAvg(), problem, ud.Local(steps=5, batch=4, lr=lr), seed) for lr in (0.1, 0.3) for seed in (0, 1)
    ]
    settings: Any = {"rounds": 3, "participation": ud.Uniform(4)}
    found = ud.run_together(trials, engine="compiled", **settings)
    for trial, ours in zip(trials, found, strict=True):
        alone = ud.run(trial.algorithm, problem, local=trial.local, seed=trial.seed, **settings)
        assert float((ours.x - alone.x).abs().max()) < 1e-9
    assert "undrift.outputs.default" in seen and "undrift.summed_.default" in seen
    assert "gathered torch.float64" not in seen


class Lookup(nn.Module):
    """Rows of a table that is trained with what they are multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 6, dtype=torch.float64) / 3)
        self.layer = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.table[x.long().flatten()])


@pytest.mark.parametrize("engine", ["compiled", EngineChoice("compiled", 1)], ids=str)
def test_rows_of_the_model_are_no_data(
    engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are written over while samples are added up; a program that read them then would be given up."""
    large(monkeypatch)
    torch.manual_seed(0)
    X, Y = torch.randint(8, (40, 1)).double(), torch.arange(40) % 3
    problem = ud.federate((X, Y), model=Lookup(), loss=cross_entropy, clients=ud.IID(8))
    ours = path(ud.Scaffold(), problem, engine=engine, **SETTINGS)
    assert gap(ours, path(ud.Scaffold(), problem, **SETTINGS)) < 1e-9
    assert "not compiled" not in caplog.text


class Fading(FedAvg):
    """A number that is carried through the steps, before the model, stands before a vector."""

    def local(self, down: Any, client: None, work: Any) -> Any:
        def step(s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return 0.99 * s, work.step(y, work.grad(y)) - s * down.x

        _, y = work.loop(step, work.zero + 0.1, down.x)
        return Up(down.x - y), None


def test_numbers_before_vectors_are_those_of_the_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large(monkeypatch)
    ours = path(Fading(), ragged(), engine="compiled", **SETTINGS)
    assert gap(ours, path(Fading(), ragged(), **SETTINGS)) < 1e-9
    assert "not compiled" not in caplog.text


class Grouped(nn.Module):
    """Several small layers side by side in one parameter: a client has more matrices than rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Parameter(torch.randn(5, 3, 5) / 4)
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        each = x.t().expand(5, -1, -1)
        return torch.bmm(self.layers, each).sum(0).t() + self.shift


def test_layers_side_by_side_are_a_librarys(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    large(monkeypatch)
    problem = ragged(model=Grouped().double())
    ours = path(ud.Scaffold(), problem, engine="compiled", **SETTINGS)
    assert gap(ours, path(ud.Scaffold(), problem, **SETTINGS)) < 1e-9
    assert "not compiled" not in caplog.text
