"""Misprints: the printed rule does not do what its paper says, the right one does.  Numbers as in docs/errata.md."""

from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.mutation import mutated
from tests.support.oracles.fednova import coefficients
from tests.support.oracles.world import make_world
from tests.support.quadratics import distance, quadratic
from tests.support.toy_problem import WorldProblem, gap, path, random_cohorts

N, T = 5, 24
SOME = ud.Fixed(random_cohorts(N, 2, T))


def go(
    algorithm: Any, who: Any = SOME, steps: Any = 3, lr: float = 0.08, n: int = 17
) -> np.ndarray:
    problem = WorldProblem(make_world(N, n=n))
    return path(algorithm, problem, rounds=T, participation=who, local=ud.Local(steps=steps, lr=lr))


OPTION_II = "dc = d - down.c if"  # d is (x - y)/(K eta)


def test_1_scaffold_option_ii_as_printed_diverges() -> None:
    """c - c_i + (x - y)/(K eta) in place of c_i - c + (x - y)/(K eta)."""
    printed = "dc = down.c - client.c + d - client.c if"
    with mutated("scaffold.py", OPTION_II, printed):
        result = ud.run(ud.method("scaffold"), quadratic(), rounds=900, local=ud.Local(steps=4))
    assert result.stopped or result.history[-1].metrics["distance"] > 1e3


def test_1_scaffold_option_ii_of_its_appendix_stalls() -> None:
    """c - c_i + (y - x)/(K eta)."""
    printed = "dc = down.c - client.c - d - client.c if"
    with mutated("scaffold.py", OPTION_II, printed):
        wrong = distance(ud.method("scaffold"), quadratic(), 400, ud.Everyone())
    assert wrong > 1e-2
    assert distance(ud.Scaffold(), quadratic(), 400, ud.Everyone()) < 1e-10


def test_2_practical_ghbm_and_algorithm_3_differ() -> None:
    """E26: under cyclic participation the practical version ends where FedAvg does; see also C.9 in test_optimum."""
    problem, local = quadratic(N=6), ud.Local(steps=1, lr=0.2)

    def end(algorithm: Any) -> np.ndarray:
        return path(algorithm, problem, rounds=900, participation=ud.Cyclic(2), local=local)[-1]

    x = problem.optimum.numpy()
    assert gap(end(ud.GHBM(tau=3, beta=0.8)), end(ud.FedAvg())) < 1e-9
    assert gap(end(ud.GHBMTheory(tau=3, beta=0.3)), x) < 1e-9
    assert gap(end(ud.FedAvg()), x) > 1e-2


def test_3_ghbm_with_the_stray_eta_is_not_heavy_ball() -> None:
    right = "self.beta / (int(self.tau) * work.K) * down.m"
    heavy_ball = go(ud.GHBMServer(tau=1, beta=0.8), steps=1)
    assert gap(go(ud.GHBM(tau=1, beta=0.8), steps=1), heavy_ball) < 1e-9
    with mutated("ghbm.py", right, "work.lr * " + right):
        assert gap(go(ud.method("ghbm", tau=1, beta=0.8), steps=1), heavy_ball) > 1e-2


@pytest.mark.parametrize("method", [ud.LocalGHBM, ud.FedHBM])
def test_4_a_constant_c_differs_from_one_over_tau_i_unless_participation_is_cyclic(
    method: Any,
) -> None:
    paper, code = method(beta=0.9), method(beta=0.9, C=0.2)
    assert gap(go(paper, who=ud.Cyclic(1)), go(code, who=ud.Cyclic(1))) < 1e-9
    assert gap(go(paper), go(method(beta=0.9, C=0.4))) > 1e-3


def test_5_fednova_vr_as_printed_stalls() -> None:
    steps = [1, 4, 2, 6, 3, 5]
    with mutated("fednova.py", "VRClient(c - d)", "VRClient(-d)"):
        wrong = distance(ud.method("fednova-vr"), quadratic(), 600, ud.Everyone(), steps=steps)
    assert wrong > 1e-3
    assert distance(ud.FedNovaVR(), quadratic(), 600, ud.Everyone(), steps=steps) < 1e-10


