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
from undrift.data.assignment import Samples

N, T = 5, 24
SOME = ud.Fixed(random_cohorts(N, 2, T))


def go(algorithm: Any, who: Any = SOME, steps: Any = 3, lr: float = 0.08, n: int = 17) -> np.ndarray:
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
    assert torch.equal(first.past, first.x)  # whatever g^0 becomes in the initialisation round


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
    assert gap(by_weight, same_clients) > 1e-3  # p_i counted once, in the draw; or once more, in the mean


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
    printed = "h = server.h - self.alpha * (cohort.share * (server.x - mean.delta) - server.x / cohort.N)"

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


def test_21_the_last_tau_gradients_of_a_cycle_may_be_further_off_than_corollary_4_5_says() -> None:
    """Mean gradient of s = tau C n clients against that of n: 8 (1 - tau C)^2 (G^2 + |grad f|^2) is no bound."""

    def sides(g: np.ndarray, s: int) -> tuple[float, float, float]:
        n, mean = len(g), g.mean(0)
        share = s / n
        G2 = ((g - mean) ** 2).sum(1).mean()
        error = ((g[:s].mean(0) - mean) ** 2).sum()
        printed = 8 * (1 - share) ** 2 * (G2 + (mean**2).sum())
        return float(error), float(printed), float(G2 * (1 - share) / share)

    error, printed, right = sides(np.eye(10)[:, :1], 1)
    assert (error, printed, right) == pytest.approx((0.81, 0.648, 0.81))
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(2, 20))
        g = rng.normal(size=(n, 3)) * rng.uniform(0, 5, (n, 1))
        for s in range(1, n + 1):
            error, _, right = sides(g, s)
            assert error <= right + 1e-12


def test_22_the_lag_of_tau_rounds_grows_with_tau_squared() -> None:
    """Lemma 4.6 on x^2/2 with identical clients, no noise and no drift: too small by (tau - 1)/2."""
    beta = 0.005
    eta = beta / np.sqrt(8)

    def worst(tau: int) -> tuple[float, float]:
        x, m = 1.0, 0.0
        xs: list[float] = []
        terms: list[float] = []  # |grad f|^2 + E of every round
        printed = right = 0.0
        for t in range(1, 3000):
            xs.append(x)
            g = sum(xs[-tau:]) / tau
            m = (1 - beta) * m + beta * g
            terms.append(x**2 + (x - m) ** 2)
            if t >= tau:
                lag, late = (g - x) ** 2, eta**2 * sum(terms[-tau:-1])
                printed = max(printed, lag / (6 * late))
                right = max(right, lag / (3 * (tau - 1) * late))
            x = x - eta * m
        return printed, right

    for tau, expected in ((20, 1.56), (40, 3.15), (80, 6.21)):
        printed, right = worst(tau)
        assert printed == pytest.approx(expected, abs=0.01)
        assert right < 1


@pytest.mark.slow
def test_22_ghbm_with_the_step_of_theorem_4_7_diverges() -> None:
    """200 clients with f_i = x^2/2 in turn, sigma = 0: beta = 1, eta = 1/(24 L); half the largest stable step does not."""
    problem = ud.Quadratic(torch.ones(200, 1, 1).double(), torch.zeros(200, 1).double())
    problem.x0 = torch.ones(1).double()
    told: dict[str, Any] = {"L": 1.0, "Delta": 0.5, "G_tau": 1.0, "sigma": 0.0, "K": 1, "R": 2000}
    setting = ud.theory.ghbm(N=200, S=1, **told)
    assert setting.beta == 1 and setting.eta < 1 / 24

    def last(eta: float) -> float:
        run = ud.rounds(
            ud.GHBMTheory(tau=200, beta=1.0, eta=eta),
            problem,
            rounds=2000,
            participation=ud.Cyclic(1),
            local=ud.Local(steps=1, lr=setting.lr),
            engine="sequential",
            evaluate_every=2000,
        )
        return max(float(r.x.abs()) for r in run if r.round > 1500)

    assert last(1 / 24) > 10
    assert last(setting.eta) < 0.1


