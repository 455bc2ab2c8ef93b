"""Captured functions: the same bits, and whatever cannot be one list of operations left to the function itself."""

import pickle

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.compiler import capture
from undrift.compiler.capture import Captured


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(capture, "CALLS", 2)


def forms(function: Captured) -> list[bool]:
    return [found is not None for found in function.captured.values()]


def test_a_form_that_comes_again_is_captured_and_another_is_not():
    calls = []

    def function(a: Tensor, b: dict[str, Tensor]) -> Tensor:
        calls.append(1)
        return torch.func.vmap(torch.func.grad(lambda y, x: (y * x).sin().sum()))(a, b["x"])

    captured, a, b = Captured(function), torch.randn(3, 4), {"x": torch.randn(3, 4)}
    expected = function(a, b)
    for _ in range(5):
        assert torch.equal(captured(a, b), expected)
    assert forms(captured) == [True]
    assert len(calls) == 1 + 2 + 1 + 1  # alone, two calls, while it was captured, and the check in call 4
    assert torch.equal(captured(2 * a, b), function(2 * a, b))
    assert torch.equal(captured(a[:2], {"x": b["x"][:2]}), expected[:2]) and forms(captured) == [True]


def test_what_depends_on_values_is_left_to_the_function():
    captured = Captured(lambda a: a * 2 if bool(a.sum() > 0) else a)
    for sign in (1, 1, 1, -1):
        a = sign * torch.ones(3)
        assert torch.equal(captured(a), a * 2 if sign > 0 else a)
    assert forms(captured) == [False]


def test_what_is_not_the_same_again_is_left_to_the_function():
    numbers = iter(range(100))
    captured = Captured(lambda a: a + next(numbers))
    found = [float(captured(torch.zeros(1))) for _ in range(5)]
    assert forms(captured) == [False] and found == [0, 1, 3, 4, 5]  # number 2 was drawn while it was captured


def test_a_function_that_changes_later_is_an_error_and_no_wrong_result():
    scale = [2.0]
    captured = Captured(lambda a: a * scale[0])
    for _ in range(3):
        assert float(captured(torch.ones(1))) == 2
    scale[0] = 5.0
    with pytest.raises(RuntimeError, match="must not change between rounds"):
        for _ in range(2 * capture.CALLS):
            captured(torch.ones(1))


def test_operations_that_write_over_their_input_keep_their_order():
    def function(a: Tensor) -> Tensor:
        b = a.clone()
        before = b + 1
        b.mul_(3)
        return before + (b + 1)

    captured, a = Captured(function), torch.randn(4)
    assert all(torch.equal(captured(a), function(a)) for _ in range(4)) and forms(captured) == [True]


def test_another_process_captures_for_itself():
    captured = pickle.loads(pickle.dumps(Captured(torch.sin)))
    assert torch.equal(captured(torch.ones(2)), torch.ones(2).sin()) and not captured.captured


@pytest.mark.parametrize("layer", [nn.Identity(), nn.Dropout(0.4), nn.ReLU(inplace=True), nn.LayerNorm(5)])
def test_runs_have_the_same_bits_captured_or_not(layer, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(90, 6, generator=generator), torch.randint(3, (90,), generator=generator)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), layer, nn.Linear(5, 3))
    found = []
    for calls in (2, 10**9):
        monkeypatch.setattr(capture, "CALLS", calls)
        problem = ud.federate((X, Y), model=net, loss=nn.functional.cross_entropy, clients=ud.Dirichlet(7, alpha=0.5))
        how = {"participation": ud.Uniform(4), "local": ud.Local(steps=4, batch=8, lr=0.1), "engine": "batched"}
        found.append(ud.run(ud.Scaffold(), problem, rounds=5, **how).x)
        assert any(forms(problem.captured)) == (calls == 2)
    assert torch.equal(*found)
