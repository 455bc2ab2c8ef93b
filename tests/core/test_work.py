"""`work.descend`: the way of a visit and the mean of its directions, from the way where it tells and from their sum else."""

from typing import Any

import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.quadratics import quadratic
from undrift.core.optimiser import HeavyBall
from undrift.core.rng import Key
from undrift.core.work import Solver, Work

STEPS = [3, 1, 4]


def visit(problem: Any, lr: float, momentum: float, single: bool = False) -> Work:
    clients, steps = ([0], STEPS[:1]) if single else ([0, 1, 2], STEPS)
    solver = Solver(lr, optimiser=HeavyBall(momentum) if momentum else None)
    return Work(problem, solver, clients, steps, Key(0, 1), single)


def directions(work: Work, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x - y, the mean of the gradients, and their sum carried along."""
    delta, mean, total = work.descend(lambda y, total: (work.grad(y), total + work.grad(y)), x, 0 * x)
    return delta, mean, total


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("lr", [0.0, 1e-3, 0.2])
def test_the_mean_is_that_of_all_directions(lr: float, momentum: float, single: bool) -> None:
    problem = quadratic()
    x = problem.x0 + 1.5 if single else (problem.x0 + 1.5).expand(3, -1)
    work = visit(problem, lr, momentum, single)
    delta, mean, total = directions(work, x)
    torch.testing.assert_close(mean, total / work.K, rtol=1e-11, atol=1e-12)
    if momentum == 0:
        torch.testing.assert_close(delta, lr * work.K * mean, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("lr", [1e-5, 1e-3, 0.1])
def test_rounding_is_no_more_than_the_models_own(lr: float) -> None:
    """In float32, what rounding does to the mean moves a later visit by a few units in the last place of x."""
    model, X, Y = torch.nn.Linear(20, 4), torch.rand(30, 20), torch.arange(30) % 4
    problem = ud.federate((X, Y), (X, Y), model=model, loss=torch.nn.functional.cross_entropy, clients=ud.IID(3))
    work = visit(problem, lr, 0.0)
    x = problem.x0.expand(3, -1)
    _, mean, total = directions(work, x)
    off = lr * work.K * (mean - total / work.K).abs()
    assert float(off.max()) <= max(STEPS) * torch.finfo(torch.float32).eps * float(x.abs().max())


def test_scaffold_learns_gradients_even_where_it_does_not_move() -> None:
    """A schedule may end at zero: c_i is then the gradient at x, and nothing is divided by zero."""
    problem, local = quadratic(), ud.Local(steps=2, lr=[0.1, 0.0])
    last = list(ud.rounds(ud.Scaffold(), problem, rounds=2, local=local))[-1]
    states = last.state.clients.gather([0, 1])
    expected = problem.full_grad(last.x.expand(2, -1), [0, 1])
    torch.testing.assert_close(states.c, expected, rtol=1e-12, atol=1e-12)
