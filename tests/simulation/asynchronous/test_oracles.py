"""The engine "events" against transcriptions of the papers that are told which updates came when."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.mutation import mutated
from tests.support.oracles import asynchrony
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap

N, T, ETA = 5, 30, 0.05
K = [1, 4, 2, 6, 3]
PACES = [0.31, 0.17, 0.53, 0.11, 0.97]

STAGES = [(2.0, 0.7, 0.8, 6), (1.0, 14 / 17, 0.8, 12), (0.5, 28 / 31, 0.8, 24)]
MULTISTAGE = ud.MultistageFedGM(eta=(2.0, 1.0, 0.5), T=42, beta=0.7, nu=0.8)
METHODS: list[tuple[str, dict[str, Any], Any, dict[str, Any]]] = [
    ("fedbuff", {"eta_g": 1.4}, asynchrony.fedbuff, {"eta_g": 1.4}),
    ("fedbuff", h := {"eta_g": 0.8, "staleness": "hinge", "a": 0.7, "b": 1.0}, asynchrony.fedbuff, h),
    ("fedbuff", h := {"eta_g": 0.8, "staleness": "constant"}, asynchrony.fedbuff, h),
    ("fedasync", h := {"alpha": 0.7, "rho": 0.6}, asynchrony.fedasync, h),
    ("fedasync", h := {"alpha": 0.5, "rho": 0.0, "staleness": "hinge", "a": 2.0, "b": 2.0}, asynchrony.fedasync, h),
    ("autonomous-fedgm", {"schedule": MULTISTAGE}, asynchrony.autonomous_fedgm, {"stages": STAGES}),
    ("autonomous-fedavg", {"eta": 2.0}, asynchrony.autonomous_fedgm, {"stages": [(2.0, 0.0, 0.0, 99)]}),
    ("scaffold", {}, asynchrony.scaffold, {}),
]  # fmt: skip
IDS = [f"{name}-{number}" for number, (name, *_) in enumerate(METHODS)]
BUFFERS = [(1, 3), (2, 4), (3, 3), (2, 5)]


def played(algorithm: Any, problem: Any, rounds: int = T, **more: Any) -> Any:
    """The path of a run in virtual time, and its rounds."""
    found = list(ud.rounds(algorithm, problem, rounds=rounds, **more))
    return torch.stack([problem.x0, *(r.x for r in found)]).numpy(), found


def distance_to_oracle(name: str, hyper: Any, oracle: Any, told: Any, size: int, out: int) -> float:
    w = make_world(N, p=[1, 2, 3, 1, 2] if name in ("fedbuff", "fedasync") else None)
    cohorts, ages, _ = asynchrony.timeline(N, size, out, T, lambda i: K[i] * PACES[i])
    ours, _ = played(
        ud.method(name, **hyper),
        WorldProblem(w),
        local=ud.Local(steps=K, lr=ETA),
        population=ud.Population(pace=ud.Table(PACES)),
        server=ud.Buffer(size, out),
    )
    return gap(ours, oracle(w, cohorts, K, ETA, ages=ages, **told))


@pytest.mark.parametrize("size, out", BUFFERS)
@pytest.mark.parametrize("name, hyper, oracle, told", METHODS, ids=IDS)
def test_stale_updates_equal_their_oracle(name: str, hyper: Any, oracle: Any, told: Any, size: int, out: int) -> None:
    assert distance_to_oracle(name, hyper, oracle, told, size, out) < 1e-9


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_timeline_is_that_of_brute_force(data: Any) -> None:
    """Who is in each buffer, how stale, and when the server steps, also with ties in time."""
    n = data.draw(st.integers(1, 7))
    paces = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 7.25]), min_size=n, max_size=n))
    size, out = data.draw(st.integers(1, n)), data.draw(st.integers(1, n))
    cohorts, ages, times = asynchrony.timeline(n, size, out, 12, lambda i: 3 * paces[i])
    _, rounds = played(
        ud.FedAvg(),
        WorldProblem(make_world(n)),
        rounds=12,
        local=ud.Local(steps=3, lr=ETA),
        population=ud.Population(pace=ud.Table(paces)),
        server=ud.Buffer(size, out),
    )
    assert [list(r.clients) for r in rounds] == cohorts
    assert [list(r.timing.staleness) for r in rounds] == ages
    assert [r.time for r in rounds] == times


@pytest.mark.parametrize("d", [0, 1, 3, 6])
def test_a_constant_delay_is_delayed_gradient_descent(d: int) -> None:
    """d + 1 clients that set out one after another, evenly: each update is exactly d server updates old."""
    w = make_world(d + 1)
    rounds, pace = 40, 1.0 + d
    trace = ud.Trace([(i, float(i), 1e9) for i in range(d + 1)])
    ours, found = played(
        ud.FedAvg(),
        WorldProblem(w),
        rounds=rounds,
        local=ud.Local(steps=1, lr=ETA),
        population=ud.Population(pace=pace, availability=trace),
        server=ud.Buffer(1, concurrency=d + 1),
    )
    order = [t % (d + 1) for t in range(rounds)]
    assert [r.clients for r in found] == [(i,) for i in order]
    assert [r.timing.staleness[0] for r in found] == [min(t, d) for t in range(rounds)]
    assert gap(ours, asynchrony.delayed_gradient(w, rounds, d, ETA, order)) < 1e-12


def test_autonomous_fedgm_is_multistage_fedgm_with_eta_over_k() -> None:
    """E29, in virtual time: same K, nobody late.  With the step sizes multiplied by K it is Multistage FedGM itself."""
    steps, problem = 4, WorldProblem(make_world(N))
    local = ud.Local(steps=steps, lr=ETA)
    scaled = ud.MultistageFedGM(eta=tuple(steps * eta for eta in (2.0, 1.0, 0.5)), T=42, beta=0.7)
    plain = ud.MultistageFedGM(eta=(2.0, 1.0, 0.5), T=42, beta=0.7)
    autonomous, _ = played(
        ud.AutonomousFedGM(scaled),
        problem,
        rounds=42,
        local=local,
        population=ud.Population(pace=2.0, link=ud.Link(latency=0.5)),
        server=ud.Buffer(N),
        engine="events-sequential",
    )
    synchronous = torch.stack(
        [problem.x0] + [r.x for r in ud.rounds(plain, problem, rounds=42, local=local, engine="sequential")]
    ).numpy()
    assert gap(autonomous, synchronous) < 1e-9
    assert np.abs(synchronous[-1] - synchronous[0]).max() > 0.1


MUTANTS = [
    ("staleness counted from 0, not 1", "fedbuff.py", "(1 + tau) ** -a", "(tau.clamp(min=1)) ** -a"),
    ("square root forgotten", "fedbuff.py", "(1 + tau) ** -a", "1 / (1 + tau)"),
    ("hinge without its flat part", "fedbuff.py", "(tau - b).clamp(min=0)", "tau"),
    ("updates added, not averaged", "fedbuff.py", "self.eta_g * mean.delta", "cohort.S * self.eta_g * mean.delta"),
    ("alpha not discounted (FedAsync)", "fedbuff.py", "float(cohort.weights @ self.discount(cohort.staleness))", "1"),
    ("proximal term forgotten", "fedbuff.py", " + self.rho * (y - x)", ""),
    ("no discount at all", "fedbuff.py", "return s(self.staleness, staleness, self.a, self.b)", "return 0 * staleness + 1"),
    ("asynchronous updates not divided by K", "fedgm.py", "Up(up.delta / work.K)", "Up(up.delta)"),
    ("autonomous FedAvg with momentum", "fedgm.py", "FedGM(eta, beta=0.0, nu=0.0)", "FedGM(eta)"),
    ("stages counted in arrivals, not in server updates", "fedgm.py", "cohort.round <= end", "cohort.round * cohort.S <= end"),
]  # fmt: skip


@pytest.mark.parametrize("bug, file, right, wrong", MUTANTS, ids=[each[0] for each in MUTANTS])
def test_mutants_of_asynchronous_methods_are_caught(bug: str, file: str, right: str, wrong: str) -> None:
    with mutated(file, right, wrong) as names:
        for name, hyper, oracle, told in METHODS:
            if name not in names:
                continue
            if "schedule" in hyper:  # of the mutant's own making
                stages = {"eta": (2.0, 1.0, 0.5), "T": 42, "beta": 0.7, "nu": 0.8}
                hyper = {"schedule": ud.method("multistage-fedgm", **stages)}
            try:
                if not distance_to_oracle(name, hyper, oracle, told, 2, 4) < 1e-9:
                    return
            except (ud.Stopped, ud.InvalidInput, ud.MethodFailure):
                return
    raise AssertionError(f"nothing notices: {bug}")
