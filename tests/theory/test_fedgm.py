"""FedGM: the local step sizes of Theorems 4.1, 4.6 and 5.1, and the limit of the server's step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.quadratics import quadratic

unit = st.floats(0, 0.95)


@given(
    L=st.floats(0.01, 100),
    K=st.integers(1, 20),
    eta=st.floats(0.01, 20),
    beta=unit,
    nu=st.floats(0, 1),
    N=st.integers(2, 50),
    part=st.floats(0, 0.99),
    delay=st.integers(0, 20),
)
@settings(deadline=None)
def test_one_stage(L: float, K: int, eta: float, beta: float, nu: float, N: int, part: float, delay: int) -> None:
    server = ud.FedGM(eta, beta, nu)
    W1 = eta * beta * nu / (1 - beta)
    told: dict[str, Any] = {"L": L, "Delta": 1.0, "N": N, "K": K, "R": 100}
    s = ud.theory.fedgm(server, **told)
    assert s.lr == pytest.approx(min(1 / (8 * K * L), 1 / (K * (L * eta + 1 + L**2 * W1**2))))
    assert s.bound() == pytest.approx(64 / 17 / (100 * eta * s.lr * K))
    assert s.method() is server and s.local() == ud.Local(steps=K, lr=s.lr)
    m = max(1, int(part * N))
    s = ud.theory.fedgm(server, S=m, **told)
    room = min(m * (N - 1) / (N * (m - 1)) if m > 1 else np.inf, 17 * m / 282)
    assert s.lr <= 1 / (8 * K * L) * (1 + 1e-9)
    assert s.lr * (1 + L * eta + L**2 * W1**2) * K <= room * (1 + 1e-9)
    s = ud.theory.autonomous_fedgm(server, S=m, delay=delay, **told)
    limits = [1 / (8 * K * L), 1 / (L * (eta * (1 + 2 * delay) + W1))]
    limits += [np.sqrt(1 / (120 * L**2 * delay * K**2))] if delay else []
    assert s.lr == pytest.approx(min(limits))
    assert s.method() == ud.AutonomousFedGM(server)


def test_stages_enter_by_their_number_mean_and_ratio() -> None:
    server = ud.MultistageFedGM(eta=(4.0, 2.0, 1.0), T=700, beta=0.5, nu=0.5)
    s = ud.theory.fedgm(server, L=2.0, Delta=3.0, N=10, K=4, R=700, sigma_l=1.0, sigma_g=2.0)
    C, mean, W1, W2, n = 4.0, 7 / 3, 2.0, 400.0, 3
    assert s.lr == pytest.approx(1 / (4 * n * C * (2 * mean + 1 + 4 * W1**2 * C)))
    lr = s.lr
    psi_l = (32 / 17) * (4 * W1**2 * 700 * mean * lr / (10 * W2) + 2 * mean * lr / 10 + lr / 10)
    psi_l += 160 / 17 * lr**2 * 4 * 4
    psi_g = 960 / 17 * lr**2 * 4 * 16
    first = 64 / 17 * 3 / (n * W2 * lr * 4)
    assert s.bound() == pytest.approx(first + psi_l + 4 * psi_g)
    with pytest.raises(ud.InvalidInput, match="of all 700 rounds, got 350"):
        s.bound(350)


@pytest.mark.parametrize(
    "beta, nu, steps",
    [(0.0, 0.5, 1), (0.5, 1.0, 4), (0.9, 0.5, 4), (0.9, 0.9, 1), (0.9, 1.0, 4), (0.8, 0.0, 1)],
)
def test_stable_below_and_divergent_above_the_largest_server_step(beta: float, nu: float, steps: int) -> None:
    problem = quadratic()
    problem.x0 = problem.optimum + 1.0
    lr = 0.2
    limit = ud.theory.largest_server_step(problem, steps=steps, lr=lr, beta=beta, nu=nu)

    def growth(eta: float) -> float:
        """How much the distance to the limit of FedAvg grows over the second half of a run."""
        goal = ud.theory.fedavg_limit(problem, steps=steps, lr=lr)
        away = [
            float((r.x - goal).norm())
            for r in ud.rounds(
                ud.FedGM(eta, beta, nu),
                problem,
                rounds=500,
                local=ud.Local(steps=steps, lr=lr),
                engine="batched",
                evaluate_every=500,
            )
        ]
        return max(away[-40:]) / max(away[200:240])

    assert growth(0.99 * limit) < 0.9
    assert growth(1.01 * limit) > 1.1


@given(beta=st.floats(0, 0.99), nu=st.floats(0, 2), k=st.floats(0.01, 50))
@settings(deadline=None)
def test_the_gain_is_that_of_the_matrix_of_a_round(beta: float, nu: float, k: float) -> None:
    limit = 2 * ud.theory.server_step_gain(beta, nu)
    A = np.array([[1 - k * (1 - nu * beta), -k * nu * beta], [1 - beta, beta]])
    radius = np.abs(np.linalg.eigvals(A)).max()
    if k < 0.999 * limit:
        assert radius < 1 + 1e-9
    if k > 1.001 * limit:
        assert radius > 1 - 1e-9


def test_gains_of_the_remark() -> None:
    assert ud.theory.server_step_gain(0.9, 1.0) == pytest.approx(19)
    assert ud.theory.server_step_gain(0.9, 0.9) == pytest.approx(6.8, abs=0.02)
    assert ud.theory.server_step_gain(0.7, 0.0) == 1


@pytest.mark.parametrize("delay", [0, 1, 5, 20])
def test_late_updates_do_not_destabilise_what_theorem_5_1_prescribes_here(delay: int) -> None:
    """100 random scalar quadratics: every update as late as it may be, and lateness at random."""
    rng = np.random.default_rng(delay)
    for _ in range(100):
        L, beta, nu = float(10 ** rng.uniform(-1, 1)), rng.uniform(0, 0.99), rng.uniform(0, 1)
        server = ud.FedGM(float(10 ** rng.uniform(-1, 2)), float(beta), float(nu))
        told: dict[str, Any] = {"L": L, "Delta": 1.0, "N": 4, "S": 2, "K": 1, "R": 100}
        s = ud.theory.autonomous_fedgm(server, delay=delay, **told)
        for late in ("most", "some"):
            rounds = 400 + int(4 / (1 - beta)) + 4 * delay
            x = [1.0] * (delay + 1)
            d, step = 0.0, server.eta * s.lr * L
            for _ in range(rounds):
                by = delay if late == "most" else int(rng.integers(0, delay + 1))
                g = x[-1 - by]
                d = (1 - beta) * g + beta * d
                x.append(x[-1] - step * ((1 - nu) * g + nu * d))
            assert max(np.abs(x)) <= 2.0
            assert max(np.abs(x[-20:])) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    "server, R, words",
    [
        (ud.FedAvg(), 100, "the schedule is a ud.FedGM or a ud.MultistageFedGM"),
        (ud.FedGM(0.0), 100, r"eta must lie in \(0, inf\), got 0"),
        (ud.FedGM(1.0, 0.5, 1.5), 100, r"nu must lie in \[0, 1\], got 1.5"),
        (
            ud.MultistageFedGM(eta=(2.0, 1.0), T=30),
            40,
            "sum of T_s = R is needed, got the sum = 30 and R = 40",
        ),
    ],
)
def test_schedules_that_do_not_fit_are_named(server: Any, R: int, words: str) -> None:
    with pytest.raises(ud.InvalidInput, match=words):
        ud.theory.fedgm(server, L=1.0, Delta=1.0, N=4, K=2, R=R)


def test_delays_longer_than_the_run_are_named() -> None:
    known: dict[str, Any] = {"L": 1.0, "Delta": 1.0, "N": 4, "S": 2, "K": 2, "R": 30}
    with pytest.raises(ud.InvalidInput, match="delay <= R is needed, got delay = 31 and R = 30"):
        ud.theory.autonomous_fedgm(ud.FedGM(), delay=31, **known)


def test_open_stages_fill_the_rounds() -> None:
    known: dict[str, Any] = {"L": 1.0, "Delta": 1.0, "N": 4, "K": 2, "R": 700}
    open_, given = (ud.theory.fedgm(ud.MultistageFedGM(T=T), **known) for T in (None, 700))
    assert open_.stages == given.stages and open_.lr == given.lr
    assert [stage.rounds for stage in open_.stages] == [100, 200, 400]


def test_constraint_3_is_asked_for() -> None:
    class Free:
        stages = ((2.0, 0.5, 1.0, 10), (1.0, 0.5, 1.0, 20))

    class Rising:
        stages = ((1.0, 0.5, 1.0, 20), (2.0, 0.5, 1.0, 10))

    from undrift.theory.fedgm import Stage

    def told(each: Any) -> Any:
        class Told:
            stages = tuple(Stage(*s) for s in each.stages)

        return Told()

    known: dict[str, Any] = {"L": 1.0, "Delta": 1.0, "N": 4, "K": 2, "R": 30}
    with pytest.raises(ud.InvalidInput, match=r"the same in every stage \(3\) is needed"):
        ud.theory.fedgm(told(Free), **known)
    with pytest.raises(ud.InvalidInput, match="eta_s that does not rise"):
        ud.theory.fedgm(told(Rising), **known)
