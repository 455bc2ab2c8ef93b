"""Averages of a run's models: equal to the literal ones, in every engine, also after a pause."""

from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.everywhere import every_engine, federation, played
from tests.support.quadratics import quadratic

KINDS = {"plain": ud.Average(), "tail": ud.Average(after=7), "theory": ud.Average(decay=0.8)}


def literal(models: np.ndarray, kind: ud.Average) -> np.ndarray:
    """sum_r w_r x^{r-1} / sum_r w_r with w_r = decay^(1 - r), r = 1, ..., R + 1, as SCAFFOLD's (8) prints it."""
    r = np.arange(1, len(models) + 1)
    w = kind.decay ** (1.0 - r) * (r - 1 >= kind.after)
    return (w[:, None] * models).sum(0) / w.sum()


def check(result: ud.Result, models: Any, kinds: dict[str, ud.Average] = KINDS, atol: float = 1e-12) -> None:
    stacked = torch.stack(models).double().numpy()
    for name, kind in kinds.items():
        assert np.allclose(result.average(name), literal(stacked, kind), rtol=0, atol=atol)


SETTINGS: dict[str, Any] = {"rounds": 12, "participation": ud.Uniform(3), "seed": 5}


@every_engine
def test_an_average_is_the_literal_one(engine: str) -> None:
    how = SETTINGS | {"local": ud.Local(steps=3, lr=0.05), "engine": engine}
    problem = quadratic()
    models = [problem.x0, *(r.x for r in ud.rounds(ud.Scaffold(), problem, **how))]
    result = ud.run(ud.Scaffold(), problem, average=KINDS, **how)
    check(result, models)
    assert torch.equal(result.x, models[-1])  # nothing is changed by it
    one = ud.run(ud.Scaffold(), problem, average=ud.Average(after=12), **how)
    assert torch.equal(one.average(), one.x)


def test_with_a_buffer_and_in_single_precision() -> None:
    problem = federation(torch.float32)
    how: dict[str, Any] = {"server": ud.Buffer(2, concurrency=4), "population": ud.Population(pace=ud.LogNormal(1, 1))}
    rounds = played(ud.FedAvg(), "events", problem, rounds=12, average=KINDS, **how)
    result = ud.Result(problem, rounds[-1].state, [])
    assert result.average("plain").dtype == torch.float32
    check(result, [problem.x0, *(r.x for r in rounds)], atol=1e-6)


@pytest.mark.parametrize("pause", [1, 6, 7, 11])
def test_a_resumed_run_has_the_same_bits(pause: int) -> None:
    problem, how = quadratic(), {"participation": ud.Uniform(3), "local": ud.Local(steps=3, lr=0.05)}
    whole = ud.run(ud.ScaffoldM(), problem, rounds=12, average=KINDS, **how)
    snapshots = [r.snapshot() for r in ud.rounds(ud.ScaffoldM(), problem, rounds=12, average=KINDS, **how)]
    half = ud.run(ud.ScaffoldM(), problem, rounds=pause, average={**KINDS, "tail": ud.Average(after=pause)}, **how)
    again = ud.run(ud.ScaffoldM(), problem, rounds=12, average=KINDS, start=snapshots[pause - 1], **how)
    for name in KINDS:
        assert torch.equal(again.average(name), whole.average(name))
    assert torch.equal(half.average("tail"), half.x)
    plain = ud.run(ud.ScaffoldM(), problem, rounds=12, start=half, **how)  # it may be left out
    assert torch.equal(plain.x, whole.x)


def test_long_runs_do_not_overflow() -> None:
    problem = quadratic()
    result = ud.run(ud.FedAvg(), problem, rounds=800, average=ud.Average(decay=0.3), evaluate_every=800)
    assert torch.allclose(result.average(), result.x, rtol=0, atol=1e-6)  # 0.3^-800 = 1e418


def test_theorem_1s_average_is_under_its_bound() -> None:
    """SCAFFOLD's theorem bounds f at this mean, not at the last model."""
    problem = quadratic()
    found = ud.theory.estimate(problem)
    assert found.mu is not None
    distance = float((problem.x0 - problem.optimum).norm())
    R = 400
    setting = ud.theory.scaffold_everyone(L=found.L, mu=found.mu, N=problem.N, K=3, R=R, distance=distance)
    kept = ud.Average(decay=setting.decay)
    result = ud.run(setting.method(), problem, rounds=R, local=setting.local(), average=kept, evaluate_every=R)
    assert problem.evaluate(result.average())["gap"] <= setting.bound(R)


def test_refused() -> None:
    problem = quadratic()
    with pytest.raises(ud.InvalidInput, match=r"Average: decay must lie in \(0, 1\], got 1.5"):
        ud.Average(decay=1.5)
    with pytest.raises(ud.InvalidInput, match="after=9 leaves no model of 3 rounds"):
        ud.run(ud.FedAvg(), problem, rounds=3, average=ud.Average(after=9))
    with pytest.raises(ud.InvalidInput, match="average is ud.Average"):
        ud.run(ud.FedAvg(), problem, rounds=3, average="tail")  # pyright: ignore[reportArgumentType]
    plain, kept = (
        ud.run(ud.FedAvg(), problem, rounds=3),
        ud.run(ud.FedAvg(), problem, rounds=3, average=KINDS | {"tail": ud.Average()}),
    )
    with pytest.raises(ud.InvalidInput, match="this run kept no average: ask for it"):
        plain.average()
    with pytest.raises(ud.InvalidInput, match="This run kept 'plain', 'tail', 'theory', got 'last'"):
        kept.average("last")
    with pytest.raises(ud.InvalidInput, match="start is of a run with average=None"):
        ud.run(ud.FedAvg(), problem, rounds=5, start=plain, average=ud.Average())
