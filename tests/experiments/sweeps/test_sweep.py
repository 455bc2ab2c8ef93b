"""Whole sweeps: trials in turn, best.toml, pruning, searching, resuming."""

import csv
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import undrift as ud
from tests.support.small_sweep import FEW, SPACE, experiment, problem_of
from undrift.cli.sweeps import run_and_report, run_best
from undrift.core.errors import InvalidInput
from undrift.data.registry import DATASETS, Data, dataset
from undrift.experiments.config import read
from undrift.experiments.config.federation import Federation
from undrift.experiments.runs.running import config_of
from undrift.experiments.sweeps import sweeping
from undrift.experiments.sweeps.chosen import (
    with_methods,
)
from undrift.experiments.sweeps.plan import Plan, plan_searches
from undrift.experiments.sweeps.space import Range, Space, SpaceRow, space_from_dict, space_to_dict
from undrift.experiments.sweeps.sweeping import best_experiment, open_sweep, plan_sweep, read_results, run_sweep
from undrift.experiments.sweeps.validation import with_held_out
from undrift.simulation.api import prepare


def test_every_method_has_its_trials_in_turn(swept_once):
    e, plan, directory, trials = swept_once
    assert [t.label for t in trials[:4]] == ["fedavg", "scaffold-m", "fedavg", "scaffold-m"]
    assert Counter(t.label for t in trials) == {"fedavg": 3, "scaffold-m": 6}
    assert all(len(t.outcome.qualities) == 2 for t in trials)
    rows = list(csv.DictReader((directory / "trials.csv").read_text().splitlines()))
    assert [r["method"] for r in rows] == ["fedavg"] * 3 + ["scaffold-m"] * 6
    by_trial = {(t.label, str(t.number)): t for t in trials}
    for row in rows:
        t = by_trial[row["method"], row["trial"]]
        assert float(row["accuracy"]) == t.outcome.quality and row["state"] == "done"
        assert float(row["local.lr"]) == t.chosen["local.lr"]
        assert (row["beta"] == "") == (t.label == "fedavg")
    assert list(run_sweep(e, plan, directory)) == []  # nothing is left


def test_best_toml_has_the_sweeps_figures_on_its_problem(swept_once):
    _, plan, directory, trials = swept_once
    best = read(directory / "best.toml")
    for label in best.labels:
        top = max((t for t in trials if t.label == label), key=lambda t: t.outcome.quality)
        for seed, quality in zip((0, 1), top.outcome.qualities, strict=True):
            problem = with_held_out(problem_of(best, seed), plan.validate, seed)
            one = config_of(best.single(label, seed), Federation(problem, {}))
            values = [r.metrics["accuracy"] for r in prepare(one).play()]
            assert sum(values[-3:]) / 3 == quality


def test_without_validation_running_best_toml_gives_the_sweeps_figure(tmp_path):
    e = experiment("fedavg")
    (top,) = [t for t in [*run_sweep(e, Plan(Space("one", common={"local.lr": (0.3,)}), validate=0), tmp_path)]]
    best = read(tmp_path / "best.toml")
    result = ud.run(
        best.methods["fedavg"].make(),
        problem_of(best),
        rounds=best.rounds,
        participation=best.participation.make(),
        local=best.local_of("fedavg"),
        engine=best.engine,
    )
    assert result.final("accuracy", last=1) == top.outcome.quality


def test_parameters_of_the_experiment_that_are_not_swept_stay(tmp_path):
    own = {"beta": 0.5, "B": 1, "local": {"weight_decay": 0.01, "lr": 9.0}}
    e = experiment(algorithms={"mine": {"name": "scaffold-m", **own}}, baseline="mine", rounds=2)
    list(run_sweep(e, Plan(Space("lr", common={"local.lr": (0.1,)})), tmp_path))
    best = read(tmp_path / "best.toml")
    assert best.methods["mine"].parameters == {"beta": 0.5, "B": 1}
    assert best.methods["mine"].local == {"weight_decay": 0.01, "lr": 0.1}
    assert best.baseline == "mine"


def test_a_trial_that_nobody_is_left_in_is_said(tmp_path, capsys):
    """In virtual time a population may fall empty: the trial has failed, the sweep goes on."""
    (tmp_path / "trace.csv").write_text("client,from,to\n" + "".join(f"{i},0,{30 * (1 + i % 2)}\n" for i in range(6)))
    away = {"kind": "trace", "path": str(tmp_path / "trace.csv")}
    e = experiment(
        "fedavg",
        engine="auto",
        rounds=8,
        population={"pace": 1.0, "availability": away},
        server={"kind": "buffer", "size": 2},
    )
    plan = Plan(Space("work", common={"local.steps": (2, 25)}))
    run_and_report(e, plan, tmp_path / "sweep")
    (fedavg,) = read_results(plan_sweep(e, plan), tmp_path / "sweep")
    assert [t.outcome.state for t in fedavg.trials] == ["done", "deserted"]
    assert "nobody is left" in fedavg.trials[1].outcome.reason
    assert "deserted" in capsys.readouterr().out


