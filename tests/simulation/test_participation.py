"""Participation: who is drawn, how often, and what a round without clients does."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.quadratics import quadratic
from tests.support.toy_problem import gap, path
from undrift.simulation import participation

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


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**63))
@settings(max_examples=60, deadline=None)
def test_cyclic_passes_over_one_permutation_of_the_seed(S: int, periods: int, seed: int) -> None:
    """GHBM, Assumption 4.3: every client once in each period, always with the same companions."""
    N = S * periods
    p = [1 / N] * N
    first = [ud.Cyclic(S).draw(seed, t, p).clients for t in range(1, periods + 1)]
    assert sorted(i for cohort in first for i in cohort) == list(range(N))
    assert first == [ud.Cyclic(S).draw(seed, t + periods, p).clients for t in range(1, periods + 1)]


MUTANTS = {  # what the tests of cyclic participation must tell from the right one
    "the permutation is redrawn every period": ("_permutation(seed, N)", "_permutation(seed + first // N, N)"),
    "the permutation is that of every run": ("_permutation(seed, N)", "_permutation(0, N)"),
    "no permutation at all": ("if self.shuffle", "if not self.shuffle"),
    "a pass begins a round late": ("(round - 1) * self.S", "round * self.S"),
    "what is left at the end of a pass is skipped": ("% N]", "% (N - N % self.S)]"),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_mutants_of_cyclic_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = MUTANTS[bug]
    source = Path(participation.__file__).read_text()
    assert source.count(right) == 1
    module = ModuleType("mutant_of_participation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source.replace(right, wrong), "participation.py", "exec"), module.__dict__)
    monkeypatch.setattr(ud, "Cyclic", module.__dict__["Cyclic"])
    with pytest.raises((AssertionError, IndexError)):
        for test in (
            test_cyclic_visits_everyone_equally,
            test_cyclic_passes_over_one_permutation_of_the_seed,
            test_cyclic_orders_differ_by_seed_and_can_be_those_of_the_numbers,
            test_cyclic_cohorts_that_do_not_divide_the_clients_wrap_around,
        ):
            test()


def test_cyclic_orders_differ_by_seed_and_can_be_those_of_the_numbers() -> None:
    p = [0.05] * 20
    assert len({ud.Cyclic(5).draw(seed, 1, p).clients for seed in range(10)}) > 5
    assert ud.Cyclic(5, shuffle=False).draw(3, 2, p).clients == (5, 6, 7, 8, 9)
    assert ud.Cyclic(5, shuffle=False).draw(3, 1, p).clients == (0, 1, 2, 3, 4)


def test_cyclic_cohorts_that_do_not_divide_the_clients_wrap_around() -> None:
    p = [0.1] * 10
    cohorts = [set(ud.Cyclic(4).draw(0, t, p).clients) for t in range(1, 30)]
    for t in range(len(cohorts) - 2):
        assert len(set.union(*cohorts[t : t + 3])) == 10  # ceil(N/S) = 3 rounds reach everyone


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


@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda rows: [np.array(row) for row in rows]])
def test_fixed_cohorts_may_be_arrays(kind: Any) -> None:
    rows = [[0], [1], [1]]
    listed, given = (path(ud.FedAvg(), quadratic(), rounds=3, participation=ud.Fixed(x)) for x in (rows, kind(rows)))
    assert (listed == given).all()


def test_weighted_draws_count_as_often_as_they_come() -> None:
    """S draws with replacement, averaged plainly: a client drawn twice weighs twice."""
    problem = quadratic([0.7, 0.1, 0.05, 0.05, 0.05, 0.05])
    seed = next(s for s in range(50) if 2 in (ud.Weighted(3).draw(s, 1, problem.weights).counts or ()))
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


def test_clients_without_weight_are_nobody() -> None:
    problem = quadratic([0, 0, 0.5, 0.25, 0.125, 0.125])
    result = ud.run(ud.FedAvg(), problem, rounds=30, participation=ud.Uniform(1))
    assert result.stopped is None and len(result.history) == 30
    idle = [r for r in result.history if set(r.clients) <= {0, 1}]
    assert idle and all(r.exchanges == 0 for r in idle)


@pytest.mark.slow
@pytest.mark.parametrize("method", [ud.FedAvg(), ud.FedCM(), ud.GHBM(tau="1/C")], ids=["fedavg", "fedcm", "ghbm"])
def test_cyclic_is_within_three_points_of_uniform(method: Any) -> None:
    """GHBM's Table 9, on digits with one class a client: who comes in turn learns what uniform draws learn."""
    torch.manual_seed(0)
    kinds: dict[str, Any] = {"model": ud.models.mlp(64, 32, 10), "loss": F.cross_entropy}
    problem = ud.federate(ud.load("digits"), clients=ud.Dirichlet(100, alpha=0), **kinds)
    how: dict[str, Any] = {"local": ud.Local(steps=10, batch=5, lr=0.1), "evaluate_every": 5, "engine": "batched"}
    uniform, cyclic = (
        ud.run(method, problem, rounds=150, participation=who, **how).final("accuracy", last=10)
        for who in (ud.Uniform(10), ud.Cyclic(10))
    )
    assert abs(uniform - cyclic) < 0.03 and min(uniform, cyclic) > 0.8
