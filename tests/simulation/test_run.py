"""Runs: history, snapshots, states."""

from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.quadratics import quadratic
from tests.support.toy_problem import gap, path

# records


def test_history_and_iterator_tell_the_same() -> None:
    problem = quadratic()
    settings: dict[str, Any] = {
        "rounds": 7, "participation": ud.Uniform(2), "local": ud.Local(steps=3), "seed": 3
    }  # fmt: skip
    result = ud.run(ud.Scaffold(), problem, **settings)
    rounds = list(ud.rounds(ud.Scaffold(), problem, **settings))
    assert [r.round for r in result.history] == list(range(1, 8))
    assert torch.equal(result.x, rounds[-1].x)
    for a, b in zip(result.history, rounds, strict=True):
        assert (a.clients, a.metrics, a.bytes_down, a.bytes_up) == (
            b.clients, b.metrics, b.bytes_down, b.bytes_up
        )  # fmt: skip
        assert a.seconds > 0
    with pytest.raises(AttributeError, match="ud.rounds"):
        _ = result.history[0].x
    with pytest.raises(TypeError, match="use x"):
        result.model()


def test_the_initialisation_round_counts_in_round_one() -> None:
    problem = quadratic()
    history = ud.run(ud.Scaffold(B=2), problem, rounds=2, participation=ud.Uniform(2), local=ud.Local(steps=2)).history
    model = 4 * 8
    assert history[0].exchanges == 2 and history[1].exchanges == 1
    assert history[0].bytes_down - history[1].bytes_down == 6 * model
    assert history[0].bytes_up - history[1].bytes_up == 6 * model


def test_evaluation_every_few_rounds_and_at_the_end() -> None:
    history = ud.run(ud.FedAvg(), quadratic(), rounds=8, evaluate_every=3).history
    assert [r.round for r in history if r.metrics] == [3, 6, 8]


def test_states_grow_with_the_clients_seen() -> None:
    N = 20000
    H, e = torch.ones(N, 1, 1), torch.arange(N, dtype=torch.float32)[:, None] / N
    result = ud.run(
        ud.Scaffold(), ud.Quadratic(H, e), rounds=5, participation=ud.Uniform(3),
        local=ud.Local(steps=2), engine="batched", evaluate_every=5,
    )  # fmt: skip
    assert len(result.state.clients) <= 15
    assert sum(t.shape[0] for t in result.state.clients._tables) <= 32


def test_a_late_snapshot_is_refused() -> None:
    rounds = ud.rounds(ud.Scaffold(), quadratic(), rounds=3)
    first = next(rounds)
    next(rounds)
    with pytest.raises(RuntimeError, match="before the next round"):
        first.snapshot()


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_lone_client_of_two_is_itself(chunk: int | None) -> None:
    problem = quadratic(N=2)
    settings: dict[str, Any] = {"rounds": 3, "participation": ud.Fixed([[1]] * 3), "chunk": chunk}
    a, b = (path(ud.Scaffold(), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-12