def test_parameters_of_a_method_within_a_method(tmp_path):
    words = {"method": [{"name": "autonomous-fedgm", "schedule": {"eta": [1.0, 4.0], "nu": [0.7]}}]}
    space = space_from_dict(words, "nested")
    assert space_from_dict(space_to_dict(space), "nested") == space
    schedule = {"name": "fedgm", "beta": 0.5}
    e = experiment(algorithms={"autonomous-fedgm": {"schedule": schedule}})
    trials = list(run_sweep(e, Plan(space), tmp_path))
    assert [t.chosen["schedule.eta"] for t in trials] == [1.0, 4.0]
    for trial in trials:
        made = with_methods(e, {"it": trial.words}).methods["it"].make()
        assert made.schedule == ud.FedGM(eta=trial.chosen["schedule.eta"], beta=0.5, nu=0.7)
    with pytest.raises(InvalidInput, match="unknown parameter of fedavg: 'schedule.eta'"):
        plan_searches(experiment("fedavg"), Plan(Space("s", common={"schedule.eta": (1.0,)})))


def test_what_diverges_is_pruned_and_said(tmp_path, capsys):
    space = Space(
        "steep",
        common={"local.lr": (0.1, 1e39)},
        rows=(SpaceRow("scaffold", {"local.lr": (1e39, 1e40)}),),
    )
    e, plan = experiment("fedavg", "scaffold", baseline="scaffold"), Plan(space)
    run_and_report(e, plan, tmp_path)
    fedavg, scaffold = read_results(plan_sweep(e, plan), tmp_path)
    assert [t.outcome.state for t in fedavg.trials] == ["done", "diverged"]
    assert fedavg.best is not None and fedavg.best.chosen == {"local.lr": 0.1}
    assert fedavg.trials[1].outcome.reason
    assert scaffold.best is None and scaffold.count("diverged") == 2
    best = read(tmp_path / "best.toml")
    assert best.labels == ["fedavg"] and best.baseline is None
    assert "scaffold: none of its trials was finished; the last: " in capsys.readouterr().out
    only = tmp_path / "only"
    with pytest.raises(InvalidInput, match="no trial of any method was finished"):
        run_and_report(experiment("scaffold"), plan, only, quiet=True)
    assert not (only / "best.toml").exists()


def test_hopeless_trials_are_pruned(tmp_path):
    lrs = (0.05, 0.1, 0.2, 0.3, 0.5, 1e-6, 2e-6)
    plan = Plan(Space("slow", common={"local.lr": lrs}), prune=True)
    trials = list(run_sweep(experiment("fedavg", rounds=8), plan, tmp_path))
    assert [t.outcome.state for t in trials] == ["done"] * 5 + ["pruned"] * 2
    assert "worse than the median" in trials[-1].outcome.reason


def test_a_search_is_repeatable_and_does_no_trial_twice(tmp_path, monkeypatch):
    calls = []
    curves = sweeping.group_curves
    monkeypatch.setattr(sweeping, "group_curves", lambda *given: calls.append(given) or curves(*given))
    lists = Space("lists", common={"local.lr": (0.1, 0.3), "local.batch": (4, 8), "local.clip": (1.0, 9.0)})
    e = experiment("fedavg", rounds=2)
    trials = list(run_sweep(e, Plan(lists, trials=7, sampler="random", prune=False), tmp_path / "a"))
    different = {tuple(t.chosen.items()) for t in trials}
    assert len(different) < len(trials) == 7 and len(calls) == len(different)
    again = list(run_sweep(e, Plan(lists, trials=7, sampler="random", prune=False), tmp_path / "b"))
    assert again == trials


def test_ranges_are_searched(tmp_path):
    rows = (SpaceRow("ghbm", {"tau": Range(2, 6, whole=True)}),)
    space = Space("ranges", common={"local.lr": Range(0.01, 1.0, log=True)}, rows=rows)
    for sampler in ("random", "tpe"):
        plan = Plan(space, trials=3, sampler=sampler, seed=5)
        trials = list(run_sweep(experiment("ghbm", rounds=2), plan, tmp_path / sampler))
        assert len({t.chosen["local.lr"] for t in trials}) == 3
        assert all(0.01 <= t.chosen["local.lr"] <= 1 for t in trials)
        assert all(isinstance(t.chosen["tau"], int) and 2 <= t.chosen["tau"] <= 6 for t in trials)


