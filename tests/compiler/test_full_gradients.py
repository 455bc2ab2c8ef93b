"""Compiled visits that take full gradients, which are computed outside of their programs, on a model of several parameters."""

from typing import Any

import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.compiled import assert_compiled_whole, local_of, needs_compiler, ragged
from tests.support.method_table import ROWS, Row, made
from tests.support.toy_problem import gap, path
from undrift.algorithms.fedavg import FedAvg, Up
from undrift.simulation.engines.compiled import programs_of
from undrift.simulation.engines.tracing import VisitSpec

TAKE_THEM = [row for row in ROWS if row.name in ("mime", "mimelite", "mimelite-mvr", "bvr-l-sgd")]
WITHIN = {torch.float64: 1e-9, torch.float32: 1e-5}
both_dtypes = pytest.mark.parametrize("dtype", WITHIN, ids=str)


SETTINGS: dict[str, Any] = {"rounds": 3, "participation": ud.Uniform(4)}


def check_run(algorithm: Any, problem: Any, local: ud.Local, chunk: int | None = None) -> None:
    ours = path(algorithm, problem, engine="compiled", local=local, chunk=chunk, **SETTINGS)
    assert gap(ours, path(algorithm, problem, local=local, **SETTINGS)) < WITHIN[problem.x0.dtype]


@both_dtypes
@pytest.mark.parametrize("row", TAKE_THEM, ids=str)
def test_full_gradients_lie_as_programs_expect(row: Row, dtype: torch.dtype, interpreted: None, refusals: Any) -> None:
    for chunk in (None, 1):
        problem = ragged(dtype)
        check_run(made(row), problem, local_of(row, batch=4), chunk)
        assert_compiled_whole(problem)
        specs = programs_of(problem).specs.values()
        assert any(spec.calls for spec in specs if isinstance(spec, VisitSpec))
    assert refusals() == []


class Anchored(FedAvg):
    """Takes one before its loop, which starts from it and captures it, and one after."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        g = work.full_grad(down.x)
        step = lambda y, m: (work.step(y, m + 0.1 * g), 0.5 * m + work.grad(y))
        y, _ = work.loop(step, down.x, g)
        return Up(down.x - y + 0.1 * work.full_grad(y)), None


@both_dtypes
def test_loops_may_start_from_full_gradients(dtype: torch.dtype, interpreted: None, refusals: Any) -> None:
    for chunk in (None, 1):
        check_run(Anchored(), ragged(dtype), ud.Local(steps=3, batch=4, lr=0.1), chunk)
    assert refusals() == []


@needs_compiler
@both_dtypes
@pytest.mark.parametrize("algorithm", [ud.MimeLiteMVR(), Anchored()], ids=lambda each: type(each).__name__)
def test_full_gradients_in_machine_code(algorithm: Any, dtype: torch.dtype, refusals: Any) -> None:
    check_run(algorithm, ragged(dtype), ud.Local(steps=3, batch=4, lr=0.1))
    assert refusals() == []


def test_a_full_gradient_that_lies_otherwise_is_laid_out(
    interpreted: None, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ragged()
    full_grad = problem.full_grad

    def turned(y: Tensor, clients: Any) -> Tensor:
        g = full_grad(y, clients)
        return g if g.dim() == 1 else g.t().contiguous().t()

    monkeypatch.setattr(problem, "full_grad", turned)
    check_run(ud.MimeLite(), problem, ud.Local(steps=3, batch=4, lr=0.1))
    assert refusals() == []


def test_a_full_gradient_of_another_dtype_is_refused(
    interpreted: None, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program would read it as what it was made for, beyond its end too."""
    problem = ragged()
    full_grad = problem.full_grad
    monkeypatch.setattr(problem, "full_grad", lambda y, clients: full_grad(y, clients).float())
    with pytest.raises(ud.Diverged, match="no client returned a finite result of the right shape"):
        check_run(ud.MimeLite(), problem, ud.Local(steps=3, batch=4, lr=0.1))
    (line,) = refusals()
    assert line.startswith("not compiled: a call returns torch.float32 [4, 57] where torch.float64 [4, 57] is needed")
