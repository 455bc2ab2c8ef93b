"""Where methods end on heterogeneous quadratics: the exact ones at x*, the biased ones at their closed-form limits."""

from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.oracles import closed_forms
from tests.support.quadratics import STEPS, N, P, distance, quadratic
from tests.support.toy_problem import gap, path

# The exact methods: settings under which each reaches x*, whatever the heterogeneity.
EVERYONE, SOME = ud.Everyone(), ud.Uniform(2)
EXACT = [
    (ud.Scaffold(option=1), SOME, 300, {"steps": STEPS, "lr": 0.05}),
    (ud.Scaffold(option=2), SOME, 300, {"steps": STEPS, "lr": 0.05}),
    (ud.Scaffold(option=2, B=1), EVERYONE, 150, {}),
    (ud.Scaffold(), EVERYONE, 250, {"momentum": 0.8, "lr": 0.03}),
    (ud.Scaffold(), SOME, 650, {"momentum": 0.8, "lr": 0.01}),
    (ud.ScaffoldM(0.5), SOME, 260, {"lr": 0.05}),
    (ud.ScaffoldM(0.3), EVERYONE, 180, {"steps": STEPS}),
    (ud.ScaffoldM(0.3, B=1, reparametrised=True), EVERYONE, 180, {"lr": 0.03}),
    (ud.ScaffoldMVR(0.3), EVERYONE, 200, {}),
    (ud.ScaffoldMVR(0.5), SOME, 300, {"lr": 0.05}),
    (ud.Scallion(alpha=0.5), SOME, 280, {"lr": 0.05}),
    (ud.Scafcom(beta=0.5), SOME, 300, {"lr": 0.05, "steps": STEPS}),
    (ud.FedNovaVR(), EVERYONE, 160, {"steps": STEPS}),
    (ud.FedNovaVR(rho=0.7), EVERYONE, 280, {"steps": STEPS, "lr": 0.03}),
    (ud.FedDyn(alpha=0.5), EVERYONE, 100, {"steps": 10}),
    (ud.FedDyn(alpha=0.5), SOME, 360, {"steps": 10}),
    (ud.Mime(opt="sgd"), EVERYONE, 150, {}),
    (ud.Mime(opt="sgdm", beta=0.5), EVERYONE, 110, {}),
    (ud.MBStorm(0.5), EVERYONE, 140, {}),
    (ud.CELSGD(0.5), EVERYONE, 150, {}),
    (ud.BVRLSGD(period=3), EVERYONE, 150, {}),
    (ud.VRLSGD(), EVERYONE, 150, {}),
    (ud.LED(), EVERYONE, 150, {}),
    (ud.Scaffnew(p=0.25), EVERYONE, 130, {"steps": ud.Geometric(0.25)}),
]


@pytest.mark.parametrize("algorithm, who, rounds, local", EXACT, ids=lambda v: str(v)[:60])
def test_exact_methods_reach_the_optimum(algorithm: Any, who: Any, rounds: int, local: dict[str, Any]) -> None:
    assert distance(algorithm, quadratic(), rounds, who, **local) < 1e-10


@pytest.mark.parametrize("algorithm", [ud.Scaffold(), ud.ScaffoldM(0.5), ud.FedNovaVR()])
def test_exact_methods_reach_the_weighted_optimum(algorithm: Any) -> None:
    assert distance(algorithm, quadratic(P), 400, EVERYONE, lr=0.05) < 1e-10


def test_fedavg_stalls_where_scaffold_arrives() -> None:
    """The first thing to see: same problem, same steps, 5 of 20 clients a round."""
    problem = quadratic(N=20, d=10)
    fedavg, scaffold, scaffold_m = (
        distance(x, problem, 400, ud.Uniform(5), steps=10, lr=0.02)
        for x in (ud.FedAvg(), ud.Scaffold(), ud.ScaffoldM(0.5))
    )
    assert fedavg > 0.1
    assert scaffold < 1e-10
    assert scaffold_m < 1e-10


BIASED = [
    (ud.FedAvg(), {}, "fedavg"),
    (ud.FedAvg(server_lr=0.6), {}, "fedavg"),
    (ud.FedProx(mu=0.7), {"mu": 0.7}, "fedavg"),
    (ud.FedGM(eta=0.8, beta=0.6, nu=0.7), {}, "fedavg"),
    (ud.FedNova(), {}, "fednova"),
    (ud.FedNova(mu=0.7), {"mu": 0.7}, "fednova"),
]