def test_accuracy_is_maximised_and_loss_minimised(tmp_path, swept_once):
    @dataset("line")
    def line() -> Data:
        X = torch.linspace(-1, 1, 40)[:, None]
        return Data("line", (X, 2 * X), (X, 2 * X))

    try:
        e = experiment("fedavg", data={"name": "line"}, model={"name": "mlp", "hidden": [4]},
                       clients={"partition": "iid", "number": 6})  # fmt: skip
        trials = list(run_sweep(e, Plan(Space("lr", common=FEW)), tmp_path))
        best = best_experiment(e, {"fedavg": trials})
        assert trials[0].metric == "loss" and best is not None
        least = min(trials, key=lambda t: t.outcome.quality)
        assert best.local_of("fedavg").lr == least.chosen["local.lr"]
    finally:
        DATASETS.pop("line")


# resuming

BLOBS = """
import torch
from undrift.data.registry import Data, dataset

@dataset("blobs")
def blobs() -> Data:
    Y = torch.arange(90) % 3
    X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)) + Y[:, None]
    return Data("blobs", (X, Y), None, classes=3)
"""

KILLED = """
import sys
from pathlib import Path
from undrift.experiments.sweeps.sweeping import open_sweep, run_sweep
directory = Path(sys.argv[1])
print("begun", flush=True)
for trial in run_sweep(*open_sweep(directory), directory):
    print(trial.number, flush=True)
"""


def resumable(sampler: str, file: Path) -> tuple[ud.Experiment, Plan]:
    """The whole of two grids, or TPE with pruning among ranges, on data of one's own."""
    file.write_text(BLOBS)
    own = {"use": [str(file)], "data": {"name": "blobs"}, "rounds": 12}
    if sampler == "grid":
        return experiment("fedavg", "scaffold-m", **own), Plan(SPACE, seeds=2)
    rows = (SpaceRow("scaffold-m", {"beta": Range(0.1, 1.0)}),)
    space = Space("ranges", common={"local.lr": Range(1e-4, 1.0, log=True)}, rows=rows)
    return experiment("scaffold-m", **own), Plan(space, trials=13, sampler="tpe")


def everything(directory: Path) -> tuple[str, str, list]:
    trials = [f.trials for f in read_results(plan_sweep(*open_sweep(directory)), directory)]
    return (directory / "trials.csv").read_text(), (directory / "best.toml").read_text(), trials


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_a_killed_sweep_goes_on_as_if_it_had_not_been(tmp_path, sampler):
    e, plan = resumable(sampler, tmp_path / "blobs.py")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    run_sweep(e, plan, killed)  # not begun, but described there
    moments = random.Random(sampler)
    try:
        # trials that it ends before it is killed, a moment later
        for lines in (0, 3) if sampler == "grid" else (3,):
            child = subprocess.Popen([sys.executable, "-c", KILLED, str(killed)], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            for _ in range(1 + lines):
                assert child.stdout.readline()
            time.sleep(moments.uniform(0, 0.1))  # a fast machine ends all trials within a second
            child.kill()
            child.communicate()
            assert child.returncode == -9
        left = list(run_sweep(e, plan, killed))
        trials = list(run_sweep(e, plan, whole))
        assert 0 < len(left) <= len(trials) - 3
        assert everything(killed) == everything(whole)
        if sampler == "tpe":
            assert any(t.outcome.state == "pruned" for t in trials)
    finally:
        DATASETS.pop("blobs")


def test_a_sweep_that_is_left_early_goes_on(tmp_path, swept_once):
    e, plan, directory, trials = swept_once
    begun = run_sweep(e, plan, tmp_path / "early")
    first = [next(begun), next(begun)]
    with pytest.raises(InvalidInput, match="in use by another process"):
        next(run_sweep(e, plan, tmp_path / "early"))
    del begun  # as when a loop over it is left
    assert first + list(run_sweep(*open_sweep(tmp_path / "early"), tmp_path / "early")) == trials
    assert everything(tmp_path / "early") == everything(directory)


def test_the_end_of_a_sweep_is_said(tmp_path, capsys):
    run_and_report(experiment("fedavg"), Plan(Space("lr", common=FEW), seeds=2), tmp_path / "s")
    run_best(tmp_path / "s", quiet=True)
    out = capsys.readouterr().out
    assert "fedavg 2/2: local.lr=0.3: accuracy 0." in out and "+-" in out
    assert "fedavg: local.lr = 0.3 is at the edge of its values (0.05 to 0.3): widen them" in out
    assert (tmp_path / "s" / "compare" / "result.json").exists()
    run_and_report(experiment("fedavg"), Plan(Space("lr", common=FEW), seeds=2), tmp_path / "s", quiet=True)
    assert capsys.readouterr().out == ""