def test_6_autonomous_fedgm_recovers_fedgm_only_with_eta_times_k() -> None:
    fedgm = go(ud.FedGM(1.2, 0.6, 0.7))
    assert gap(go(ud.AutonomousFedGM(ud.FedGM(3 * 1.2, 0.6, 0.7))), fedgm) < 1e-9
    assert gap(go(ud.AutonomousFedGM(ud.FedGM(1.2, 0.6, 0.7))), fedgm) > 1e-2


def test_8_the_two_betas_weigh_opposite_things() -> None:
    fedavg = go(ud.FedAvg())
    assert gap(go(ud.FedAvg_M(beta=1.0)), fedavg) < 1e-9
    assert gap(go(ud.GHBM(tau=1, beta=0.0)), fedavg) < 1e-9
    assert gap(go(ud.GHBMTheory(tau=1, beta=1.0)), fedavg) < 1e-9  # the same paper's theory


def test_9_dampened_and_undampened_fedavgm() -> None:
    b = 0.8
    ours = go(ud.FedAvgM(eta=1.0, beta=b))
    assert gap(ours, go(ud.FedAvgM(eta=1 - b, beta=b, dampened=False))) < 1e-9
    assert gap(ours, go(ud.FedAvgM(eta=1.0, beta=b, dampened=False))) > 1e-2


def test_10_scaffolds_shortcut_is_wrong_with_momentum_and_has_an_exact_form() -> None:
    """The exact form, from the way, is ours; the mean of the gradients themselves is what it must be."""
    ours = "_, g = work.descend(lambda y: self.fresh * (work.grad(y) - client.c) + down.h, down.x)"
    exact = "dc = (g - down.h) / self.fresh"
    both = f"{ours}\n        {exact}"
    right = go(ud.ScaffoldM(0.3))
    defined = """_, g, total = work.descend(
            lambda y, sum: (
                self.fresh * (work.grad(y) - client.c) + down.h, sum + work.grad(y)
            ),
            down.x,
            0 * down.x,
        )
        dc = total / work.K - client.c"""
    with mutated("momentum.py", both, defined):
        assert gap(go(ud.method("scaffold-m", beta=0.3)), right) < 1e-9
    with mutated("momentum.py", exact, "dc = g - down.h"):
        assert gap(go(ud.method("scaffold-m", beta=0.3)), right) > 1e-2


def test_11_recovering_g_and_the_past_model() -> None:
    """g+ = (x - x+)/gamma, not (x+ - x)/gamma; x- = x + gamma g fails before the first round."""
    gamma = 0.2
    states = [
        r.snapshot().server
        for r in ud.rounds(
            ud.FedAvg_M_VR(0.3, gamma=gamma, B=2),
            WorldProblem(make_world(N)),
            rounds=3,
            local=ud.Local(steps=3),
        )
    ]
    for s in states:
        assert torch.allclose(s.past, s.x + gamma * s.g, rtol=0, atol=1e-12)
        assert not torch.allclose(s.past, s.x - gamma * s.g, rtol=0, atol=1e-3)
    first = ud.FedAvg_M_VR(0.3).server(torch.ones(2))
    assert torch.equal(first.past, first.x)  # whatever g^0 becomes in the first contact


def test_12_the_two_warm_ups_of_ghbm_differ_unless_tau_is_1() -> None:
    a, b = (go(ud.GHBM(tau=3, beta=0.8, warmup=w)) for w in ("zero", "telescope"))
    assert gap(a, b) > 1e-2
    a, b = (go(ud.GHBM(tau=1, beta=0.8, warmup=w)) for w in ("zero", "telescope"))
    assert gap(a, b) == 0


