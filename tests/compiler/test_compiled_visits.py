"""Visits that are compiled whole: which are, what becomes of those that fail, what clients keep, what is freed."""

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.compiled import needs_compiler, ragged
from tests.support.toy_problem import gap, path
from undrift.algorithms.fedavg import FedAvg, Up
from undrift.compiler import CannotCompile, kernels, layout
from undrift.core.records import record
from undrift.simulation.engines.choice import EngineChoice
from undrift.simulation.engines.compiled import programs_of


@pytest.mark.parametrize("algorithm", [ud.FedAvg(), ud.Scaffold(), ud.FedHBM()], ids=repr)
def test_who_diverges_in_a_compiled_visit_is_left_out(algorithm: Any, interpreted: None) -> None:
    problem = ragged()
    problem.X[problem.samples(2)] *= 1e200  # whose second step is beyond all numbers
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    for chunk in (None, 4):
        ours = ud.run(algorithm, problem, engine="compiled", chunk=chunk, **settings)
        alone = ud.run(algorithm, problem, engine="sequential", **settings)
        assert [r.left_out for r in ours.history] == [r.left_out for r in alone.history] == [(2,)] * 3
        assert [r.bytes_up for r in ours.history] == [r.bytes_up for r in alone.history]
        assert gap(ours.x.numpy(), alone.x.numpy()) < 1e-9


# what clients keep is written over what they have remembered


@record
class Two:
    a: Tensor
    b: Tensor


class Swapping(FedAvg):
    """Clients whose two vectors change places, as they are, shown otherwise, or with something added."""

    way = "bare"

    def client(self, x: Tensor) -> Any:
        return Two(0 * x, 0 * x + 1)

    def local(self, down: Any, client: Any, work: Any) -> Any:
        y = work.loop(lambda y: work.step(y, work.grad(y) + 0.1 * client.a), down.x)
        kept = {
            "bare": lambda: Two(client.b, client.a),
            "detached": lambda: Two(client.b.detach(), client.a.detach()),
            "sliced": lambda: Two(client.b[..., :], client.a[..., :]),
            "turned": lambda: Two(client.a.flip(-1) + client.b, client.a),
            "added": lambda: Two(client.b + 0.5, client.a + 0.5 * y),
        }[self.way]()
        return Up(down.x - y + 0.01 * kept.b), kept


WAYS = ("bare", "detached", "sliced", "turned", "added")
SETTINGS: dict[str, Any] = {
    "rounds": 4, "participation": ud.Uniform(4), "local": ud.Local(steps=3, batch=4, lr=0.1)
}  # fmt: skip


def check_swapping(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Swapping, "way", way)
    for most in (layout.MAX_PIECES, 0):  # vectors in pieces, and whole
        monkeypatch.setattr(layout, "MAX_PIECES", most)
        problem = ragged()
        ours = path(Swapping(), problem, engine="compiled", **SETTINGS)
        assert gap(ours, path(Swapping(), ragged(), **SETTINGS)) < 1e-9
        visits = programs_of(problem).visits.values()
        assert visits and not any(isinstance(each, CannotCompile) for each in visits)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_may_change_places(way: str, interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    check_swapping(way, monkeypatch)


@needs_compiler
@pytest.mark.parametrize("way", ["bare", "detached"])
def test_also_where_it_is_compiled(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_swapping(way, monkeypatch)


class Growing(FedAvg):
    """Clients that keep more than they have been given."""

    def client(self, x: Tensor) -> Any:
        return Two(0 * x, torch.zeros(1, dtype=x.dtype))

    def local(self, down: Any, client: Any, work: Any) -> Any:
        y = work.loop(lambda y: work.step(y, work.grad(y)), down.x)
        return Up(down.x - y), Two(client.b + y, client.a)


def test_who_keeps_other_shapes_is_told(interpreted: None) -> None:
    """As by other engines: nothing is stretched into its place."""
    for engine in ("batched", "compiled"):
        with pytest.raises(Exception) as error:
            ud.run(Growing(), ragged(), engine=engine, **SETTINGS)
        assert "shape" in str(error.value)


class Coarser(FedAvg):
    """Clients that begin with a number of another kind than they keep."""

    def client(self, x: Tensor) -> Any:
        return Two(0 * x, torch.zeros(1, dtype=torch.float32))

    def local(self, down: Any, client: Any, work: Any) -> Any:
        y = work.loop(lambda y: work.step(y, work.grad(y)), down.x)
        return Up(down.x - y), Two(y, client.b + y[..., :1])


def test_nothing_is_rounded_into_its_place(interpreted: None) -> None:
    for engine in ("batched", "compiled"):
        with pytest.raises(Exception, match="dtype"):
            ud.run(Coarser(), ragged(), engine=engine, **SETTINGS)


# steps that TorchInductor would stumble over


@needs_compiler
@pytest.mark.parametrize(
    "clients, off, dtype",
    [(2, (), torch.float64), (4, ("all",), torch.float32)],
    ids=["with kernels", "without"],
)
def test_clipped_steps_with_momentum_are_compiled(
    clients: int, off: tuple[str, ...], dtype: torch.dtype, refusals: Any
) -> None:
    """The new model is made of the old momentum, which is overwritten in the same loop: that reads no part of the model."""
    from torch._inductor import config

    torch.manual_seed(0)
    X, Y = torch.randn(50, 6, dtype=dtype), torch.randint(0, 3, (50,))
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    problem = ud.federate((X, Y), model=net, loss=F.cross_entropy, clients=ud.IID(clients))
    local = ud.Local(steps=3, batch=4, lr=0.1, clip=0.5, optimiser="nesterov")
    with kernels.without(*off), config.patch(force_disable_caches=True):
        ours = path(ud.FedAvg(), problem, rounds=2, engine="compiled", local=local)
    assert gap(ours, path(ud.FedAvg(), problem, rounds=2, local=local)) < (1e-9 if dtype == torch.float64 else 1e-5)
    assert refusals() == []


# memory


@pytest.mark.parametrize("algorithm", [ud.Scaffold(), ud.FedNova()], ids=repr)
@pytest.mark.parametrize("chunk, workers", [(4, None), (1, None), (1, 2)])
def test_a_problem_is_freed_with_its_programs(
    algorithm: Any, chunk: int, workers: int | None, interpreted: None
) -> None:
    problem = ragged()
    ud.run(algorithm, problem, engine=EngineChoice("compiled", chunk, workers), **SETTINGS)
    gone = weakref.ref(problem)
    del problem
    gc.collect()
    assert gone() is None