def test_23_smoothness_bounds_gradients_by_twice_the_gap() -> None:
    """(1) and (P2) print beta (f - f*) where 2 beta (f - f*) is right; x^2/2 has |grad|^2 = 2 (f - f*)."""
    x = 1.0
    gap, square = x**2 / 2, x**2
    assert square > 1 * gap and square == 2 * gap
    a, eta = 100.0, 0.1  # (P2) from y = x with c_i = g_i(x): the first local step
    left = (eta * x) ** 2
    assert left > eta**2 * (1 + 1 / a) * gap
    assert left <= eta**2 * (1 + 1 / a) * 2 * gap
    rng = np.random.default_rng(0)
    H = np.einsum("nij,nkj->nik", A := rng.normal(size=(50, 4, 4)), A)
    for h in H:
        y = rng.normal(size=4)
        assert (h @ y) @ (h @ y) <= 2 * np.linalg.eigvalsh(h).max() * (y @ h @ y) / 2 + 1e-9


def test_23_both_constants_of_p4_hold() -> None:
    """T_4 = mean |c - c_i + grad f_i(x)|^2 against b (f - f*) and k mean |c_i - grad f_i(x*)|^2; 4, 2 suffice."""
    problem = quadratic()
    H, best = problem.H.numpy(), problem.optimum.numpy()
    L = np.linalg.eigvalsh(H).max()
    e = problem.e.numpy()
    rng = np.random.default_rng(0)
    for _ in range(300):
        x, c = rng.normal(size=4) + best, H @ best - e + rng.uniform(0, 3) * rng.normal(size=(6, 4))
        middle = ((c.mean(0) - c + H @ x - e) ** 2).sum(1).mean()
        gap = (x - best) @ H.mean(0) @ (x - best) / 2
        control = ((c - (H @ best - e)) ** 2).sum(1).mean()
        for b, k in ((6, 3), (3, 6), (4, 2)):
            assert middle <= b * L * gap + k * control + 1e-12


@pytest.mark.parametrize("gamma, breaks", [(0.1, True), (0.1 / 12, False)])
def test_24_scaffold_m_with_the_gamma_of_theorem_19_breaks_lemma_16(gamma: float, breaks: bool) -> None:
    """All clients, one exact step, x^2/2: E_r <= (1 - 8 beta/9) E_{r-1} + 16/beta (gamma L)^2 |grad f(x^{r-1})|^2."""
    beta = 0.1
    problem = ud.Quadratic(torch.ones(2, 1, 1).double(), torch.zeros(2, 1).double())
    problem.x0 = torch.ones(1).double()
    xs, errors, broken = [1.0], [], []
    for r in ud.rounds(
        ud.ScaffoldM(beta=beta, gamma=gamma, B=1),
        problem,
        rounds=100,
        local=ud.Local(steps=1, lr=0.1),
    ):
        errors.append((xs[-1] - float(r.state.server.g)) ** 2)
        if len(errors) > 1:
            right = (1 - 8 * beta / 9) * errors[-2] + 16 / beta * gamma**2 * xs[-2] ** 2
            broken.append(errors[-1] > right * (1 + 1e-9))
        xs.append(float(r.x))
    assert any(broken) is breaks


def test_25_the_exponent_of_fednovas_141() -> None:
    """tau = K^(1/4) m^(-3/4) makes 1/sqrt(mK) equal to tau^(2/3) / K^(2/3), as in (140), not tau^(4/3) / K^(2/3)."""
    for m, K in ((4, 1e6), (10, 1e9)):
        tau = K**0.25 * m**-0.75
        assert tau ** (2 / 3) / K ** (2 / 3) == pytest.approx((m * K) ** -0.5)
        assert tau ** (4 / 3) / K ** (2 / 3) != pytest.approx((m * K) ** -0.5, rel=0.1)


