"""Python as the command line: comparisons, runs loaded from disk, plots, frames and reports of any of them."""

import inspect
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot

import undrift as ud
from tests.support.everywhere import federation
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem
from undrift.cli.reports import report_on
from undrift.experiments.report.curves import mean_curve

LOCAL = ud.Local(steps=3, batch=4, lr=0.1)
SETTINGS: dict[str, Any] = {"rounds": 4, "participation": ud.Uniform(3), "local": LOCAL}
BOTH: dict[str, Any] = {"algorithms": {"fedavg": {}, "scaffold": {}}, "seeds": 2}
EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "clients": {"partition": "iid", "number": 6},
    "participation": {"per_round": 3},
    "local": {"steps": 2, "batch": 8, "lr": 0.1},
    "model": {"name": "logistic"},
    "engine": "batched",
}


@pytest.fixture(autouse=True)
def no_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def compared() -> ud.Comparison:
    return ud.compare(["fedavg", ud.Scaffold()], federation(), seeds=2, target=1.0, metric="loss", last=2, **SETTINGS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "both"
    experiment = ud.Experiment(**BOTH, **EXPERIMENT)
    experiment.run(path, progress=False)
    return path


def test_a_comparison_is_its_runs(compared: ud.Comparison) -> None:
    assert compared.labels == ["fedavg", "scaffold"] and len(compared) == len(list(compared)) == 4
    alone = ud.run(ud.Scaffold(), federation(), seed=1, **SETTINGS)
    assert torch.equal(compared["scaffold"][1].x, alone.x)
    finals = [run.final("loss", last=2) for run in compared["scaffold"]]
    row = compared.summary.row("scaffold")
    assert row.mean == pytest.approx(sum(finals) / 2) and row.std == pytest.approx(abs(finals[0] - finals[1]) / 2**0.5)
    with pytest.raises(ud.InvalidInput, match="did you mean 'scaffold'"):
        compared["scafold"]


def test_it_is_shown_as_a_table(compared: ud.Comparison) -> None:
    for text in (repr(compared), compared._repr_html_()):
        assert "fedavg" in text and "scaffold" in text and "±" in text and "target" in text
    assert compared._repr_html_().count("<tr>") == 3


def test_a_notebook_shows_one_table(compared: ud.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles of rich draw into a notebook, whatever file they are given, unless they are told not to."""
    elsewhere = repr(compared)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert repr(compared) == elsewhere


def test_frames_have_every_round(compared: ud.Comparison) -> None:
    frame = compared.frame()
    assert len(frame) == 2 * 2 * 4 and {"method", "seed", "round", "loss", "cumulative_bytes"} <= {*frame.columns}
    one = frame[(frame.method == "scaffold") & (frame.seed == 1)]
    assert one.cumulative_bytes.iloc[-1] == compared["scaffold"][1].bytes
    assert one.loss.tolist() == [r.metrics["loss"] for r in compared["scaffold"][1].history]


def test_without_pandas_frame_says_what_to_do(compared: ud.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        compared["fedavg"][0].frame()


def test_plots_are_axes_with_a_curve_a_method(compared: ud.Comparison) -> None:
    ax = compared.plot()
    assert [line.get_label() for line in ax.get_lines()][:2] == ["fedavg", "scaffold"]
    mine = pyplot.subplots()[1]
    assert compared["fedavg"][0].plot("loss", against="bytes", ax=mine) is mine
    values: Any = mine.get_lines()[0].get_ydata()
    assert values.tolist() == pytest.approx([r.metrics["loss"] for r in compared["fedavg"][0].history])
    with pytest.raises(ud.InvalidInput, match="unknown axis"):
        compared.plot(against="round")
    with pytest.raises(ud.InvalidInput, match="not recorded virtual"):
        compared.plot(against="virtual")


def test_the_best_so_far_can_be_drawn_and_is_each_runs_own() -> None:
    """By hand: two runs with rounds 1, 3, 4 evaluated; what was not evaluated does not count."""
    nan, where = np.nan, np.array([True, False, True, True])
    runs = [np.array(values) for values in ([0.2, 9.0, 0.6, 0.4], [0.5, 9.0, nan, 0.3])]
    record = lambda values, metric: SimpleNamespace(
        metrics={metric: values}, evaluated=where, bytes_down=np.ones(4), bytes_up=np.ones(4), seconds=np.ones(4),
        virtual=np.full(4, nan),
    )  # fmt: skip
    for metric, best in (("accuracy", [0.35, 0.55, 0.55]), ("loss", [0.35, 0.35, 0.25])):
        method: Any = SimpleNamespace(runs=[record(values, metric) for values in runs], common=4)
        curve = mean_curve(method, metric, best_so_far=True)
        assert curve.round.tolist() == [1, 3, 4] and curve.mean.tolist() == pytest.approx(best)
    assert np.isnan(mean_curve(method, "loss").mean[1])


def test_plots_of_the_best_so_far(compared: ud.Comparison) -> None:
    ax = compared["fedavg"][0].plot("loss", best_so_far=True)
    losses = [r.metrics["loss"] for r in compared["fedavg"][0].history]
    values: Any = ax.get_lines()[0].get_ydata()
    assert values.tolist() == pytest.approx(np.minimum.accumulate(losses).tolist())
    assert ax.get_ylabel().endswith("best so far")


def test_reports_are_those_of_the_command_line(compared: ud.Comparison, tmp_path: Path) -> None:
    page = compared.report(tmp_path / "all")
    assert {p.name for p in page.parent.iterdir()} == {"report.html", "curves.png", "summary.csv", "rounds.csv"}
    text = page.read_text()
    assert "run from Python" in text and "experiment.toml" not in text and "Scaffold(eta_g" in text
    assert "fedavg" in compared["fedavg"][0].report(tmp_path / "one").read_text().lower()


def test_methods_by_label_have_their_own_training() -> None:
    slow, fast = ud.Local(steps=2, lr=0.01), ud.Local(steps=2, lr=0.1)
    methods = {"slow": (ud.FedAvg(), slow), "fast": ("fedavg", fast), "usual": ud.FedAvg()}
    found = ud.compare(methods, federation(), rounds=2, local=fast)
    assert torch.equal(found["fast"][0].x, found["usual"][0].x)
    assert not torch.equal(found["slow"][0].x, found["usual"][0].x)


def test_a_problem_may_follow_the_seed() -> None:
    asked: list[int] = []

    def problem(seed: int) -> Any:
        asked.append(seed)
        return ud.Quadratic(torch.eye(2).repeat(3, 1, 1), torch.arange(6.0).view(3, 2) + seed)

    found = ud.compare(["fedavg"], problem, rounds=2, seeds=[3, 5])
    assert asked == [3, 5] and not torch.equal(found["fedavg"][0].x, found["fedavg"][1].x)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"methods": "fedavg"}, "methods are a list"),
        ({"methods": []}, "methods are a list"),
        ({"methods": ["fedavgg"]}, "did you mean 'fedavg'"),
        ({"methods": ["fedavg", ud.FedAvg()]}, "the same method twice"),
        ({"baseline": "scafold"}, "did you mean 'scaffold'"),
        ({"seeds": 0}, "seeds are a number"),
        ({"seeds": [1, 1]}, "seeds are a number"),
        ({"seeds": "3"}, "seeds are a number"),
        ({"seeds": 1.5}, "seeds are a number"),
        ({"methods": {"a": ("fedavg",)}}, "a is a method, or a pair"),
        ({"target": "x"}, "target must be a number"),
        ({"metric": "acc"}, "unknown metric 'acc'"),
        ({"last": 0}, "last must lie in"),
        ({"seed": 3}, "seeds=3"),
        ({"batch": 3}, "no setting 'batch'"),
        ({"particpation": None}, "did you mean 'participation'"),
    ],
)
def test_wrong_input_is_named(wrong: dict[str, Any], said: str) -> None:
    given = {"methods": ["fedavg", "scaffold"], "problem": federation(), **SETTINGS, "rounds": 1} | wrong
    with pytest.raises((ud.InvalidInput, TypeError), match=said):
        ud.compare(**given)


def test_what_cannot_be_shown_is_not_lost() -> None:
    found = ud.compare(["fedavg"], WorldProblem(make_world()), rounds=2)
    assert len(found["fedavg"][0].history) == 2
    assert "no table: no metric was recorded" in repr(found) and "no table" in found._repr_html_()
    with pytest.raises(ud.InvalidInput, match="no metric was recorded"):
        found["fedavg"][0].plot()
    late = ud.compare(["fedavg"], federation(), rounds=1, metric="tau_error:9")  # which has no value after one round
    assert "1 run; no table: unknown metric 'tau_error:9'" in repr(late)


# runs on disk


def test_an_experiment_runs_from_python_and_is_read_again(folder: Path) -> None:
    both = ud.load_run(folder)
    assert isinstance(both, ud.Comparison) and both.labels == ["fedavg", "scaffold"] and len(both) == 4
    assert both.experiment is not None and both.experiment.rounds == 3
    run = both["scaffold"][1]
    assert isinstance(run, ud.LoadedRun)
    assert "scaffold, seed 1" in repr(run) and "engine clients in chunks of 3, batched" in repr(run)
    again = ud.run(ud.Scaffold(), run.problem, rounds=3, participation=ud.Uniform(3), seed=1, engine="batched",
                   local=ud.Local(steps=2, batch=8, lr=0.1))  # fmt: skip
    assert torch.equal(run.x, again.x)
    assert run.frame().drop(columns="seconds").equals(again.frame().drop(columns="seconds"))
    assert run.best is not None and again.best is not None and run.best.value == again.best.value
    weights = [p.detach().flatten() for p in run.model().parameters()]
    assert torch.equal(torch.cat(weights), run.x)


def test_a_loaded_run_can_be_continued(folder: Path) -> None:
    run: Any = ud.load_run(folder / "fedavg" / "seed-0")
    settings: Any = {"participation": ud.Uniform(3), "engine": "batched", "local": ud.Local(steps=2, batch=8, lr=0.1)}
    more = ud.run(ud.FedAvg(), run.problem, rounds=5, start=run, **settings)
    whole = ud.run(ud.FedAvg(), run.problem, rounds=5, **settings)
    assert [r.round for r in more.history] == [4, 5] and torch.equal(more.x, whole.x)


def test_what_was_run_already_is_read_not_run(folder: Path, tmp_path: Path) -> None:
    experiment = ud.Experiment(**BOTH, **EXPERIMENT)
    times = (folder / "fedavg" / "seed-0" / "times.jsonl").read_text()
    assert len(experiment.run(folder, progress=False)) == 4
    assert (folder / "fedavg" / "seed-0" / "times.jsonl").read_text() == times
    other = experiment.model_copy(update={"rounds": 4})
    with pytest.raises(ud.InvalidInput, match="exists and is not empty"):
        other.run(folder, progress=False)


def test_the_command_line_and_python_write_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    page = ud.load_run(folder).report(tmp_path / "python")
    report_on([folder], tmp_path / "cli", quiet=True)
    for name in ("summary.csv", "rounds.csv"):
        assert (page.parent / name).read_text() == (tmp_path / "cli" / name).read_text()


def test_a_single_run_in_virtual_time_is_loaded_with_its_clock(tmp_path: Path) -> None:
    words = EXPERIMENT | {
        "algorithm": "fedavg",
        "engine": "auto",
        "population": {"pace": {"median": 1.0, "sigma": 0.5}},
    }
    run = ud.Experiment(**words).run(tmp_path / "run", progress=False)
    assert run.history[-1].time > 0 and run.history[-1].timing.used > 0
    assert run.plot(against="virtual").get_xlabel().endswith("virtual")


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput, match="no run in"):
        ud.load_run(tmp_path)
    with pytest.raises(ud.InvalidInput, match="no directory"):
        ud.load_run(tmp_path / "nothing")


# help


@pytest.mark.parametrize(
    "function", [ud.run, ud.rounds, ud.compare, ud.check, ud.federate, ud.load_run, ud.Experiment.run, ud.Local]
)
def test_every_argument_is_explained(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    first = {word.strip(" ,") for line in text.splitlines() for word in line.split("  ")[0].split(",")}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        assert parameter.kind is not parameter.VAR_KEYWORD
        assert name in first, name


def test_a_run_shows_how_it_went() -> None:
    result = ud.run(ud.FedAvg(), federation(), **SETTINGS)
    said = repr(result)
    assert "FedAvg(server_lr=1.0), seed 0; rounds 4; loss" in said and "engine clients in chunks of 3, batched" in said
    assert f"{result.history[-1].metrics['loss']:.4g}" in result._repr_html_()
    assert math.isclose(result.bytes, sum(r.bytes_down + r.bytes_up for r in result.history))
