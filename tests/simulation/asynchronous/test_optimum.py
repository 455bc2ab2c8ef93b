"""Where methods end in virtual time: which are sound with stale updates, unequal steps, and clients that come unequally
often; and that the diagnostics say so."""

import math
from typing import Any

import numpy as np
import pytest

import undrift as ud
from tests.support.oracles import closed_forms
from tests.support.quadratics import N, P, quadratic
from tests.support.toy_problem import gap

PACES = ud.Table([1.0, 0.3, 2.0, 0.5, 1.4, 0.8])
UNEVEN = ud.Population(pace=PACES, jitter=0.3)
LOSSY = ud.Population(
    pace=PACES,
    jitter=0.3,
    availability=ud.Chance(0.8, every=30.0),
    dropout=ud.Dropout(before=0.05, after=0.1),
)


def ended(algorithm: Any, population: Any, rounds: int = 500, lr: float = 0.03, **more: Any) -> Any:
    settings: dict[str, Any] = {
        "problem": quadratic(P),
        "rounds": rounds,
        "evaluate_every": rounds,
        "local": ud.Local(steps=4, lr=lr),
        "population": population,
        "server": ud.Buffer(2, concurrency=4),
        "participation": ud.Uniform(N),
    }
    return ud.run(algorithm, **settings | more)


def distance(run: Any) -> float:
    return run.history[-1].metrics["distance"]


SOUND = [
    ud.Scaffold(),
    ud.Scaffold(option=1),
    ud.ScaffoldM(0.3),
    ud.ScaffoldMVR(0.5),
    ud.FedDyn(alpha=1.5),
]


@pytest.mark.parametrize("population", [UNEVEN, LOSSY], ids=["uneven", "lossy"])
@pytest.mark.parametrize("algorithm", SOUND, ids=str)
def test_control_variates_reach_the_optimum_with_stale_updates(algorithm: Any, population: Any) -> None:
    run = ended(algorithm, population)
    assert max(max(r.timing.staleness) for r in run.history) >= 3
    assert run.history[-1].timing.chi2 > 0.02  # and with clients that come unequally often
    assert distance(run) < 1e-5