def test_13_fednovas_three_estimators() -> None:
    """Algorithm 1 and the text agree with everyone only; drawing by weight and averaging plainly is a third."""
    steps = [1, 4, 2, 6, 3]
    cohort, population = ud.FedNova(), ud.FedNova(normalise="population")
    a, b = (go(x, who=ud.Everyone(), steps=steps) for x in (cohort, population))
    assert gap(a, b) < 1e-9
    a, b = (go(x, steps=steps) for x in (cohort, population))
    assert gap(a, b) > 1e-3
    problem = WorldProblem(make_world(N, p=[5, 1, 1, 1, 2]))
    drawn = next(
        (seed, d.clients)
        for seed in range(99)
        if (d := ud.Weighted(2).draw(seed, 1, problem.weights)).counts == (1, 1) and 0 in d.clients
    )
    one_round: dict[str, Any] = {"rounds": 1, "local": ud.Local(steps=steps), "seed": drawn[0]}
    by_weight = path(cohort, problem, participation=ud.Weighted(2), **one_round)
    same_clients = path(cohort, problem, participation=ud.Fixed([drawn[1]]), **one_round)
    assert (
        gap(by_weight, same_clients) > 1e-3
    )  # p_i counted once, in the draw; or once more, in the mean


def test_14_fednova_prox_depends_on_tau_eff() -> None:
    a, b = (go(ud.FedNova(mu=0.6, tau_eff=t), steps=[1, 4, 2, 6, 3]) for t in ("a", "steps"))
    assert gap(a, b) > 1e-3


def test_15_the_normaliser_of_momentum_with_a_proximal_term() -> None:
    """tau = 7, rho = 0.9, eta mu = 0.02: 22.08; the recursion of the published code gives 28.23."""
    eta, mu, rho, tau = 0.1, 0.2, 0.9, 7
    seen = []

    class Spy(ud.FedNova):
        def update(self, server: Any, mean: Any, cohort: Any) -> Any:
            seen.append(float(mean.tau))
            return super().update(server, mean, cohort)

    problem = WorldProblem(make_world(N))
    ud.run(Spy(mu=mu, rho=rho), problem, rounds=1, local=ud.Local(steps=tau, lr=eta))
    assert seen[0] == pytest.approx(22.08, abs=0.005)
    assert seen[0] == pytest.approx(sum(coefficients(tau, eta, mu, rho)), rel=1e-12)
    norm = counter = 0.0
    for _ in range(tau):  # as published: the proximal branch counts every step once more
        counter = rho * counter + 1
        norm = (norm + counter) * (1 - eta * mu) + 1
    assert norm == pytest.approx(28.23, abs=0.005)


def test_18_feddyn_with_the_misplaced_parenthesis_breaks_its_invariant() -> None:
    """h - alpha/m (sum theta_k - theta) subtracts one theta from a sum of several; h is no longer mean ghat_i."""
    right = "h = server.h + self.alpha * cohort.share * mean.delta"
    printed = (
        "h = server.h - self.alpha * (cohort.share * (server.x - mean.delta) - server.x / cohort.N)"
    )

    def broken_by(algorithm: Any) -> float:
        worst = 0.0
        for r in ud.rounds(algorithm, quadratic(), rounds=20, local=ud.Local(steps=10)):
            state = r.snapshot()
            mean = state.clients.gather(range(6)).g.mean(0)
            worst = max(worst, float((state.server.h - mean).abs().max()))
        return worst

    assert broken_by(ud.FedDyn(0.5)) < 1e-12
    assert distance(ud.FedDyn(0.5), quadratic(), 600, ud.Everyone(), steps=10) < 1e-10
    with mutated("feddyn.py", right, printed):
        assert broken_by(ud.method("feddyn", alpha=0.5)) > 1.0


def test_20_ghbms_momenta_are_alternatives() -> None:
    """With tau = 1 and everyone both are heavy ball; their sum, as the line reads without its colours, is not."""
    heavy_ball = go(ud.GHBMServer(tau=1, beta=0.4), who=ud.Everyone(), steps=1)
    for algorithm in (ud.GHBM(tau=1, beta=0.4), ud.LocalGHBM(beta=0.4)):
        assert gap(go(algorithm, who=ud.Everyone(), steps=1), heavy_ball) < 1e-9
    right = "self.beta / (int(self.tau) * work.K) * down.m"
    with mutated("ghbm.py", right, right + " * 2"):  # with everyone the two terms are the same
        both = go(ud.method("ghbm", tau=1, beta=0.4), who=ud.Everyone(), steps=1)
    assert gap(both, heavy_ball) > 1e-2