@pytest.mark.parametrize("algorithm, told, form", BIASED, ids=lambda v: str(v)[:50])
def test_biased_methods_reach_their_closed_limit(algorithm: Any, told: Any, form: str) -> None:
    """Wang et al. 2020, eq. (28), and its FedNova counterpart, with unequal steps and weights."""
    problem = quadratic(P)
    limit = getattr(closed_forms, f"{form}_limit")
    for eta in (0.2, 0.05):
        expected = limit(problem.H.numpy(), problem.e.numpy(), np.array(P), STEPS, eta, **told)
        local = ud.Local(steps=STEPS, lr=eta)
        x = path(algorithm, problem, rounds=600, local=local, engine="batched")[-1]
        assert gap(x, expected) < 1e-9
        assert np.linalg.norm(expected - problem.optimum.numpy()) > 1e-3  # and it is not x*


def test_fednova_bias_is_proportional_to_eta() -> None:
    problem = quadratic(P)
    x = problem.optimum.numpy()
    args = problem.H.numpy(), problem.e.numpy(), np.array(P), STEPS
    nova = [np.linalg.norm(closed_forms.fednova_limit(*args, eta) - x) for eta in (0.02, 0.002)]
    avg = [np.linalg.norm(closed_forms.fedavg_limit(*args, eta) - x) for eta in (0.02, 0.002)]
    assert 9 < nova[0] / nova[1] < 11
    assert avg[1] > 0.9 * avg[0]


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("K", [[4] * N, STEPS], ids=["equal", "unequal"])
def test_fedavg_m_ends_where_fedavg_with_beta_eta_does(beta: float, K: list[int]) -> None:
    """With unequal steps its directions are means over each client's own, so the limit is FedNova's at beta eta."""
    problem = quadratic()
    p = np.full(N, 1 / N)
    args = problem.H.numpy(), problem.e.numpy(), p, K
    expected = closed_forms.fedavg_m_limit(*args, 0.2, beta)
    local = ud.Local(steps=K, lr=0.2)
    x = path(ud.FedAvg_M(beta), problem, rounds=600, local=local, engine="batched")[-1]
    assert gap(x, expected) < 1e-9
    optimum = problem.optimum.numpy()
    fedavg = closed_forms.fedavg_limit(*args, 0.2)
    assert 1e-3 < np.linalg.norm(expected - optimum) < 0.7 * np.linalg.norm(fedavg - optimum)


def test_lemma_4_with_its_constant_mended() -> None:
    """Two clients pulled apart: the squared gradient at FedAvg's limit is chi^2 kappa^2 with kappa^2 = 4 w1 w2 a^2."""
    tau1, tau2, a = 3, 7, 2.0
    H, e = torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[a], [-a]], dtype=torch.float64)
    problem = ud.Quadratic(H, e)
    local = ud.Local(steps=[tau1, tau2], lr=1e-4)
    x = path(ud.FedAvg(server_lr=900.0), problem, rounds=400, local=local, engine="batched")[
        -1
    ]  # a large server step: the limit is the same and comes sooner
    squared = float(x[0] ** 2)  # grad F(x) = x here
    assert squared == pytest.approx(0.64, rel=2e-3)
    assert closed_forms.lemma4_gradient_norm(tau1, tau2, a) == pytest.approx(0.64)
    assert closed_forms.lemma4_chi_kappa(tau1, tau2, a) == pytest.approx(0.64)
    assert closed_forms.lemma4_chi_kappa(tau1, tau2, a, printed=True) == pytest.approx(0.32)


@pytest.mark.parametrize("J", [1, 2])
def test_ghbm_c9_comes_out_with_algorithm_3_only(J: int) -> None:
    """Zaccone et al. 2025, C.9: 10 clients, 2 a round in turn, tau = 5.  Algorithm 3 does as well as momentum with
    everyone; momentum with 2 of 10 has a floor; the practical version goes to FedAvg's limit cycle."""
    problem = quadratic(N=10, d=10)
    settings: dict[str, Any] = {"local": ud.Local(steps=J, lr=0.1), "engine": "batched"}

    def ends(algorithm: Any, who: Any, rounds: int = 600) -> np.ndarray:
        return path(algorithm, problem, rounds=rounds, participation=who, **settings)[-1]

    x = problem.optimum.numpy()
    cyclic, everyone = ud.Cyclic(2), ud.Everyone()
    full = np.linalg.norm(ends(ud.FedCM(0.1), everyone) - x)
    partial = np.linalg.norm(ends(ud.FedCM(0.1), cyclic) - x)
    theory = np.linalg.norm(ends(ud.GHBMTheory(tau=5, beta=0.1), cyclic) - x)
    assert theory < 1.01 * full + 1e-6
    assert partial > 10 * theory
    practical = ends(ud.GHBM(tau=5, beta=0.9), cyclic, rounds=1000)
    assert gap(practical, ends(ud.FedAvg(), cyclic, rounds=1000)) < 1e-9
    assert np.linalg.norm(practical - x) > 10 * theory
