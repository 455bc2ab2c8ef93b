"""What a run can be resumed from: a state of the same federation and of the same form, and nothing else."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.method_table import ROWS, Row, made
from tests.support.quadratics import quadratic

ADAM, MOMENTUM = (ud.Local(steps=2, lr=0.1, optimiser=name, optimiser_state="keep") for name in ("adam", "momentum"))
FEEDBACK = "top-k:1,feedback"


def play(algorithm: Any = None, problem: Any = None, **settings: Any) -> ud.Result:
    how: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, lr=0.1), "progress": False}
    return ud.run(algorithm or ud.FedAvg(), problem or quadratic(), **(how | settings))


def single() -> Any:
    problem = quadratic()
    return ud.Quadratic(problem.H.float(), problem.e.float())


@pytest.mark.parametrize("N", [4, 9])
def test_another_federation_is_refused(N: int) -> None:
    half = play(ud.Scaffold())
    with pytest.raises(ud.InvalidInput, match=f"start is of a federation of 6 clients, this one has {N}"):
        play(ud.Scaffold(), quadratic(N=N), rounds=5, start=half)
    with pytest.raises(ud.InvalidInput, match=f"start is of a federation of 6 clients, this one has {N}"):
        play(ud.Scaffold(), quadratic(N=N), rounds=5, start=half.state)


def test_clients_that_are_not_there_are_refused_where_their_number_is_not_known() -> None:
    old = replace(play(ud.Scaffold()).state, N=None, seed=None)
    with pytest.raises(ud.InvalidInput, match="of at least 6 clients, this one has 4"):
        play(ud.Scaffold(), quadratic(N=4), rounds=5, start=old)


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"codec": FEEDBACK}, "a client's state is nothing, not a WithError"),
    ({"codec": FEEDBACK}, {}, "a client's state is a WithError, not nothing"),
    ({"local": ADAM}, {"local": MOMENTUM}, "a client's state.optimiser is 4 of them, not a vector"),
    ({"local": ADAM}, {"local": replace(ADAM, optimiser_state="average")}, "a state of another method"),
    ({"local": ADAM}, {}, "a client's state is a WithState, not nothing"),
    ({}, {"problem": single()}, r"the server's state.x is a vector of 4 \(torch.float64\), not .*float32"),
]


@pytest.mark.parametrize("first, then, message", OTHERS, ids=[message for *_, message in OTHERS])
def test_another_form_is_refused(first: dict[str, Any], then: dict[str, Any], message: str) -> None:
    half = play(**first)
    with pytest.raises(ud.InvalidInput, match=message):
        play(rounds=5, start=half, **then)
    whole = play(rounds=5, **first)
    assert torch.equal(play(rounds=5, start=half, **first).x, whole.x)


def test_another_seed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    half = play(ud.Scaffold(), participation=ud.Uniform(2))
    with caplog.at_level(logging.WARNING, "undrift"):
        play(ud.Scaffold(), rounds=5, participation=ud.Uniform(2), start=half)
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "undrift"):
        play(ud.Scaffold(), rounds=5, participation=ud.Uniform(2), start=half, seed=7)
    assert "start is of a run with seed 0, this one has seed 7" in caplog.text


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_method_goes_on_from_its_own_states(row: Row) -> None:
    settings: dict[str, Any] = {"local": ud.Local(steps=2, lr=0.05, **row.local)}
    for done in (1, 3):
        half = play(made(row), rounds=done, **settings)
        play(made(row), rounds=4, start=half, **settings)
