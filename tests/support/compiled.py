"""For tests of compiled code: fixtures that leave the compiler out or collect refusals, and small problems."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.method_table import Row
from tests.support.toy_problem import PlainFedAvg, WorldProblem
from undrift.algorithms.fedavg import Up
from undrift.compiler import CannotCompile, inductor
from undrift.compiler.kernels.products import summed_
from undrift.simulation.engines.choice import cpp_compiler
from undrift.simulation.engines.compiled import programs_of


def needs_compiler(test: Any) -> Any:
    """A mark for tests that compile, which takes seconds unless the same program is cached on disk."""
    missing = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler here")
    return pytest.mark.slow(missing(test))


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


def run_as_traced(graph: Any, *_: Any) -> Any:
    """A program that is not compiled, and as particular as one that is: machine code reads where the traced inputs lay."""
    places = graph.graph.find_nodes(op="placeholder")
    # `summed_` asks how a vector lies that nobody else reads: it may be one row for all
    checked = [any(user.target is not summed_ for user in place.users) for place in places]
    traced = [place.meta["val"] for place in places]

    def program(given: Sequence[Tensor]) -> Any:
        for t, like, is_checked in zip(given, traced, checked, strict=True):
            assert not is_checked or _lies(t) == _lies(like), (
                f"a program was traced with {_lies(like)}, given {_lies(t)}"
            )
        return graph(*given)

    return program


def _lies(t: Tensor) -> Any:
    return t.dtype, t.shape, [step for n, step in zip(t.shape, t.stride(), strict=True) if n > 1]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced steps are run as traced: all of the compiled engine but the compiler."""
    monkeypatch.setattr(inductor, "compile_graph", run_as_traced)


@pytest.fixture
def refusals(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, logger="undrift")
    return lambda: [r.getMessage() for r in caplog.records if "not compiled" in r.getMessage()]


def assert_compiled_whole(problem: Any) -> None:
    """Every visit of the runs on a problem was compiled, also what is beside its loop, and initialisation rounds."""
    programs = programs_of(problem)
    assert programs.visits
    found = [*programs.specs.values(), *programs.visits.values()]
    assert not any(isinstance(each, CannotCompile) for each in found)


def local_of(row: Row, **more: Any) -> ud.Local:
    steps = [4, 2, 3, 1, 5, 3] if row.unequal else 3
    return ud.Local(**({"steps": steps, "lr": 0.05, "decay": 0.9} | row.local | more))


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


class Careful(PlainFedAvg):
    """Its step has a branch on a value."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        def step(y: Any) -> Any:
            g = work.grad(y)
            return y - work.lr * (g if float(g.norm()) < 1e9 else 0 * g)

        return Up(down.x - work.loop(step, down.x)), None
