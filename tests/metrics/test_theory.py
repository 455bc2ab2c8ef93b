"""Metrics of the theory: equal to literal computations in every engine, and trajectories that do not know of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.everywhere import federation, models, played
from tests.support.oracles.metrics import literal_metrics
from tests.support.quadratics import STEPS, N, P, quadratic
from undrift.experiments.runs.checkpoint import Checkpoints
from undrift.simulation.engines import EngineChoice

pytestmark = pytest.mark.usefixtures("interpreted")

TAUS = (1, 3)
EVERYWHERE = ("drift", "dissimilarity", "tau_eff", "chi2", *(f"tau_error:{tau}" for tau in TAUS))
METHODS: dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]] = {
    "fedavg": (ud.FedAvg(), (), {}),
    "scaffold": (ud.Scaffold(), ("control_error",), {}),
    "fedavg-m": (ud.FedAvg_M(beta=0.3), ("momentum_error",), {"beta": 0.3}),
    "scaffold-m": (ud.ScaffoldM(beta=0.3), ("momentum_error", "control_error"), {"beta": 0.3}),
    "ghbm": (ud.GHBM(tau=2, beta=0.8), (), {"beta": 0.8, "tau": 2}),
}
ENGINES: dict[str, dict[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "threads": {"engine": "sequential", "workers": 2},
    "batched": {"engine": "batched", "chunk": 2},
    "compiled": {"engine": "compiled"},
    "compiled one by one": {"engine": EngineChoice("compiled", workers=2)},
    "events": {"engine": "events"},
    "deadline": {"engine": "events-batched", "server": ud.Deadline(1e9)},
    "buffer": {"engine": "events"},
}


def runs(
    method: str, engine: str, size: int, metrics: Sequence[Any], every: int = 1, rounds: int = 5
) -> list[ud.Round]:
    algorithm = METHODS[method][0]
    given = dict(ENGINES.get(engine, {"engine": engine, "workers": 1}))
    if engine == "buffer":
        given["server"] = ud.Buffer(size)
    return list(
        ud.rounds(
            algorithm, quadratic(P), rounds=rounds, participation=ud.Uniform(size), seed=1, metrics=metrics,
            local=ud.Local(steps=STEPS, lr=0.1), evaluate_every=every, **given,
        )
    )  # fmt: skip


def expected(method: str, rounds: list[ud.Round]) -> tuple[list[np.ndarray], list[dict[str, float]]]:
    problem = quadratic(P)
    cohorts = [r.clients for r in rounds]
    of_method = METHODS[method][2]
    return literal_metrics(
        method, problem.H.numpy(), problem.e.numpy(), np.array(P), STEPS, 0.1, cohorts, taus=TAUS, **of_method
    )


def misses(found: list[ud.Round], literal: list[dict[str, float]]) -> list[str]:
    """The metrics that are off by more than rounding, or missing."""
    off = []
    for r, metrics in zip(found, literal, strict=True):
        assert {*r.metrics} == {*metrics}
        off += [
            f"{name} in round {r.round}" for name, v in metrics.items() if abs(r.metrics[name] - v) > 1e-12 * max(1, v)
        ]
    return off


@pytest.mark.parametrize("size", [N, 3])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_metrics_are_what_they_are_by_hand(method: str, engine: str, size: int, refusals: Any) -> None:
    wanted = (*EVERYWHERE, *METHODS[method][1])
    found = runs(method, engine, size, wanted)
    xs, literal = expected(method, found)
    assert np.abs(found[-1].x.numpy() - xs[-1]).max() < 1e-12
    assert misses(found, literal) == []
    assert refusals() == []  # what was to be compiled was


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_trajectories_do_not_know_of_them(method: str, engine: str) -> None:
    plain = runs(method, engine, 3, (), every=2)
    looked_at = runs(method, engine, 3, (*EVERYWHERE, *METHODS[method][1]), every=2)
    assert all(torch.equal(a.x, b.x) for a, b in zip(plain, looked_at, strict=True))
    assert [bool(r.metrics) for r in looked_at] == [False, True, False, True, True]
    every_round = runs(method, engine, 3, (*EVERYWHERE, *METHODS[method][1]))
    for sparse, each in zip(looked_at, every_round, strict=True):  # a window is seen also if rounds within are not due
        assert sparse.metrics == ({} if not sparse.metrics else each.metrics)


def test_networks_too_in_float32(refusals: Any) -> None:
    """Parameters in pieces, minibatches, unequal steps: compiled as in the reference."""
    metrics = ("drift", "control_error", "momentum_error", "dissimilarity", "tau_error:2")
    settings: dict[str, Any] = {"metrics": metrics, "local": ud.Local(steps=[3, 1, 2, 3, 2], batch=4, lr=0.1)}
    reference = played(ud.ScaffoldM(), "sequential", federation(), **settings)
    for engine in ("batched", "compiled", "events"):
        found = played(ud.ScaffoldM(), engine, federation(), **settings)
        for mine, other in zip(found, reference, strict=True):
            assert mine.metrics == pytest.approx(other.metrics, rel=1e-9, abs=1e-12)
        single = played(ud.ScaffoldM(), engine, federation(torch.float32), **settings)
        plain = played(ud.ScaffoldM(), engine, federation(torch.float32), **(settings | {"metrics": ()}))
        assert (models(single) == models(plain)).all()
        assert single[-1].metrics == pytest.approx(reference[-1].metrics, rel=1e-3)
    assert refusals() == []


@pytest.mark.parametrize("method", [ud.Mime(), ud.Scaffold(B=1)], ids=lambda method: type(method).__name__)
def test_drift_of_runs_together_is_that_of_local_steps_alone(method: Any) -> None:
    """Other exchanges of a round, for gradients or to begin with, have none: they are not in its mean."""
    problem, local = federation(), ud.Local(steps=3, batch=4, lr=0.1)
    settings: dict[str, Any] = {"rounds": 2, "participation": ud.Uniform(3), "metrics": ("drift",)}
    trials = [ud.Trial(method, problem, local, seed) for seed in (0, 1)]
    for trial, result in zip(trials, ud.run_together(trials, engine="batched", **settings), strict=True):
        alone = ud.run(method, problem, local=local, seed=trial.seed, engine="sequential", **settings)
        for mine, reference in zip(result.history, alone.history, strict=True):
            assert mine.metrics == pytest.approx(reference.metrics, rel=1e-9)


def test_many_runs_as_one_computation(refusals: Any) -> None:
    metrics = ("test", "drift", "dissimilarity", "chi2", "tau_eff", "tau_error:2", "control_error", "momentum_error")
    problems = [federation(), federation(clients=ud.Dirichlet(5, alpha=1.0))]
    local = ud.Local(steps=[2, 3, 1, 3, 2], batch=4, lr=0.1)
    trials = [ud.Trial(ud.ScaffoldM(beta=b), p, local, s) for s, p in enumerate(problems) for b in (0.2, 0.5)]
    settings: dict[str, Any] = {"rounds": 4, "participation": ud.Uniform(3), "evaluate_every": 2}
    for engine in ("batched", "compiled"):
        together = ud.run_together(trials, engine=engine, metrics=metrics, **settings)
        plain = ud.run_together(trials, engine=engine, **settings)
        for trial, result, other in zip(trials, together, plain, strict=True):
            assert torch.equal(result.x, other.x)
            alone = ud.run(
                trial.algorithm,
                trial.problem,
                local=local,
                seed=trial.seed,
                engine="sequential",
                metrics=metrics,
                **settings,
            )
            for mine, reference in zip(result.history, alone.history, strict=True):
                assert mine.metrics == pytest.approx(reference.metrics, rel=1e-12, abs=1e-14)
    assert refusals() == []


def test_a_resumed_run_records_the_same() -> None:
    metrics = ("drift", "tau_error:3")
    settings: dict[str, Any] = {"metrics": metrics, "evaluate_every": 2, "rounds": 6}
    whole = played(ud.FedAvg(), "batched", **settings)
    half = None
    for r in ud.rounds(ud.FedAvg(), federation(), participation=ud.Uniform(3), seed=3, engine="batched",
                       local=ud.Local(steps=3, batch=4, lr=0.1), **settings):  # fmt: skip
        if r.round == 3:
            half = r.snapshot()
    rest = played(ud.FedAvg(), "batched", start=half, **settings)
    assert [r.metrics for r in rest] == [r.metrics for r in whole[3:]]


def test_checkpoints_keep_the_window(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 6, "metrics": "tau_error:3", "evaluate_every": 2}
    rounds = ud.rounds(ud.FedAvg(), federation(), **settings)
    states = [next(rounds).snapshot() for _ in range(3)]
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(states[-1], None, {}, wait=True)
    fresh = next(ud.rounds(ud.FedAvg(), federation(), rounds=6)).snapshot()
    saved = checkpoints.read(3, fresh).state
    checkpoints.close()
    assert len(saved.pseudo_gradients) == 3
    assert all(map(torch.equal, saved.pseudo_gradients, states[-1].pseudo_gradients))


# what the papers say of them


def test_the_error_of_momentum_on_noisy_quadratics() -> None:
    """beta / (2 - beta) sigma^2 / (N K): an average with weights beta (1 - beta)^j of independent noise (Cheng, Lemma 8)."""
    clients, K, beta, variance, d = 4, 5, 0.2, 2.0, 32
    random = torch.Generator().manual_seed(0)
    e = torch.randn(clients, d, dtype=torch.float64, generator=random)
    problem = ud.Quadratic(torch.eye(d, dtype=torch.float64).repeat(clients, 1, 1), e - e.mean(0), variance=variance)
    found = ud.run(  # steps so short that the model stays where it starts, at the optimum
        ud.FedAvg_M(beta=beta), problem, rounds=1500, local=ud.Local(steps=K, lr=1e-4), engine="batched",
        metrics="momentum_error",
    )  # fmt: skip
    mean = found.final("momentum_error", last=1450)
    assert mean == pytest.approx(beta / (2 - beta) * variance / (clients * K), rel=0.05)


def test_lemma_4_of_fednova_from_recorded_numbers() -> None:
    """H_i = 1, e = +-2, 3 and 7 steps: FedAvg's squared gradient ends at chi2 kappa^2 = .64, kappa^2 = the dissimilarity of weights w."""
    H, e = torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    problem = ud.Quadratic(H, e)
    found = ud.run(
        ud.FedAvg(),
        problem,
        rounds=2000,
        local=ud.Local(steps=[3, 7], lr=1e-3),
        metrics=("test", "chi2", "dissimilarity"),
        evaluate_every=2000,
    )
    last = found.history[-1].metrics
    assert last["chi2"] == pytest.approx(4 / 21, rel=1e-12)
    weighted = ud.Quadratic(H, e, weights=[0.3, 0.7])  # as the steps imply
    kappa2 = ud.run(ud.FedAvg(), weighted, rounds=1, metrics="dissimilarity").final(
        "dissimilarity"
    )  # the same at any x
    assert last["grad_norm"] ** 2 == pytest.approx(last["chi2"] * kappa2, rel=0.03)  # up to O(lr)
    assert last["chi2"] * kappa2 == pytest.approx(0.64)
    assert last["dissimilarity"] == pytest.approx(4)


