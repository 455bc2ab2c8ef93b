"""Many runs as one computation: each equals the run alone, and whoever cannot be computed so runs alone."""

import csv
import logging
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from tests.support.method_table import FIRST, ROWS, Row, made
from tests.support.small_sweep import SPACE, experiment
from tests.support.toy_problem import PlainFedAvg
from undrift.algorithms.fedavg import Up
from undrift.compiler import inductor, step
from undrift.compiler.kernels import small_products
from undrift.compiler.kernels.products import summed_
from undrift.experiments.sweeps import sweeping
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.sweeping import run_sweep
from undrift.simulation.batched_runs import Trial, run_together


@cache
def federation(seed: int, weights: str = "uniform") -> Any:
    """Clients of unequal size; the partition and the first model are the seed's."""
    random = torch.Generator().manual_seed(3)
    X = torch.randn(60, 5, dtype=torch.float64, generator=random)
    Y = torch.randint(0, 3, (60,), generator=random)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    clients = ud.Dirichlet(6, alpha=1.0)
    kinds: dict[str, Any] = {"model": net, "loss": F.cross_entropy, "clients": clients}
    return ud.federate((X, Y), (X, Y), weights=weights, seed=seed, **kinds)


def other(algorithm: Any) -> Any:
    """The same method with every float a little different, where it allows that."""
    for f in fields(algorithm):
        value = getattr(algorithm, f.name)
        if isinstance(value, float) and value:
            try:
                algorithm = replace(algorithm, **{f.name: 0.9 * value})
            except ud.InvalidInput:
                pass
    return algorithm


def alone(trial: Trial, **common: Any) -> ud.Result:
    common = {"engine": "batched"} | common
    return ud.run(trial.algorithm, trial.problem, local=trial.local, seed=trial.seed, **common)


def check_equal(trials: list[Trial], *engines: str, **common: Any) -> None:
    """In every one of these engines, "batched" if none is named."""
    each_alone = [alone(trial, **common) for trial in trials]
    for engine in engines or ("batched",):
        check_same(run_together(trials, engine=engine, **common), each_alone)


def check_same(together: list[ud.Result], each_alone: list[ud.Result]) -> None:
    for ours, theirs in zip(together, each_alone, strict=True):
        assert ours.stopped == theirs.stopped and len(ours.history) == len(theirs.history)
        assert torch.allclose(ours.x, theirs.x, rtol=1e-9, atol=1e-9)
        assert ours.state.clients.seen() == theirs.state.clients.seen()
        for a, b in zip(ours.history, theirs.history, strict=True):
            assert (a.clients, a.bytes_down, a.bytes_up) == (b.clients, b.bytes_down, b.bytes_up)
            assert a.metrics == pytest.approx(b.metrics, rel=1e-9)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger="undrift")
    return lambda: [r.getMessage() for r in caplog.records if "one by one" in r.getMessage()]


# whose servers branch on a number, or make one of a vector: alone where their own floats differ
BY_THEMSELVES = ("multistage-fedgm", "fedasync")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_method_together_equals_alone(row: Row, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "compile_graph", lambda graph, *_: lambda args: graph(*args))  # as traced
    local = {"steps": [4, 2, 3, 1, 5, 3] if row.unequal else 3, "batch": 4} | row.local
    algorithm = made(row)
    trials = [
        Trial(a, federation(seed), ud.Local(lr=lr, **local), seed)
        for a, lr in ((algorithm, 0.05), (other(algorithm), 0.08))
        for seed in (0, 1)
    ]
    who = ud.Uniform(3) if row.partial else ud.Everyone()
    engines = ("batched", "compiled") if row in FIRST else ("batched",)  # tracing takes most of the time
    check_equal(trials, *engines, rounds=3, participation=who, evaluate_every=2)
    assert len(lines()) == len(engines) * (row.name in BY_THEMSELVES)


@settings(max_examples=8, deadline=None)
@given(
    lrs=st.lists(st.floats(0.001, 0.5), min_size=2, max_size=3),
    decay=st.sampled_from([0.0, 0.1]),
    momentum=st.sampled_from([0.0, 0.4]),
    batch=st.integers(1, 9),
    steps=st.sampled_from([3, (1, 4)]),
)
def test_solvers_may_differ(lrs: Any, decay: float, momentum: float, batch: int, steps: Any) -> None:
    trials = [
        Trial(
            ud.Scaffold(),
            federation(seed),
            ud.Local(
                steps,
                batch=batch,
                lr=lr,
                momentum=momentum * n,
                weight_decay=decay * n,
                clip=1.0 + n,
            ),
            seed,
        )
        for n, lr in enumerate(lrs)
        for seed in (0, 1)
    ]
    check_equal(trials, rounds=2, participation=ud.Uniform(3))


