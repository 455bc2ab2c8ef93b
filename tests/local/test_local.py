"""Local training: the solver, step sizes, numbers of steps, noise."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud
from tests.support.oracles.world import make_world
from tests.support.quadratics import quadratic
from tests.support.toy_problem import WorldProblem, gap, path
from undrift.core.rng import Key

# local work


def torch_sgd(problem: WorldProblem, K: int, **sgd: Any) -> torch.Tensor:
    """One FedAvg round of one client with PyTorch's own optimiser."""
    clip = sgd.pop("clip", None)
    y = nn.Parameter(problem.x0.clone())
    optimiser = torch.optim.SGD([y], **sgd)
    for k in range(K):
        y.grad = torch.as_tensor(problem.w.grad(0, y.detach().numpy(), 1, k))
        if clip is not None:
            nn.utils.clip_grad_norm_([y], clip)
        optimiser.step()
    return y.detach()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.3},
        {"clip": 0.7},
        {"momentum": 0.8, "weight_decay": 0.3, "clip": 1.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_local_solver_is_pytorchs_sgd(options: dict[str, Any], engine: str) -> None:
    problem = WorldProblem(make_world(1))
    local = ud.Local(steps=6, lr=0.1, **options)
    ours = ud.run(ud.FedAvg(), problem, rounds=1, local=local, engine=engine).x
    theirs = torch_sgd(problem, 6, lr=0.1, **options)
    # PyTorch's clipping adds 1e-6 to the norm
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-5 if "clip" in options else 1e-12)


def test_weight_decay_is_part_of_the_gradient() -> None:
    """It enters control variates: SCAFFOLD with weight decay finds the optimum of the penalised objective."""
    problem, wd = quadratic(), 0.2
    penalised = ud.Quadratic(problem.H + wd * torch.eye(4, dtype=torch.float64), problem.e)
    local = ud.Local(steps=4, lr=0.1, weight_decay=wd)
    x = ud.run(ud.Scaffold(), problem, rounds=300, local=local).x
    assert torch.allclose(x, penalised.optimum, rtol=0, atol=1e-10)


def test_decay_and_lists_of_step_sizes() -> None:
    problem = WorldProblem(make_world(4))
    lrs = [0.1 * 0.9**t for t in range(6)]
    decayed, listed = ud.Local(steps=2, lr=0.1, decay=0.9), ud.Local(steps=2, lr=lrs)
    a, b = (path(ud.FedAvg_M(0.3), problem, rounds=6, local=x) for x in (decayed, listed))
    assert gap(a, b) < 1e-12


def test_drawn_numbers_of_steps() -> None:
    problem = quadratic()
    counts = [k for t in range(1, 300) for k in ud.Local(steps=(2, 5)).count(problem, Key(0, t), range(6))]
    assert sorted(set(counts)) == [2, 3, 4, 5]
    assert abs(np.mean(counts) - 3.5) < 0.1
    together = [ud.Local(steps=ud.Geometric(0.25)).count(problem, Key(0, t), range(6)) for t in range(500)]
    assert all(len(set(k)) == 1 for k in together)
    assert abs(np.mean([k[0] for k in together]) - 4) < 0.6


def test_zero_step_size_is_legal() -> None:
    problem = WorldProblem(make_world(4))
    result = ud.run(ud.FedAvg_M(0.5, gamma=0.1), problem, rounds=3, local=ud.Local(steps=2, lr=0.0))
    assert result.stopped is None and not torch.equal(result.x, problem.x0)


def test_unequal_steps_cost_only_their_own_minibatches() -> None:
    """A client's path does not depend on who works beside it."""
    problem = quadratic()
    noisy = ud.Quadratic(problem.H, problem.e, variance=1.0)
    local = ud.Local(steps=[1, 7, 2, 6, 3, 5], lr=0.05)
    alone = path(ud.FedAvg(), noisy, rounds=1, participation=ud.Fixed([[2]]), local=local)
    pair = path(ud.FedAvg(), noisy, rounds=1, participation=ud.Fixed([[1, 2]]), local=local,
                engine="batched")  # fmt: skip
    other = path(ud.FedAvg(), noisy, rounds=1, participation=ud.Fixed([[1]]), local=local)
    assert gap(pair, (alone + other) / 2) < 1e-12


def test_noise_has_the_variance_that_was_asked_for() -> None:
    d = 5
    problem = ud.Quadratic(torch.eye(d)[None], torch.zeros(1, d), variance=4.0)
    minibatches = problem.draw(Key(0, 1), [0], [4000], None)
    noise = torch.stack([problem.grad(torch.zeros(d), minibatches, k) for k in range(4000)])
    assert abs(float((noise**2).sum(1).mean()) - 4.0) < 0.2
    assert float(noise.mean(0).abs().max()) < 0.06
