"""Multistage FedGM for any schedule, and hyper-parameters that follow from the run."""

import numpy as np
import pytest

import undrift as ud
from tests.support.oracles.server_momentum import multistage_fedgm
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path, random_cohorts
from undrift.core.algorithm import DependsOnRun

WORLD, ETA, K = make_world(), 0.08, [3] * 5


def test_any_schedule_equals_algorithm_3() -> None:
    rng = np.random.default_rng(0)
    for number in range(100):
        S = int(rng.integers(1, 5))
        lengths = rng.integers(1, 6, S).tolist()
        eta, beta, nu = rng.uniform(0.1, 1.5, S), rng.uniform(0, 0.95, S), rng.uniform(-0.5, 1.2, S)
        rounds = sum(lengths)
        cohorts = random_cohorts(5, 2, rounds, seed=number)
        ours = path(
            ud.MultistageFedGM(tuple(eta), beta=tuple(beta), nu=tuple(nu), lengths=tuple(lengths)),
            WorldProblem(WORLD),
            rounds=rounds,
            participation=ud.Fixed(cohorts),
            local=ud.Local(steps=K, lr=ETA),
        )
        theirs = multistage_fedgm(WORLD, cohorts, K, ETA, etas=list(eta), betas=list(beta), nus=list(nu), Ts=lengths)
        assert gap(ours, theirs) < 1e-9


def test_stages_fill_the_run_by_default() -> None:
    local, problem = ud.Local(steps=3, lr=ETA), WorldProblem(WORLD)
    open_, given = (
        path(method, problem, rounds=28, local=local) for method in (ud.MultistageFedGM(), ud.MultistageFedGM(T=28))
    )
    other = path(ud.MultistageFedGM(T=56), problem, rounds=28, local=local)
    assert gap(open_, given) == 0 and gap(open_, other) > 1e-3
    (together,) = ud.run_together([ud.Trial(ud.MultistageFedGM(), problem, local)], rounds=28, engine="batched")
    assert gap(np.asarray(together.x), given[-1]) < 1e-12


def test_the_autonomous_form_takes_open_stages() -> None:
    schedule = ud.AutonomousFedGM(ud.MultistageFedGM()).for_run(N=10, S=2, rounds=35).schedule
    assert isinstance(schedule, ud.MultistageFedGM)
    assert [stage.rounds for stage in schedule.stages] == [5, 10, 20]


@pytest.mark.parametrize("method", [ud.GHBM, ud.GHBMServer, ud.GHBMTheory])
@pytest.mark.parametrize(
    "who, tau", [(ud.Uniform(2), 3), (ud.Cyclic(1), 5), (ud.Everyone(), 1), (ud.Bernoulli(0.4), 3)]
)
def test_tau_is_one_over_the_share_of_clients_per_round(method, who, tau) -> None:
    problem, local = WorldProblem(WORLD), ud.Local(steps=2, lr=0.05)
    assert isinstance(method(), DependsOnRun)
    by_word, by_number = (
        path(method(tau=given), problem, rounds=12, participation=who, local=local) for given in ("1/C", tau)
    )
    assert gap(by_word, by_number) == 0


def test_tau_is_a_number_or_one_over_c() -> None:
    with pytest.raises(ud.InvalidInput, match=r"tau must be a whole number in \[1, inf\) or '1/C'"):
        ud.GHBM(tau="1/S")