@pytest.mark.parametrize(
    ("algorithm", "chi2"),
    [(ud.FedAvg(), 4 / 21), (ud.FedNova(), 0), (ud.FedNova(w="pa"), 4 / 21), (ud.FedAvg_M(), 0)],
    ids=repr,
)
def test_normalised_methods_weigh_clients_as_they_should(algorithm: Any, chi2: float) -> None:
    problem = ud.Quadratic(torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [-2.0]], dtype=torch.float64))
    (r,) = ud.rounds(algorithm, problem, rounds=1, local=ud.Local(steps=[3, 7], lr=0.01), metrics=("chi2", "tau_eff"))
    assert r.metrics == pytest.approx({"chi2": chi2, "tau_eff": 5.0})


@pytest.mark.parametrize(
    ("algorithm", "solver", "constants"),
    [
        (ud.FedAvg(), {"momentum": 0.5}, {"rho": 0.5}),
        (ud.FedProx(mu=20.0), {}, {"alpha": 0.2}),
        (ud.FedProx(mu=20.0), {"lr": 0.0}, {}),
        (ud.FedAsync(rho=20.0), {}, {"alpha": 0.2}),
        (ud.FedNova(mu=20.0, rho=0.5, w="pa"), {}, {"alpha": 0.2, "rho": 0.5}),
        (ud.FedNova(rho=0.5), {"momentum": 0.9}, {"rho": 0.5, "normalised": True}),
    ],
    ids=lambda given: str(given),
)
def test_momentum_and_proximal_terms_count_as_in_fednova(
    algorithm: Any, solver: dict[str, float], constants: dict[str, Any]
) -> None:
    """(34), (43), (127), (128): w_i follows |a_i|_1, not the number of steps."""
    problem = ud.Quadratic(torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [-2.0]], dtype=torch.float64))
    local = ud.Local(**{"steps": [3, 7], "lr": 0.01, **solver})
    (r,) = ud.rounds(algorithm, problem, rounds=1, local=local, metrics=("chi2", "tau_eff"))
    c = ud.theory.nova_constants([3, 7], **constants)
    assert r.metrics == pytest.approx(
        {"chi2": c.chi2, "tau_eff": c.tau_eff}, rel=1e-6 if 0.0 in solver.values() else 1e-12
    )


