"""What losses and models hold besides parameters is a part of what was captured or compiled."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.compiled import ragged
from undrift.compiler import capture
from undrift.compiler.constants import values_held

SCALE = {"of": [1.0]}


class Scaled(nn.Module):
    """A loss with an attribute that may be set."""

    scale = 1.0

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        return self.scale * F.cross_entropy(out, target)


class Settings:
    scale = 1.0


def from_globals(out: Tensor, target: Tensor) -> Tensor:
    return SCALE["of"][0] * F.cross_entropy(out, target)


def from_closure(settings: Settings) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda out, target: settings.scale * F.cross_entropy(out, target)


def scaled_by(settings: Settings, out: Tensor, target: Tensor) -> Tensor:
    return settings.scale * F.cross_entropy(out, target)


def losses() -> dict[str, tuple[Any, Callable[[float], None]]]:
    """Losses, and how each is changed."""
    module, first, second, weighted = Scaled(), Settings(), Settings(), nn.CrossEntropyLoss(torch.ones(3).double())
    buffer: Any = weighted.weight
    return {
        "attribute": (module, partial(setattr, module, "scale")),
        "global": (from_globals, lambda value: SCALE["of"].__setitem__(0, value)),
        "closure": (from_closure(first), partial(setattr, first, "scale")),
        "partial": (partial(scaled_by, second), partial(setattr, second, "scale")),
        "buffer": (weighted, lambda value: buffer[1:].fill_(value)),
    }


@pytest.fixture(autouse=True)
def _globals() -> Any:
    yield
    SCALE["of"][0] = 1.0


@pytest.mark.parametrize("engine", ["batched", "compiled"])
@pytest.mark.parametrize("kind", list(losses()))
def test_a_loss_that_changes_between_runs_is_the_new_one(
    kind: str, engine: str, interpreted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "CALLS", 4)
    loss, change = losses()[kind]
    problem = ragged(loss=loss)
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    seen = []
    for value in (1.0, 3.0):
        change(value)
        expected = ud.run(ud.FedAvg(), problem, engine="sequential", **settings).x
        assert torch.allclose(ud.run(ud.FedAvg(), problem, engine=engine, **settings).x, expected, rtol=1e-9)
        seen.append(expected)
    assert not torch.allclose(*seen, rtol=1e-3)


@pytest.mark.parametrize("engine", ["batched", "compiled"])
def test_a_loss_that_changes_every_round(
    engine: str, interpreted: None, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "CALLS", 4)

    def played(engine: str) -> Tensor:
        loss = Scaled()

        def anneal(r: ud.Round) -> None:
            loss.scale = 0.9**r.round

        settings: dict[str, Any] = {"rounds": 8, "local": ud.Local(steps=3, batch=4, lr=0.1), "on_round": anneal}
        return ud.run(ud.FedAvg(), ragged(loss=loss), engine=engine, **settings).x

    assert torch.allclose(played(engine), played("sequential"), rtol=1e-9)
    assert len(refusals()) == (engine == "compiled")


class Fading(nn.Module):
    """A layer that counts its calls, and after some of them does something else."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return x / (1 + self.calls // 100)


def test_a_model_that_counts_is_neither_captured_nor_compiled(
    interpreted: None, refusals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "CALLS", 2)
    net = nn.Sequential(nn.Linear(5, 3), Fading()).double()
    problem = ragged(model=net)
    settings: dict[str, Any] = {"rounds": 6, "local": ud.Local(steps=3, batch=4, lr=0.1)}
    ud.run(ud.FedAvg(), problem, engine="batched", **settings)
    assert not problem.captured.captured
    ud.run(ud.FedAvg(), problem, engine="compiled", **settings)
    assert len(refusals()) == 1


def test_what_is_held_is_compared_by_value() -> None:
    function = lambda: array.sum() + sum(words.values())
    array, words = np.arange(3.0), {"a": 1}
    first = values_held(function)
    assert values_held(function) == first
    array[0] = 1
    second = values_held(function)
    words["a"] = 2
    assert len({first, second, values_held(function)}) == 3
    words["a"], array[0] = 1, 0
    assert values_held(function) == first


def test_large_and_circular_things_are_known_by_identity() -> None:
    circle: dict[str, Any] = {"many": list(range(10_000))}
    circle["itself"] = circle
    function = lambda: circle
    assert values_held(function) == values_held(function)
