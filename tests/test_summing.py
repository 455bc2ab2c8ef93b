"""Vectors that are added on the way to a product: the compiled code by itself, and where it serves."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import undrift as ud
from tests.federation import gap, path
from tests.test_engines import needs_compiler, ragged
from undrift.algorithms.fedavg import FedAvg, Up
from undrift.engines import folding, program, summing

SIZES = {"clients": (1, 3), "runs": (1, 3), "n": (1, 25), "m": (1, 70), "k": (1, 5)}


@needs_compiler
@settings(max_examples=150, deadline=None)
@given(
    sizes=st.fixed_dictionaries({name: st.integers(*ends) for name, ends in SIZES.items()}),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    shared=st.booleans(),
    each=st.booleans(),
    turned=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**32),
)
def test_it_is_the_sum(
    sizes: dict[str, int],
    dtype: torch.dtype,
    shared: bool,
    each: bool,
    turned: tuple[bool, bool],
    seed: int,
) -> None:
    """Whatever the shapes, with v and f of all rows or of each, and matrices laid out either way."""
    clients, runs, n, m, k = sizes.values()
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, turn: bool = False) -> Tensor:
        shape = (*shape[:-2], shape[-1], shape[-2]) if turn else shape
        t = torch.randn(*shape, dtype=dtype, generator=random)
        return t.transpose(-1, -2) if turn else t

    rows = clients * runs
    y = drawn(rows, n * m)
    v = drawn(1, n * m).expand(rows, -1) if shared else drawn(rows, n * m + 3)[:, : n * m]
    f = drawn(rows if each else 1, 1)
    a, b = drawn(clients, runs * n, k, turn=turned[0]), drawn(clients, k, m, turn=turned[1])
    exact = f.double() * y.double() + v.double() + (a.double() @ b.double()).view(rows, -1)
    summing.summed_(y, v, f, a, b)
    assert float((y.double() - exact).abs().max()) < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("each", [False, True], ids=["one factor", "a factor each"])
def test_vectors_times_numbers(each: bool) -> None:
    torch.manual_seed(0)
    own, shared = torch.randn(3, 7).double(), torch.randn(1, 7).double().expand(3, -1)
    factors = torch.randn(3 if each else 1, 2).double()
    for vectors in ([own, shared], [shared, own], [shared, shared], [own, own]):
        expected = factors[:, :1] * vectors[0] + factors[:, 1:] * vectors[1]
        found = summing.weighted(vectors, factors)
        assert found.shape == (3, 7) and torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def large(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let steps run as they are traced, those of small layers as if they were large; the operations in them."""
    seen: list[str] = []

    def built(graph: Any, arguments: Any, mode: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return lambda args: graph(*args)

    monkeypatch.setattr(program, "built", built)
    monkeypatch.setattr(program, "SMALL_PRODUCT", 0)
    monkeypatch.setattr(program, "LARGE", 0)
    return seen


SETTINGS: dict[str, Any] = {
    "rounds": 3, "participation": ud.Uniform(4), "local": ud.Local(steps=5, batch=4, lr=0.1)
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("algorithm", [ud.Scaffold(), ud.ScaffoldM(0.3), ud.FedProx(0.2)], ids=repr)
def test_what_stays_the_same_is_made_once_a_visit(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, made = large(monkeypatch), []
    monkeypatch.setattr(program.Compiled, "ready", _counted(program.Compiled.ready, made))
    ours = path(algorithm, ragged(), engine="compiled", **SETTINGS)
    assert gap(ours, path(algorithm, ragged(), **SETTINGS)) < 1e-9
    assert "undrift.summed_.default" in seen and "undrift.weighted.default" not in seen
    # once when the program is checked, then in every round; f and v of both layers
    assert len(made) == 1 + SETTINGS["rounds"] and {len(each) for each in made} <= {3, 4}


def _counted(ready: Any, made: list[Any]) -> Any:
    def counted(self: Any, steady: Any) -> Any:
        made.append(ready(self, steady))
        return made[-1]

    return counted


@pytest.mark.parametrize("algorithm", [ud.Scaffold(), ud.ScaffoldM(0.3)], ids=repr)
def test_where_it_cannot_be_compiled_a_library_does(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = large(monkeypatch)
    monkeypatch.setattr(folding, "functions", dict)
    ours = path(algorithm, ragged(), engine="compiled", **SETTINGS)
    assert gap(ours, path(algorithm, ragged(), **SETTINGS)) < 1e-9
    assert "aten.baddbmm_.default" in seen and "undrift.summed_.default" not in seen


@needs_compiler
def test_large_minibatches_are_a_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = large(monkeypatch)
    monkeypatch.setattr(folding, "MOST_BYTES", 0)
    ours = path(ud.Scaffold(), ragged(), engine="compiled", **SETTINGS)
    assert gap(ours, path(ud.Scaffold(), ragged(), **SETTINGS)) < 1e-9
    assert "aten.baddbmm_.default" in seen and "undrift.summed_.default" not in seen


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


def test_layers_side_by_side_are_a_librarys(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large(monkeypatch)
    problem = ragged(model=Grouped().double())
    ours = path(ud.Scaffold(), problem, engine="compiled", **SETTINGS)
    assert gap(ours, path(ud.Scaffold(), problem, **SETTINGS)) < 1e-9
    assert "not compiled" not in caplog.text
