"""Metrics of one's own: the same numbers in every engine, a trajectory that does not know of them, and plain errors."""

import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.everywhere import (
    N,
    every_engine,
    federation,
    models,
    other_engines,
    played,
)
from undrift.metrics.registry import METRICS

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Metrics that a test registers are forgotten after it."""
    known = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(known)


def step_length(probe: ud.Probe) -> float:
    return float((probe.x_after - probe.x_before).norm())


def control_variates(probe: ud.Probe) -> dict[str, Any]:
    c = probe.clients.gather(range(N)).c
    return {"c_norm": c.norm(), "c_gap": (c.mean(0) - probe.server.c).norm()}


@other_engines
def test_every_engine_records_the_same(engine: str, refusals: Any) -> None:
    ud.metric("cohort")(lambda probe: probe.cohort.weights.sum() * probe.cohort.S)  # pyright: ignore
    chosen = ("test", "gradient", "cohort", step_length, control_variates)
    expected = played(ud.Scaffold(), "sequential", metrics=chosen)
    found = played(ud.Scaffold(), engine, metrics=chosen)
    for mine, reference in zip(found, expected, strict=True):
        assert mine.metrics == pytest.approx(reference.metrics, rel=1e-9, abs=1e-12)
    names = {"loss", "accuracy", "grad_norm", "cohort", "step_length", "c_norm", "c_gap"}
    assert all(set(r.metrics) == names for r in found)
    assert all(r.metrics["cohort"] == pytest.approx(3) for r in found)
    assert refusals() == []


@every_engine
@pytest.mark.parametrize("algorithm", [ud.FedAvg(), ud.Scaffold()], ids=repr)
def test_the_trajectory_does_not_know_of_metrics(engine: str, algorithm: Any) -> None:
    def everything(probe: ud.Probe) -> float:
        torch.rand(3)  # randomness of one's own is nobody else's
        probe.problem.full_grad(probe.x_after, [1])
        return float(len(probe.clients))

    plain = played(algorithm, engine, metrics=())
    looked_at = played(algorithm, engine, metrics=("test", "clients", step_length, everything))
    assert all(r.metrics == {} for r in plain)
    assert (models(looked_at) == models(plain)).all()
    for mine, other in zip(looked_at, plain, strict=True):
        assert (mine.bytes_up, mine.bytes_down) == (other.bytes_up, other.bytes_down)


@every_engine
def test_what_a_probe_shows(engine: str) -> None:
    problem = federation()
    seen: list[dict[str, Any]] = []

    def look(probe: ud.Probe) -> float:
        assert probe.cohort is not None
        c = probe.clients.gather(range(N)).c
        seen.append(
            {"round": probe.round, "before": probe.x_before.clone(), "after": probe.x_after.clone(),
             "x": probe.server.x.clone(), "c": probe.server.c.clone(), "states": c,
             "cohort": probe.cohort, "problem": probe.problem}
        )  # fmt: skip
        return 0.0

    rounds = played(ud.Scaffold(), engine, problem, metrics=look)
    assert [each["round"] for each in seen] == [1, 2, 3, 4]
    before = problem.x0
    visited: set[int] = set()
    for r, each in zip(rounds, seen, strict=True):
        assert torch.equal(each["before"], before) and torch.equal(each["after"], r.x)
        assert torch.equal(each["x"], r.x) and each["problem"] is problem
        cohort = each["cohort"]
        assert (cohort.round, cohort.S, cohort.N) == (r.round, len(r.clients), N)
        assert cohort.lr == 0.1 and cohort.share == pytest.approx(3 / N)
        # SCAFFOLD keeps c = mean c_i, which holds only for the states after this very round
        assert torch.allclose(each["states"].mean(0), each["c"], rtol=0, atol=1e-12)
        visited |= {*r.clients}
        nonzero = {i for i in range(N) if each["states"][i].any()}
        assert nonzero == visited
        before = r.x


def test_a_probe_in_virtual_time_shows_staleness() -> None:
    found: list[float] = []

    def staleness(probe: ud.Probe) -> float:
        assert probe.cohort is not None
        found.append(float(probe.cohort.staleness.max()))
        return found[-1]

    rounds = played(
        ud.FedBuff(), "events", rounds=8, metrics=staleness, server=ud.Buffer(2, concurrency=4),
        population=ud.Population(pace=ud.LogNormal(1.0, sigma=1.0)),
    )  # fmt: skip
    assert [r.metrics["staleness"] for r in rounds] == found
    told = [r.timing for r in rounds]
    assert found == [float(max(t.staleness)) for t in told if t is not None]
    assert max(found) > 0


def test_the_numbers_are_right() -> None:
    """A control variate's error and the objective's gradient, by hand."""
    random = np.random.default_rng(0)
    A = random.normal(size=(3, 4, 4))
    H, e = np.eye(4) + A @ A.transpose(0, 2, 1), random.normal(size=(3, 4))
    problem = ud.Quadratic(torch.tensor(H), torch.tensor(e))

    def control_error(probe: ud.Probe) -> float:
        c = probe.clients.gather(range(3)).c
        g = probe.problem.full_grad(probe.x_before.expand(3, -1), range(3))
        return float((c - g).square().sum(1).mean())

    rounds = played(
        ud.Scaffold(), "sequential", problem, metrics=control_error, rounds=3,
        participation=ud.Everyone(), local=ud.Local(steps=1, lr=0.05),
    )  # fmt: skip
    # with one exact step, c_i is the client's gradient at x
    assert [r.metrics["control_error"] for r in rounds] == [pytest.approx(0, abs=1e-20)] * 3


def test_evaluated_rounds_are_every_so_many_and_the_last() -> None:
    rounds = played(ud.FedAvg(), "batched", rounds=5, evaluate_every=2, metrics=step_length)
    assert [r.round for r in rounds if r.metrics] == [2, 4, 5]
    assert all(set(r.metrics) <= {"step_length"} for r in rounds)


def test_resumed_runs_record_the_same() -> None:
    whole = played(ud.Scaffold(), "batched", metrics=(step_length, control_variates))
    half = ud.run(
        ud.Scaffold(), federation(), rounds=2, participation=ud.Uniform(3), seed=3,
        local=ud.Local(steps=3, batch=4, lr=0.1), engine="batched",
    )  # fmt: skip
    rest = played(ud.Scaffold(), "batched", start=half, metrics=(step_length, control_variates))
    assert [r.metrics for r in rest] == [r.metrics for r in whole[2:]]


def test_a_registered_metric_is_known_by_name_and_may_be_registered_again() -> None:
    for _ in range(2):  # as a notebook's cell that is run twice

        @ud.metric("length")
        def length(probe: ud.Probe) -> float:
            return step_length(probe)

    rounds = played(ud.FedAvg(), "batched", metrics="length")
    expected = played(ud.FedAvg(), "batched", metrics=step_length)
    assert [r.metrics["length"] for r in rounds] == [r.metrics["step_length"] for r in expected]
    with pytest.raises(ud.InvalidInput, match="there is a metric 'length' already: choose another"):
        ud.metric("length")(step_length)


# what may be returned


class Callable:
    def __call__(self, probe: ud.Probe) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (2, 2.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.array([1.5]), 1.5),
        (torch.tensor(2.5), 2.5),
        (torch.ones(1, 1), 1.0),
        (math.inf, math.inf),
        ({"value": torch.tensor(3.0)}, 3.0),
    ],
    ids=str,
)
def test_numbers_of_any_kind_are_recorded(value: Any, recorded: float) -> None:
    def metric(probe: ud.Probe) -> Any:
        return value

    metric.__name__ = "value"
    (r,) = played(ud.FedAvg(), "batched", rounds=1, metrics=metric)
    assert r.metrics == {"value": recorded} and type(r.metrics["value"]) is float


def test_what_is_not_finite_is_recorded_and_nothing_stops() -> None:
    rounds = played(ud.FedAvg(), "batched", metrics=lambda probe: math.nan)
    assert len(rounds) == 4 and all(math.isnan(r.metrics["metric"]) for r in rounds)
    assert (models(rounds) == models(played(ud.FedAvg(), "batched", metrics=()))).all()


def test_an_object_that_can_be_called_is_a_metric() -> None:
    (r,) = played(ud.FedAvg(), "batched", rounds=1, metrics=Callable())
    assert r.metrics == {"Callable": 1.0}


# what is wrong


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("1.5", "str"),
        (None, "NoneType"),
        (torch.ones(3), r"Tensor of shape \[3\]"),
        (np.ones((2, 2)), r"ndarray of shape \[2, 2\]"),
        (torch.ones(0), r"Tensor of shape \[0\]"),
        ([1.0], "list"),
        (1j, "complex"),
        ({"a": "1"}, "str"),
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["sequential", "events"])
def test_what_a_metric_must_not_return(value: Any, got: str, engine: str) -> None:
    def wrong(probe: ud.Probe) -> Any:
        return value

    message = (
        f"^round 1: metric 'wrong' failed: TypeError: a metric returns a number or a dict of numbers, got {got}; fix"
    )
    with pytest.raises(ud.InvalidInput, match=message):
        played(ud.FedAvg(), engine, metrics=wrong)


def failing(since: int) -> tuple[Any, list[int]]:
    asked: list[int] = []

    def brittle(probe: ud.Probe) -> float:
        asked.append(probe.round)
        if probe.round >= since:
            raise ZeroDivisionError("nothing to divide by")
        return 1.0

    return brittle, asked


@every_engine
def test_a_metric_that_fails_at_first_ends_the_run_with_its_name(engine: str) -> None:
    brittle, asked = failing(since=1)
    message = r"^round 1: metric 'brittle' failed: ZeroDivisionError: nothing to divide by; fix it or leave it out of metrics$"
    with pytest.raises(ud.InvalidInput, match=message):
        played(ud.FedAvg(), engine, metrics=("test", brittle))
    assert asked == [1]


def test_the_first_evaluated_round_is_the_first() -> None:
    brittle, asked = failing(since=1)
    with pytest.raises(ud.InvalidInput, match="^round 3: metric 'brittle' failed"):
        played(ud.FedAvg(), "batched", evaluate_every=3, metrics=brittle)
    brittle, asked = failing(since=1)
    with pytest.raises(ud.InvalidInput, match="^round 4: metric 'brittle' failed"):
        played(ud.FedAvg(), "batched", evaluate_every=9, metrics=brittle)
    assert asked == [4]


@every_engine
def test_a_metric_that_fails_later_is_named_once_and_left_out(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    brittle, asked = failing(since=2)
    rounds = played(ud.FedAvg(), engine, metrics=("test", brittle, step_length))
    assert asked == [1, 2]
    assert [set(r.metrics) for r in rounds] == [
        {"loss", "accuracy", "brittle", "step_length"}, *[{"loss", "accuracy", "step_length"}] * 3
    ]  # fmt: skip
    (line,) = [r.getMessage() for r in caplog.records if "brittle" in r.getMessage()]
    assert line == (
        "round 2: metric 'brittle' failed: ZeroDivisionError: nothing to divide by; it is left out from here on"
    )
    assert (models(rounds) == models(played(ud.FedAvg(), engine, metrics=()))).all()


def test_a_run_that_went_on_can_also_be_resumed(caplog: pytest.LogCaptureFixture) -> None:
    brittle, asked = failing(since=3)
    settings: dict[str, Any] = {"rounds": 2, "participation": ud.Uniform(3), "engine": "batched",
                                "local": ud.Local(steps=3, batch=4, lr=0.1), "seed": 3}  # fmt: skip
    half = ud.run(ud.FedAvg(), federation(), metrics=brittle, **settings)
    rest = played(ud.FedAvg(), "batched", start=half, metrics=brittle)
    assert asked == [1, 2, 3] and [r.metrics for r in rest] == [{}, {}]
    assert caplog.text.count("metric 'brittle' failed") == 1


def own_loss(probe: ud.Probe) -> dict[str, float]:
    return {"loss": 0.0}


def test_names_that_are_taken_are_refused() -> None:
    message = "metric 'own_loss' failed: ValueError: 'loss' is recorded already: choose another name"
    with pytest.raises(ud.InvalidInput, match=message):
        played(ud.FedAvg(), "batched", metrics=("test", own_loss))
    (r,) = played(ud.FedAvg(), "batched", rounds=1, metrics=own_loss)
    assert r.metrics == {"loss": 0.0}  # nobody else's
    with pytest.raises(ud.InvalidInput, match="two metrics are called 'metric': .* different ones"):
        played(ud.FedAvg(), "batched", metrics=(lambda probe: 1.0, lambda probe: 2.0))
    with pytest.raises(ud.InvalidInput, match="'round' is recorded already"):
        played(ud.FedAvg(), "batched", metrics=lambda probe: {"round": 3})


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("tset", "unknown metric 'tset'; did you mean 'test'"),
        ("velocity", "unknown metric 'velocity'. Known: .*clients, .*gradient, .*test, .*train"),
        (("test", "step"), "unknown metric 'step'"),
        (5, "metrics are names or functions of a ud.Probe, one or a list of them, got 5"),
        ((5,), "metrics are names or functions of a ud.Probe, got 5"),
        ((Callable,), "metrics are names or functions of a ud.Probe, got <class"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_metric_is_refused_before_any_work(metrics: Any, message: str) -> None:
    problem = federation()
    for start in (ud.run, ud.rounds):
        with pytest.raises(ud.InvalidInput, match=message):
            start(ud.FedAvg(), problem, rounds=1, metrics=metrics)


def test_a_problem_that_names_no_metrics_has_test_alone() -> None:
    problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    settings: dict[str, Any] = {"rounds": 1, "participation": ud.Everyone()}
    (r,) = played(ud.FedAvg(), "batched", problem, metrics="test", **settings)
    assert set(r.metrics) == {"loss", "gap", "grad_norm", "distance"}
    with pytest.raises(ud.InvalidInput, match="unknown metric 'speed'. Known: .*test"):
        played(ud.FedAvg(), "batched", problem, metrics="speed", **settings)


# in experiments

OWN = """
import undrift as ud