@pytest.mark.parametrize("engine", ["batched", "compiled"])
def test_what_servers_know_may_change_from_round_to_round(
    engine: str, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    """Step sizes that shrink, and cohorts with other shares of the weight; ScaffoldM uses both, and K."""
    monkeypatch.setattr(inductor, "compile_graph", lambda graph, *_: lambda args: graph(*args))  # as traced
    trials = [
        Trial(
            ud.ScaffoldM(beta=0.3),
            federation(seed, "samples"),
            ud.Local(steps=[4, 2, 3, 1, 5, 3], batch=4, lr=lr, decay=decay),
            seed,
        )
        for lr, decay in ((0.1, 0.5), ([0.2, 0.1, 0.3, 0.2], 1.0))
        for seed in (0, 1)
    ]
    check_equal(trials, engine, rounds=4, participation=ud.Uniform(3))
    assert lines() == []


@pytest.mark.parametrize("layers", ["small", "large"])
def test_traced_steps_are_the_same(layers: str, monkeypatch: pytest.MonkeyPatch, lines: Any) -> None:
    graphs: list[Any] = []
    run_as_traced = lambda graph, *_: graphs.append(graph.graph) or (lambda args: graph(*args))
    monkeypatch.setattr(inductor, "compile_graph", run_as_traced)
    if layers == "large":  # products are a library's, updates are folded into them
        monkeypatch.setattr(small_products, "SMALL", 0)
        monkeypatch.setattr(step, "LARGE", 0)
    trials = [
        Trial(ud.ScaffoldM(beta=beta), federation(seed), ud.Local(3, batch=4, lr=lr), seed)
        for beta, lr in ((0.3, 0.1), (0.5, 0.2))
        for seed in (0, 1)
    ]
    check_equal(trials, "compiled", rounds=3, participation=ud.Uniform(3))
    assert lines() == [] and 1 <= len(graphs) <= 2
    thin = {torch.ops.aten.baddbmm_.default: 1, summed_: 3}  # which argument is a thin matrix
    added = [node.args[thin[node.target]] for node in graphs[0].nodes if node.target in thin]
    assert bool(added) == (layers == "large")
    if added:  # for the samples of two seeds' three clients, each for two runs at once
        assert 2 * 3 in {node.meta["val"].shape[0] for node in added}


def test_a_run_that_diverges_leaves_the_others_alone() -> None:
    trials = [
        Trial(ud.Scaffold(), federation(seed), ud.Local(3, batch=4, lr=lr, weight_decay=0.5), seed)
        for lr in (0.1, 1e200)
        for seed in (0, 1)
    ]
    check_equal(trials, rounds=4, participation=ud.Uniform(3))
    ends = [r.stopped is None for r in run_together(trials, rounds=4, engine="batched")]
    assert ends == [True, True, False, False]


class Normalised(PlainFedAvg):
    """A server that looks at a whole vector."""

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        return type(server)(server.x - mean.delta / mean.delta.norm())


def test_a_server_that_mixes_rows_is_found_out(lines: Any) -> None:
    method: Any = Normalised()
    trials = [Trial(method, federation(0), ud.Local(2, lr=lr)) for lr in (0.1, 0.2)]
    check_equal(trials, rounds=3)
    assert len(lines()) == 1 and "does not treat the rows" in lines()[0]


@dataclass(frozen=True)
class Branching(PlainFedAvg):
    """A method with another rule where a number is zero."""

    mu: float = 0.0

    def local(self, down: Any, client: Any, work: Any) -> Any:
        factor = 1 if self.mu == 0 else 3 + self.mu
        y = work.loop(lambda y: y - work.lr * factor * work.grad(y), down.x)
        return Up(down.x - y), None


@pytest.mark.parametrize("mus", [(0.0, 1.0), (1.0, 0.0)])
def test_a_method_that_asks_whether_a_number_is_zero_runs_alone(mus: tuple[float, float], lines: Any) -> None:
    trials = [Trial(Branching(mu), federation(0), ud.Local(2, lr=0.1)) for mu in mus]
    check_equal(trials, rounds=3)
    assert len(lines()) == 1 and "asks whether a number is zero" in lines()[0]


def test_different_structures_are_different_sets() -> None:
    trials = [Trial(ud.GHBM(tau=tau), federation(0), ud.Local(2, lr=lr)) for tau in (1, 2) for lr in (0.1, 0.2)]
    check_equal(trials, rounds=4, participation=ud.Uniform(3))


def test_what_cannot_be_together_says_so(lines: Any) -> None:
    trials = [Trial(ud.FedAvg(), federation(0), ud.Local(2, lr=lr)) for lr in (0.1, 0.2)]
    check_equal(trials, "sequential", rounds=2)
    assert len(lines()) == 1 and "'sequential' computes one run at a time" in lines()[0]
    with pytest.raises(ud.InvalidInput, match="no trials"):
        run_together([], rounds=1)
    no_trial: Any = ud.FedAvg()
    with pytest.raises(ud.InvalidInput, match=r"ud.Trial\(method, problem, local, seed\), got FedAvg"):
        run_together([trials[0], no_trial], rounds=1)


def test_sweeps_together_write_what_they_write_alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    e, plan = experiment("fedavg", "scaffold-m", engine="batched"), Plan(SPACE, seeds=2)
    list(run_sweep(e, plan, tmp_path / "together"))
    monkeypatch.setattr(sweeping, "_one_computation", lambda *_: False)
    monkeypatch.setattr("undrift.simulation.batched_runs.runs.Batch", _refused)
    list(run_sweep(e, plan, tmp_path / "alone"))
    ours, theirs = (
        list(csv.DictReader((tmp_path / name / "trials.csv").read_text().splitlines()))
        for name in ("together", "alone")
    )
    assert len(ours) == len(theirs) == 9
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        assert {a[k] for k in ("method", "trial", "state")} == {b[k] for k in ("method", "trial", "state")}
        assert float(a["accuracy"]) == pytest.approx(float(b["accuracy"]), rel=1e-9)


def _refused(*_: Any) -> Any:
    from undrift.core.batched_scalar import NotBatchable

    raise NotBatchable("not now")