UNSOUND = [
    ud.FedAvg(), ud.FedProx(mu=0.5), ud.FedNova(), ud.FedGM(), ud.AutonomousFedGM(ud.FedGM(eta=3.0)),
    ud.AutonomousFedAvg(3.0), ud.FedBuff(), ud.FedAsync(), ud.FedAvg_M(0.3), ud.GHBM(tau=3), ud.LocalGHBM(),
    ud.FedADC(), ud.AdaBest(), ud.MimeLite(opt="sgd"), ud.MBStorm(0.3), ud.STEM(a=0.3),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", UNSOUND, ids=lambda a: a.spec.name)
def test_the_others_follow_whoever_comes_most(algorithm: Any) -> None:
    """Fast clients come more often, and count for more; a smaller step does not help."""
    run = ended(algorithm, UNEVEN, rounds=300, lr=0.02)
    assert run.stopped is None
    assert distance(run) > 0.15


def test_staleness_alone_costs_accuracy_in_proportion_to_the_step() -> None:
    """Six clients in turn, each update five steps old, nobody more often than others: the bias vanishes with lr."""
    trace = ud.Trace([(i, float(i), 1e9) for i in range(N)])
    even = ud.Population(pace=6.0, availability=trace)
    more: dict[str, Any] = {
        "problem": quadratic(),
        "server": ud.Buffer(1, concurrency=N),
        "participation": None,
    }
    for algorithm in (ud.FedAvg(), ud.FedBuff(), ud.AutonomousFedAvg(1.0)):
        far, near = (
            distance(ended(algorithm, even, rounds=round(18 / lr), local=ud.Local(steps=1, lr=lr), **more))
            for lr in (0.1, 0.025)
        )  # fmt: skip
        assert 3 < far / near < 5  # 4 times the step, 4 times the bias


def test_fednova_is_right_with_unequal_steps_where_fedavg_goes_to_eq_28() -> None:
    """Steps drawn with the clients' paces, as many as fit a budget; everyone takes part, the slowest sets the pace."""
    problem = quadratic(P)
    population = ud.Population(pace=ud.LogNormal(1.0, sigma=1.0), budget=6.0)
    args = problem.H.numpy(), problem.e.numpy(), np.array(P)
    optimum, away = problem.optimum.numpy(), {}
    for lr in (0.2, 0.04):
        more: dict[str, Any] = {
            "server": ud.Synchronous(), "participation": None, "local": ud.Local(steps=12, lr=lr)
        }  # fmt: skip
        nova = ended(ud.FedNova(), population, rounds=round(22 / lr), **more)
        avg = ended(ud.FedAvg(), population, rounds=round(22 / lr), **more)
        K = list(nova.history[0].timing.steps)
        assert len(set(K)) >= 4
        assert gap(avg.x.numpy(), closed_forms.fedavg_limit(*args, K, lr)) < 1e-9
        assert gap(nova.x.numpy(), closed_forms.fednova_limit(*args, K, lr)) < 1e-9
        away[lr] = [float(np.linalg.norm(run.x.numpy() - optimum)) for run in (nova, avg)]
    assert away[0.2][0] / away[0.04][0] > 3.5  # FedNova's bias goes with the step, to nothing
    assert away[0.04][1] > 0.8 * away[0.2][1] > 0.2  # FedAvg's does not


def test_fednova_with_steps_drawn_by_visit() -> None:
    """U(2, 5), as in its paper, drawn anew for every visit, under a buffer that everyone must fill."""
    problem = quadratic(P)
    run = ended(ud.FedNova(), UNEVEN, rounds=600, server=ud.Buffer(N), participation=None,
                local=ud.Local(steps=(2, 5), lr=0.01))  # fmt: skip
    assert {K for r in run.history for K in r.timing.steps} == {2, 3, 4, 5}
    assert np.linalg.norm(run.x.numpy() - problem.optimum.numpy()) < 0.05


# diagnostics


def test_chi2_is_the_distance_of_the_weights_that_clients_had() -> None:
    p, intended = np.array(P), quadratic(P)
    run = ended(ud.FedAvg(), LOSSY, rounds=60, problem=intended, local=ud.Local(steps=(1, 6), lr=0.02))
    plain, by_steps = np.zeros(N), np.zeros(N)
    for r in run.history:
        who = list(r.clients)
        weights = p[who] / p[who].sum()
        plain[who] += weights
        by_steps[who] += weights * np.array(r.timing.steps)
        for W, chi2 in ((plain, r.timing.chi2), (by_steps, r.timing.chi2_steps)):
            w = W / W.sum()
            if w.all():  # until then somebody's data count for nothing
                assert chi2 == pytest.approx(((p - w) ** 2 / w).sum(), abs=1e-9)
            else:
                assert chi2 == math.inf
        assert r.timing.used == np.count_nonzero(plain)
        assert r.timing.tau_eff == pytest.approx(weights @ np.array(r.timing.steps))


def test_chi2_shows_bias_from_speed_and_its_absence() -> None:
    even = ended(ud.FedAvg(), ud.Population(pace=1.0, jitter=0.3), rounds=400, problem=quadratic())
    uneven = ended(ud.FedAvg(), UNEVEN, rounds=400, problem=quadratic())
    assert even.history[-1].timing.chi2 < 0.01
    assert uneven.history[-1].timing.chi2 > 0.05
    everyone = ended(ud.FedAvg(), UNEVEN, rounds=5, server=ud.Synchronous(), participation=None,
                     local=ud.Local(steps=[1, 2, 3, 4, 5, 6], lr=0.02))  # fmt: skip
    timing = everyone.history[-1].timing
    w = np.array(P) * np.arange(1, 7)
    assert timing.chi2 == pytest.approx(0, abs=1e-12)
    w = w / w.sum()
    assert timing.chi2_steps == pytest.approx(((P - w) ** 2 / w).sum())  # Wang et al. (103)


def test_discounted_updates_count_less() -> None:
    """FedBuff's discount enters the weights that clients have had: the slow count for even less."""
    plain = ended(ud.FedBuff(staleness="constant"), UNEVEN, rounds=300, problem=quadratic())
    discounted = ended(ud.FedBuff(a=1.0), UNEVEN, rounds=300, problem=quadratic())
    assert [r.clients for r in plain.history] == [r.clients for r in discounted.history]
    assert discounted.history[-1].timing.chi2 > 1.2 * plain.history[-1].timing.chi2


def test_asynchrony_is_ahead_in_time_and_behind_in_rounds() -> None:
    """The trade that the engine is there to show, on a quadratic: SCAFFOLD with stragglers and with a buffer."""
    slow = ud.Population(pace=ud.LogNormal(1.0, sigma=1.5), jitter=0.2)
    problem = quadratic(N=30)

    def reached(**more: Any) -> tuple[int, float]:
        for r in ud.rounds(ud.Scaffold(), problem, rounds=3000, local=ud.Local(steps=4, lr=0.03), population=slow,
                           participation=ud.Uniform(5), **more):  # fmt: skip
            if r.metrics["distance"] < 0.05:
                assert r.time is not None
                return r.round, r.time
        raise AssertionError("not reached")

    rounds, seconds = reached(server=ud.Buffer(5, concurrency=10))
    rounds_with_stragglers, seconds_with_stragglers = reached(server=ud.Synchronous())
    assert rounds >= rounds_with_stragglers
    assert seconds < 0.5 * seconds_with_stragglers