def test_26_theorem_5_1_does_not_limit_the_servers_step() -> None:
    """x^2/2, K = 1, no delay, no noise, eta_l = 1/(8 L) as allowed, eta = 20: every round multiplies x by -1.5."""
    problem = ud.Quadratic(torch.ones(2, 1, 1).double(), torch.zeros(2, 1).double())
    problem.x0 = torch.ones(1).double()
    server, R, Delta = ud.FedGM(20.0, beta=0.0, nu=0.0), 20, 0.5
    told: dict[str, Any] = {"L": 1.0, "Delta": Delta, "N": 2, "S": 2, "K": 1, "R": R}
    setting = ud.theory.autonomous_fedgm(server, **told)

    def mean_square(lr: float) -> float:
        run = ud.rounds(setting.method(), problem, rounds=R, local=ud.Local(steps=1, lr=lr))
        xs = [1.0, *(float(r.x) for r in run)]
        return float(np.mean(np.square(xs[:-1])))

    assert mean_square(1 / 8) > 1e3 * 4 * Delta / (R * server.eta / 8)
    assert mean_square(setting.lr) <= setting.bound()


def test_27_alpha_is_a_concentration_each_or_in_all() -> None:
    labels = np.repeat(np.arange(10), 2000)
    data = Samples(20_000, labels)

    def squares(alpha: float, concentration: str) -> float:
        """The mean over clients of sum_c q_c^2, as long as no class is used up."""
        drawn = [ud.Dirichlet(200, alpha, concentration).split(data, seed) for seed in range(8)]
        shares = [np.bincount(labels[parts.of(i)], minlength=10) / 100 for parts in drawn for i in range(60)]
        return float(np.square(shares).sum(1).mean())

    for alpha in (0.2, 0.5):  # the mean of sum_c q_c^2 of Dir(a, ..., a) is (a + 1)/(C a + 1)
        assert squares(alpha, "alpha*p") == pytest.approx((alpha / 10 + 1) / (alpha + 1), abs=0.05)
        assert squares(alpha, "alpha") == pytest.approx((alpha + 1) / (10 * alpha + 1), abs=0.05)
    assert squares(5.0, "alpha*p") == pytest.approx(squares(0.5, "alpha"), abs=0.05)


def test_28_with_a_proximal_term_the_first_steps_have_larger_weights() -> None:
    """(69) and (80) with gradients that are all 1, two steps and alpha = 0.8: x0 - x1 is 1, not a^(0) = 0.2."""
    alpha, tau = 0.8, 2
    a = ud.theory.accumulation(tau, alpha=alpha)
    way = np.array([ud.theory.accumulation(k, alpha=alpha).sum() if k else 0.0 for k in range(tau)])
    assert way[1] == pytest.approx(1) and a[:1].sum() == pytest.approx(0.2)
    left = a @ way**2 / a.sum()
    printed, right = (2 * (a.sum() - left_out) * a.sum() for left_out in (a[-1], a.min()))
    assert left == pytest.approx(0.833, abs=1e-3) and printed == pytest.approx(0.48)
    assert printed < left < right


@pytest.mark.parametrize("K, breaks", [(4, False), (32, True)])
def test_29_one_minibatch_moves_all_local_steps(K: int, breaks: bool) -> None:
    """Lemma 2 at x*: 3 beta delta <= 2 eta~ sigma^2/(K eta_g^2).  c_i = g_i(x) is the same in all K steps, so it adds up."""
    clients, d, step = 16, 300, 1 / 8
    problem = ud.Quadratic(torch.eye(d).double().repeat(clients, 1, 1), torch.zeros(clients, d).double(), variance=1.0)
    local = ud.Local(steps=K, lr=step / K)
    (r,) = ud.rounds(ud.Scaffold(option=1, B=1), problem, rounds=1, local=local, metrics="drift")
    delta = r.metrics["drift"]
    assert (3 * delta > 2 * step / K) is breaks
    assert delta <= step**2 / 3 * (1 + 1.5 * sum(1 / k for k in range(1, K + 1)) / K)