@ud.metric("step-length")
def step_length(probe):
    return (probe.x_after - probe.x_before).norm()
"""

TOML = """
rounds = 3
use = ["own.py"]
algorithm = "scaffold"
participation = {per_round = 2}
clients = {partition = "iid", number = 4}
local = {steps = 2, batch = 8}
engine = "batched"
[evaluation]
metrics = ["test", "step-length"]
"""


def test_a_metric_by_name_in_an_experiment(undrift: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "e.toml").write_text(TOML)
    said = undrift("run", "e.toml", "--out", "out", "-q")
    assert said.code == 0, said.err
    (found,) = [p.parent for p in (tmp_path / "out").rglob("metrics.jsonl")]
    lines = [json.loads(line) for line in (found / "metrics.jsonl").read_text().splitlines()]
    assert [line["step-length"] > 0 for line in lines] == [True] * 3
    assert all(line["loss"] > 0 for line in lines)
    (tmp_path / "wrong.toml").write_text(TOML.replace('"step-length"]', '"step-lenght"]'))
    said = undrift("run", "wrong.toml")
    assert said.code == 2 and "did you mean 'step-length'?" in " ".join(said.err.split())


def test_the_old_name_of_metrics_is_understood_with_a_warning() -> None:
    words = tomllib.loads('algorithm = "fedavg"\n[evaluation]\nfigures = ["test", "train"]')
    with pytest.warns(DeprecationWarning, match="figures is now called metrics"):
        experiment = ud.Experiment(**words)
    assert experiment.evaluation.metrics == ["test", "train"]
    data = torch.zeros(4, 2), torch.arange(4) % 2
    given: dict[str, Any] = {
        "model": nn.Linear(2, 2),
        "loss": F.cross_entropy,
        "clients": ud.IID(2),
    }
    with pytest.warns(DeprecationWarning, match="figures is now called metrics"):
        problem = ud.federate(data, figures=("test", "gradient"), **given)
    assert set(problem.evaluate(problem.x0)) == {"loss", "accuracy", "auroc", "grad_norm"}
    with pytest.raises(ValueError, match="figures"):  # which of them?
        ud.Experiment(**tomllib.loads('algorithm = "fedavg"\n[evaluation]\nfigures = ["test"]\nmetrics = ["train"]'))


def writes_into_everything(probe: ud.Probe) -> float:
    assert probe.cohort is not None
    for shown in (probe.x_after, probe.x_before, probe.server.x, probe.server.c, probe.cohort.weights):
        shown.zero_()
    probe.clients.gather(range(N)).c.zero_()
    return float(probe.x_after.norm())


@every_engine
def test_a_metric_that_writes_changes_no_trajectory(engine: str) -> None:
    plain = played(ud.Scaffold(), engine, metrics=("test", step_length))
    written = played(ud.Scaffold(), engine, metrics=("test", writes_into_everything, step_length))
    assert (models(written) == models(plain)).all()
    for mine, other in zip(written, plain, strict=True):
        assert mine.metrics == {**other.metrics, "writes_into_everything": 0.0}


@pytest.mark.parametrize("when", [1, 3])
@pytest.mark.parametrize("part", ["x0", "X", "Y"])
def test_a_metric_that_writes_into_the_problem_ends_the_run(part: str, when: int) -> None:
    def spoils(probe: ud.Probe) -> float:
        if probe.round == when:
            getattr(probe.problem, part).add_(1)
        return 0.0

    with pytest.raises(
        ud.InvalidInput, match=f"round {when}: metric 'spoils' failed: .* it writes into the problem's tensors"
    ):
        played(ud.FedAvg(), "batched", metrics=("test", spoils))
