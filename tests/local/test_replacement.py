"""Minibatches drawn with replacement: independent samples, the same in every engine."""

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.everywhere import federation, models, other_engines, played
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem
from undrift.core.rng import Key
from undrift.simulation.batched_runs import Trial, run_together

LOCAL = ud.Local(steps=[3, 1, 2, 4, 3], batch=5, lr=0.1, replacement=True)  # the first client has 4 samples


def test_samples_are_independent_and_equally_likely() -> None:
    problem, client, n, K = federation(), 1, 9, 6000
    drawn = problem.draw_with_replacement(Key(0, 1), [1], [client], [K], 5)
    samples = drawn.samples[0].numpy()
    assert samples.shape == (K, 5) and drawn.whole and set(samples.ravel()) == set(range(4, 13))
    often = np.bincount(samples.ravel() - 4, minlength=n)
    assert ((often - 5 * K / n) ** 2 / (5 * K / n)).sum() < 30  # chi-square with 8 degrees of freedom: p = 2e-4
    twice = np.mean([len(set(row)) < 5 for row in samples])
    assert twice == pytest.approx(1 - 8 * 7 * 6 * 5 / 9**4, abs=0.02)


def test_the_variance_of_a_minibatch_is_that_of_a_sample_over_its_size() -> None:
    """Without replacement it is smaller by (n - b)/(n - 1)."""
    problem, n, b, K = federation(), 9, 3, 4000
    x = problem.x0
    mean = problem.full_grad(x, [1])
    each = torch.stack([problem.gradient(x, problem.X[[s]], problem.Y[[s]], None) for s in range(4, 13)])
    sigma2 = float((each - mean).square().sum(1).mean())

    def variance(drawn) -> float:
        rows = torch.stack([problem.grad(x, drawn, k) for k in range(K)])
        return float((rows - mean).square().sum(1).mean())

    independent = variance(problem.draw_with_replacement(Key(0, 1), [1], [1], [K], b))
    reshuffled = variance(problem.draw(Key(0, 1), [1], [K], b))
    assert independent == pytest.approx(sigma2 / b, rel=0.05)
    assert reshuffled == pytest.approx(sigma2 / b * (n - b) / (n - 1), rel=0.05)


def test_no_minibatch_is_short_and_clients_draw_on_their_own() -> None:
    problem = federation()
    together = problem.draw_with_replacement(Key(0, 2), [2] * 3, [0, 1, 3], [3, 1, 2], 5)
    assert together.counts.tolist() == [[4, 4, 4], [5, 0, 0], [5, 5, 0]]
    alone = problem.draw_with_replacement(Key(0, 2), [2], [3], [2], 5)
    assert torch.equal(alone.samples[0], together.samples[2, :2])


@other_engines
def test_every_engine_draws_the_same(engine: str) -> None:
    local = ud.Local(steps=3, batch=4, lr=0.1, replacement=True)
    expected = models(played(ud.FedAvg(), "sequential", local=local))
    assert np.allclose(models(played(ud.FedAvg(), engine, local=local)), expected, rtol=0, atol=1e-10)
    assert not np.allclose(models(played(ud.FedAvg(), "sequential")), expected)  # the same without replacement


def test_a_buffered_server_has_each_visit_as_computed_alone() -> None:
    how = {"population": ud.Population(pace=ud.LogNormal(1.0, 0.8)), "server": ud.Buffer(2, concurrency=3)}
    left, right = (models(played(ud.FedAvg(), "events", local=LOCAL, chunk=c, **how)) for c in (1, None))
    assert np.allclose(left, right, rtol=0, atol=1e-10)


def test_runs_together_equal_runs_alone() -> None:
    problem = federation()
    trials = [Trial(ud.FedAvg(server_lr=s), problem, LOCAL, seed) for s, seed in ((1.0, 0), (0.5, 0), (1.0, 1))]
    how = {"rounds": 3, "participation": ud.Uniform(3)}
    together = run_together(trials, **how)
    for trial, result in zip(trials, together, strict=True):
        alone = ud.run(trial.algorithm, problem, local=LOCAL, seed=trial.seed, engine="batched", **how)
        assert torch.allclose(result.x, alone.x, rtol=0, atol=1e-10)


def test_refused() -> None:
    with pytest.raises(ud.InvalidInput, match="needs a batch"):
        ud.Local(steps=2, replacement=True)
    with pytest.raises(ud.InvalidInput, match="replacement must be one of False, True, got 'yes'"):
        ud.Local(steps=2, batch=2, replacement="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ud.InvalidInput, match="WorldProblem has no draw_with_replacement"):
        ud.run(ud.FedAvg(), WorldProblem(make_world(2)), rounds=1, local=ud.Local(steps=1, batch=1, replacement=True))