def test_nesterovs_steps_count_by_what_they_are() -> None:
    """u <- rho u + g, y <- y - lr (g + rho u): by hand with g = 1."""
    problem = ud.Quadratic(torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [-2.0]], dtype=torch.float64))
    local = ud.Local(steps=[1, 3], lr=0.01, optimiser="nesterov", momentum=0.5)
    (r,) = ud.rounds(ud.FedAvg(), problem, rounds=1, local=local, metrics=("chi2", "tau_eff"))
    a = np.array([1.5, 1.5 + 1.75 + 1.875])
    w = a / a.sum()
    assert r.metrics == pytest.approx({"tau_eff": a.mean(), "chi2": float(((0.5 - w) ** 2 / w).sum())})


def test_old_pseudo_gradients_are_worth_reusing() -> None:
    """Zaccone et al., Fig. 1: with one class a client, the mean over more rounds is nearer to that of all clients."""
    data = ud.load("digits")
    torch.manual_seed(0)
    problem = ud.federate(
        data, model=ud.models.mlp(64, 32, 10), loss=torch.nn.functional.cross_entropy, clients=ud.Dirichlet(50, alpha=0)
    )
    taus = (1, 5, 10, 20)
    found = ud.run(
        ud.FedAvg(), problem, rounds=60, participation=ud.Uniform(5), local=ud.Local(steps=5, batch=10, lr=0.05),
        metrics=[f"tau_error:{tau}" for tau in taus], evaluate_every=5,
    )  # fmt: skip
    errors = [found.final(f"tau_error:{tau}", last=8) for tau in taus]
    assert errors[0] > 1.3 * errors[1] and errors[1] > 1.05 * errors[2]
    assert min(errors) < 0.6 * errors[0]


