"""Runs: participation, local work, bad clients, records."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from tests.algorithms.test_optimum import quadratic
from tests.support.oracles.world import make_world
from tests.support.toy_problem import PlainFedAvg, WorldProblem, gap, path
from undrift.core.rng import Key

# participation


@given(st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_uniform_draws_s_different_clients(N: int, data: Any) -> None:
    S, seed = data.draw(st.integers(1, N)), data.draw(st.integers(0, 2**63))
    draw = ud.Uniform(S).draw(seed, data.draw(st.integers(1, 1000)), [1 / N] * N)
    assert len(set(draw.clients)) == S
    assert list(draw.clients) == sorted(draw.clients)
    assert all(0 <= i < N for i in draw.clients)


@given(st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_cyclic_visits_everyone_equally(N: int, data: Any) -> None:
    S = data.draw(st.integers(1, N))
    visits = np.zeros(N, dtype=int)
    for t in range(1, N + 1):
        visits[list(ud.Cyclic(S).draw(0, t, [1 / N] * N).clients)] += 1
    assert (visits == S).all()


def test_every_client_is_drawn_as_often_as_it_should() -> None:
    N, T, p = 10, 4000, np.arange(1, 11) / 55
    for who, expected in [
        (ud.Uniform(3), np.full(N, 0.3)),
        (ud.Bernoulli(0.3), np.full(N, 0.3)),
    ]:
        counts = np.zeros(N)
        for t in range(T):
            counts[list(who.draw(1, t, p.tolist()).clients)] += 1
        assert np.abs(counts / T - expected).max() < 4 * np.sqrt(0.21 / T)
    counts = np.zeros(N)
    for t in range(T):
        draw = ud.Weighted(3).draw(1, t, p.tolist())
        assert draw.counts is not None and sum(draw.counts) == 3
        counts[list(draw.clients)] += draw.counts
    assert np.abs(counts / (3 * T) - p).max() < 4 * np.sqrt(0.25 / T)


def test_draws_depend_on_seed_and_round_only() -> None:
    who, p = ud.Uniform(3), [0.1] * 10
    draws = [who.draw(s, t, p).clients for s in (0, 1) for t in range(1, 20)]
    assert draws == [who.draw(s, t, p).clients for s in (0, 1) for t in range(1, 20)]
    assert len(set(draws)) > 20


def test_weighted_draws_count_as_often_as_they_come() -> None:
    """S draws with replacement, averaged plainly: a client drawn twice weighs twice."""
    problem = quadratic([0.7, 0.1, 0.05, 0.05, 0.05, 0.05])
    seed = next(
        s for s in range(50) if 2 in (ud.Weighted(3).draw(s, 1, problem.weights).counts or ())
    )
    draw = ud.Weighted(3).draw(seed, 1, problem.weights)
    ours = path(ud.FedAvg(), problem, rounds=1, participation=ud.Weighted(3), seed=seed,
                local=ud.Local(steps=1, lr=0.1))[-1]  # fmt: skip
    gradients = [-problem.e[i].numpy() for i in draw.clients]  # at x = 0
    assert draw.counts is not None
    mean = np.average(gradients, axis=0, weights=draw.counts)
    assert gap(ours, -0.1 * mean) < 1e-12


def test_a_round_without_clients_leaves_the_model_alone() -> None:
    problem = quadratic()
    rounds = list(
        ud.rounds(
            ud.FedAvg(),
            problem,
            rounds=40,
            participation=ud.Bernoulli(0.1),
            local=ud.Local(steps=1),
        )
    )
    empty = [r for r in rounds if not r.clients]
    assert empty
    for r in empty:
        before = rounds[r.round - 2].x if r.round > 1 else problem.x0
        assert torch.equal(r.x, before)
        assert r.bytes_down == r.bytes_up == r.exchanges == 0


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
    counts = [
        k for t in range(1, 300) for k in ud.Local(steps=(2, 5)).count(problem, Key(0, t), range(6))
    ]
    assert sorted(set(counts)) == [2, 3, 4, 5]
    assert abs(np.mean(counts) - 3.5) < 0.1
    together = [
        ud.Local(steps=ud.Geometric(0.25)).count(problem, Key(0, t), range(6)) for t in range(500)
    ]
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


def test_first_contact_counts_in_round_one() -> None:
    problem = quadratic()
    history = ud.run(
        ud.Scaffold(B=2), problem, rounds=2, participation=ud.Uniform(2), local=ud.Local(steps=2)
    ).history
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


# clients that go wrong


@dataclass(frozen=True)
class Poisoned(PlainFedAvg):
    """FedAvg in which one client answers with something else from a certain round on."""

    client_id: int | None
    answer: Any
    since: int = 2

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, state = super().local(down, client, work)
        delta = up.delta.clone()
        rows = delta.view(len(work.clients), -1)
        for row, i in enumerate(work.clients):
            if work.t >= self.since and self.client_id in (None, i):
                rows[row] = self.answer
        return type(up)(delta), state


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
def test_a_client_with_nan_is_named_left_out_and_counted(
    engine: str, answer: float, caplog: pytest.LogCaptureFixture
) -> None:
    problem = quadratic()
    others = [[0, 1, 2, 3, 4, 5]] + [[0, 1, 2, 4, 5]] * 3
    settings: dict[str, Any] = {"rounds": 4, "local": ud.Local(steps=2), "engine": engine}
    with caplog.at_level(logging.WARNING, logger="undrift"):
        result = ud.run(Poisoned(3, answer), problem, **settings)  # pyright: ignore[reportArgumentType]
    expected = ud.run(ud.FedAvg(), problem, participation=ud.Fixed(others), **settings)
    assert torch.equal(result.x, expected.x)
    assert [r.left_out for r in result.history] == [(), (3,), (3,), (3,)]
    assert "round 2: client 3" in caplog.text
    assert result.history[1].bytes_up == 6 * 4 * 8  # it did arrive


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_run_with_nothing_left_stops_with_the_last_good_state(engine: str) -> None:
    problem = quadratic()
    settings: dict[str, Any] = {"local": ud.Local(steps=2), "engine": engine}
    poisoned: Any = Poisoned(None, float("nan"), since=4)
    result = ud.run(poisoned, problem, rounds=9, **settings)
    good = ud.run(ud.FedAvg(), problem, rounds=3, **settings)
    assert torch.equal(result.x, good.x)
    assert result.stopped is not None and "round 4" in result.stopped
    assert len(result.history) == 3
    with pytest.raises(ud.Diverged, match="round 4"):
        list(ud.rounds(poisoned, problem, rounds=9, **settings))


def test_divergence_ends_with_a_finite_model() -> None:
    result = ud.run(ud.FedAvg(), quadratic(), rounds=5000, local=ud.Local(steps=9, lr=30.0))
    assert result.stopped is not None
    assert result.x.isfinite().all()


def test_an_overflow_on_the_server_keeps_clients_states_as_they_were() -> None:
    result = ud.run(ud.Scaffold(eta_g=1e200), quadratic(), rounds=50, local=ud.Local(steps=2))
    assert result.stopped is not None and "server" in result.stopped
    assert result.x.isfinite().all()


@dataclass(frozen=True)
class Raises(PlainFedAvg):
    stage: str = "local"

    def local(self, down: Any, client: Any, work: Any) -> Any:
        if self.stage == "local" and 2 in work.clients:
            raise ZeroDivisionError("the client's own fault")
        return super().local(down, client, work)

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        raise KeyError("the server's")


def test_errors_name_client_round_and_stage() -> None:
    broken: Any = Raises()
    with pytest.raises(ud.MethodFailure, match="client 2, round 1, stage local: ZeroDivision"):
        ud.run(broken, quadratic(), rounds=2, engine="sequential")
    with pytest.raises(ud.MethodFailure, match="round 1, stage local: .*engine='sequential'"):
        ud.run(broken, quadratic(), rounds=2, engine="batched")
    broken = Raises("update")
    with pytest.raises(ud.MethodFailure, match="server, round 1, stage update: KeyError"):
        ud.run(broken, quadratic(), rounds=2)


class WrongShape(PlainFedAvg):
    def __init__(self, whose: int):
        self.whose = whose

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, state = super().local(down, client, work)
        return (type(up)(up.delta[..., :2]) if self.whose in work.clients else up), state


@pytest.mark.parametrize("whose", [0, 1], ids=["the first", "another"])
def test_a_client_with_a_wrong_shape_is_left_out(whose: int) -> None:
    wrong: Any = WrongShape(whose)
    result = ud.run(wrong, quadratic(), rounds=2, engine="sequential")
    assert [r.left_out for r in result.history] == [(whose,), (whose,)]
