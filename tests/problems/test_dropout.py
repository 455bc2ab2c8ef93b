"""Dropout: seeded per call, the same units in every engine."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from tests.support.small_model import federation
from tests.support.toy_problem import gap, path
from undrift.core.rng import Key
from undrift.problems.dropout import draw_kept_units, draw_kept_units_compiled
from undrift.problems.flat import FlatModel


@settings(deadline=None)
@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    units=st.integers(1, 2000),
    p=st.floats(0.01, 0.99),
)
def test_the_compilers_dropout_drops_the_same_units(seeds: list[int], units: int, p: float) -> None:
    seed = torch.tensor(seeds)
    assert torch.equal(draw_kept_units(seed, [units], p), draw_kept_units_compiled(seed, [units], p))


def dropout_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, 3), nn.Dropout(0.1)).double()


def test_dropout_repeats_on_the_same_minibatch() -> None:
    problem = federation(model=dropout_net())
    minibatches = problem.draw(Key(0, 1), [0], [2], 5)
    a, b, c = (problem.grad(problem.x0, minibatches, k) for k in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)
    other = problem.draw(Key(1, 1), [0], [2], 5)
    assert not torch.equal(a, problem.grad(problem.x0, other, 0))


@pytest.mark.parametrize("local", [{"steps": 4, "batch": 5}, {"epochs": 1, "batch": 4}], ids=str)
def test_engines_agree_with_dropout(local: dict[str, Any]) -> None:
    problem = federation(model=dropout_net())
    assert problem.engine == "batched"
    settings: dict[str, Any] = {
        "rounds": 3, "local": ud.Local(**local), "participation": ud.Uniform(3)
    }  # fmt: skip
    for algorithm in (ud.FedAvg(), ud.FedAvg_M_VR(0.3)):
        a, b = (path(algorithm, problem, engine=e, **settings) for e in ("sequential", "batched"))
        assert gap(a, b) < 1e-9


def test_dropout_drops_the_right_share_and_keeps_the_mean() -> None:
    flat = FlatModel(nn.Sequential(nn.Dropout(0.3), nn.Linear(1000, 1, bias=False)))
    flat.template.train()
    (layer,) = flat.dropouts
    dropped = []
    for seed in range(40):
        layer.seed = torch.tensor(seed)
        out = layer(torch.ones(5, 1000))
        dropped.append(float((out == 0).float().mean()))
        assert torch.allclose(out[out != 0], torch.tensor(1 / 0.7))
    assert np.mean(dropped) == pytest.approx(0.3, abs=0.005)
    assert np.std(dropped) == pytest.approx(np.sqrt(0.21 / 5000), rel=0.5)
    flat.template.eval()
    assert torch.equal(layer(torch.ones(5, 1000)), torch.ones(5, 1000))


def test_channels_are_dropped_whole() -> None:
    flat = FlatModel(nn.Sequential(nn.Dropout2d(0.5), nn.Conv2d(8, 1, 1)))
    (layer,) = flat.dropouts
    layer.train()
    layer.seed = torch.tensor(3)
    out = layer(torch.ones(6, 8, 4, 4)).flatten(2)
    assert ((out == 0).all(-1) | (out == 2).all(-1)).all()


def test_a_layer_used_twice_is_keyed_twice() -> None:
    drop = nn.Dropout(0.5)
    problem = federation(model=nn.Sequential(nn.Linear(6, 9), drop, nn.Linear(9, 3), drop).double())
    assert len(problem.flat.dropouts) == 2 and problem.engine == "batched"


def test_a_dropout_called_twice_draws_twice() -> None:
    flat_model = federation(model=nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).double()).flat
    (layer,) = flat_model.dropouts
    layer.train()
    layer.seed, layer.calls = torch.tensor(1), 0
    once, twice = layer(torch.ones(50, 6)), layer(torch.ones(50, 6))
    assert not torch.equal(once, twice)
    layer.p = 1.0
    assert torch.equal(layer(torch.ones(5)), torch.zeros(5))


@pytest.mark.parametrize("step", [1, 2**32, 0x632BE5AB, 0x2545F491])
def test_dropped_units_are_as_many_as_they_should_be_and_unrelated(step: int) -> None:
    """Of seeds that differ little, as those of layers and calls do; within five standard deviations."""
    units, p = 40_000, 0.3
    stays = draw_kept_units(torch.arange(20) * step + 12345, [units], p).double()
    assert float((stays.mean(1) - (1 - p)).abs().max()) < 5 * (p * (1 - p) / units) ** 0.5
    related = torch.corrcoef(stays).fill_diagonal_(0).abs().max()
    assert float(related) < 5 / units**0.5
    next_to = torch.corrcoef(torch.stack([stays[0, :-1], stays[0, 1:]]))[0, 1]
    assert abs(float(next_to)) < 5 / units**0.5