def test_weight_decay_is_part_of_the_objective() -> None:
    problem = quadratic(P)
    local = ud.Local(steps=1, lr=0.1, weight_decay=0.5)
    found = list(ud.rounds(ud.Scaffold(), problem, rounds=3, local=local, metrics="control_error"))
    assert [r.metrics["control_error"] for r in found] == [
        pytest.approx(0, abs=1e-20)
    ] * 3  # c_i is what a step has seen


def test_reparametrised_momentum_has_the_same_error() -> None:
    problem, error = quadratic(P), []
    for algorithm, lr in ((ud.FedAvg_M(beta=0.2), 0.1), (ud.FedAvg_M(beta=0.2, reparametrised=True), 0.02)):
        found = ud.run(algorithm, problem, rounds=4, local=ud.Local(steps=3, lr=lr), metrics="momentum_error")
        error.append([r.metrics["momentum_error"] for r in found.history])
    assert error[0] == pytest.approx(error[1], rel=1e-12)


# what is refused


class NoFullGradient:
    N, weights = 2, [0.5, 0.5]
    x0 = torch.zeros(1)

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1

    def draw(self, *given: Any) -> None: ...
    def grad(self, y: torch.Tensor, *given: Any) -> torch.Tensor:
        return y

    def evaluate(self, x: torch.Tensor) -> dict[str, float]:
        return {}


REFUSED: list[tuple[str, Any, Any, str]] = [
    ("momentum_error", ud.FedAvg(), None, "the server of fedavg keeps no direction"),
    ("momentum_error", ud.FedGM(), None, "the server of fedgm keeps no direction"),
    ("control_error", ud.FedAvg_M(), None, "clients of fedavg-m keep no control variates"),
    ("drift", ud.MBStorm(), None, "mb-storm has no local models"),
    ("chi2", ud.MBStorm(), None, "mb-storm has no local models"),
    ("dissimilarity", ud.FedAvg(), NoFullGradient(), r"NoFullGradient has no full_grad\(y, clients\)"),
    ("gradient", ud.FedAvg(), NoFullGradient(), "NoFullGradient has no full_grad"),
    ("tau_error", ud.FedAvg(), None, "fedavg has no tau: name one, as in 'tau_error:10'"),
    ("tau_error:6", ud.FedAvg(), None, "tau = 6 is more than the run has rounds, 5"),
    ("tau_error", ud.GHBM(tau=9), None, "tau = 9 is more than the run has rounds, 5"),
    ("tau_error:zero", ud.FedAvg(), None, "tau is a number of rounds, at least 1, as in 'tau_error:10'"),
    ("drift:3", ud.FedAvg(), None, "unknown metric 'drift:3'"),
]


@pytest.mark.parametrize(
    ("name", "algorithm", "problem", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_what_a_run_cannot_give_is_refused_by_name(name: str, algorithm: Any, problem: Any, message: str) -> None:
    problem = quadratic(P) if problem is None else problem
    with pytest.raises(ud.InvalidInput, match=message):
        ud.rounds(algorithm, problem, rounds=5, local=ud.Local(steps=2, lr=0.1), metrics=("test", name))


def test_a_nonlinear_optimiser_has_no_number_of_steps() -> None:
    init, update = lambda y: (), lambda d, state, y: (d.sign(), state)
    with pytest.raises(ud.InvalidInput, match="'chi2' cannot be recorded: it counts the steps of a linear"):
        ud.rounds(ud.FedAvg(), quadratic(P), rounds=5, local=ud.Local(optimiser=(init, update)), metrics="chi2")


def test_ghbm_tells_its_own_tau() -> None:
    found = runs("ghbm", "batched", 3, ("tau_error", "tau_error:2"))
    assert [r.metrics.get("tau_error") for r in found] == [r.metrics.get("tau_error:2") for r in found]
    assert found[-1].metrics["tau_error"] > 0
