"""Sweeps: fair budgets, the papers' grids, resuming, data to choose by."""

import csv
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from undrift.cli.sweeps import compared, introduction, swept
from undrift.core.errors import InvalidInput
from undrift.core.hyper import METHODS
from undrift.data.registry import DATASETS, Data, dataset
from undrift.experiments.config import read
from undrift.experiments.config.federation import Federation, federation
from undrift.experiments.runs.files import lock
from undrift.experiments.runs.running import config_of
from undrift.experiments.sweeps import (
    SPACES,
    Plan,
    Range,
    Row,
    Space,
    best_experiment,
    found,
    opened,
    planned,
    run_sweep,
    space_of,
    sweeping,
)
from undrift.experiments.sweeps.chosen import (
    averaging,
    check_values,
    edges,
    method_words,
    with_methods,
)
from undrift.experiments.sweeps.plan import searches
from undrift.experiments.sweeps.space import GAMMA, UNDAMPENED, read_space, space_from, space_words
from undrift.experiments.sweeps.validation import with_held_out
from undrift.simulation.api import prepare
from undrift.simulation.catalogue import EXAMPLES

LR = {"local.lr": (0.05, 0.3, 1.0)}
SPACE = Space("mine", common=LR, rows=(Row("scaffold-m", {"beta": (0.2, 0.6)}),))
FEW = {"local.lr": (0.05, 0.3)}


def experiment(*methods: str, **words) -> ud.Experiment:
    """A tiny federation of digits."""
    small = {
        "rounds": 4,
        "threads": 1,
        "engine": "sequential",  # faster than vmap with so little to do
        "clients": {"partition": "dirichlet", "number": 6, "alpha": 0.3},
        "model": {"name": "logistic"},
        "participation": {"per_round": 3},
        "local": {"steps": 2, "batch": 8},
    }
    return ud.Experiment(**{**small, "algorithms": {name: {} for name in methods}, **words})


def problem_of(e: ud.Experiment, seed: int = 0) -> ud.ModelProblem:
    return federation(e, seed).problem


# named spaces

TINY = experiment("fedavg")
PROBLEM = problem_of(TINY)


@pytest.mark.parametrize("name", SPACES)
def test_a_named_space_has_only_parameters_and_values_that_its_methods_take(name):
    space = SPACES[name]
    sampler = {"sampler": "random", "trials": 3} if name == "search" else {}
    for row in space.rows:
        e = experiment(algorithms={row.method: dict(row.when)})
        (search,) = searches(e, Plan(space, **sampler))
        assert search.has_row and set(row.choices) <= set(search.choices)
        check_values(e, search, PROBLEM)


@pytest.mark.parametrize("name", SPACES)
def test_a_method_without_a_row_has_what_is_common(name):
    for method in set(METHODS) - {row.method for row in SPACES[name].rows}:
        e = experiment(algorithms={method: EXAMPLES.get(method, {})})
        (search,) = searches(e, Plan(SPACES[name], trials=3, sampler="random"))
        assert search.choices == SPACES[name].common and not search.has_row
        check_values(e, search, PROBLEM)


def test_the_grids_have_as_many_points_as_in_the_papers():
    def points(space, method, **parameters):
        e = experiment(algorithms={method: parameters})
        return searches(e, Plan(space_of(space)))[0].trials

    assert points("ghbm-lenet", "fedavg") == 3 * 3 * 3  # eta, eta_l, wd
    assert points("ghbm-lenet", "ghbm") == 3 * 3 * 4 * 3
    assert points("ghbm-resnet20", "fedhbm") == 2 * 2 * 3 * 2
    assert points("ghbm-resnet20", "adabest") == 3 * 3 * 2
    assert points("ghbm-resnet20", "mime") == 2 * 2 * 2
    assert points("ghbm-resnet20", "mime", opt="sgdm") == 4 * 4 * 3 * 2
    assert points("ghbm-lenet", "mimelite", opt="sgdm") == 3 * 3 * 2 * 3
    assert points("ghbm-shakespeare", "fedprox") == 3 * 3 * 4 * 3
    assert points("ghbm-stackoverflow", "fedcm") == 4 * 3  # no row: FedAvg's eta_l, and wd
    assert points("momentum", "scaffold-m") == 5 * 4 and points("momentum", "scaffold") == 5
    assert points("fedgm", "fedgm") == 10 * 3 * 3 and points("fedgm", "fedavgm") == 10 * 3
    assert points("fednova", "fedprox") == 5 * 4 and points("fednova", "fednova") == 5 * 5


def test_table_7_server_momentum_is_undampened():
    (search,) = searches(experiment("fedavgm"), Plan(space_of("ghbm-lenet")))
    assert search.points is not None
    for point in search.points:
        words = method_words(experiment("fedavgm"), "fedavgm", point, PROBLEM)
        made = with_methods(TINY, {"fedavgm": words}).methods["fedavgm"].make()
        eta, beta = float(point["eta"]), float(point["beta"])
        assert made == ud.FedGM(eta=eta / (1 - beta), beta=beta, nu=1.0)


def double(e: ud.Experiment) -> ud.ModelProblem:
    """Small data in float64, the same number of samples for everyone."""
    X = torch.randn(24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(3, 2).double()
    return ud.federate(
        (X, torch.arange(24) % 2), model=model, loss=F.cross_entropy, clients=ud.IID(4)
    )


def test_table_7_fedcm_steps_so_much_of_plain_averaging():
    e = experiment("fedcm", local={"epochs": 2, "batch": 3, "lr": 0.3})
    problem = double(e)
    assert averaging(e.local_of("fedcm"), problem) == pytest.approx(0.3 * 4)

    def moved(part):
        words = method_words(e, "fedcm", {GAMMA: part, "alpha": 0.5}, problem)
        chosen = with_methods(e, {"fedcm": words})
        method, local = chosen.methods["fedcm"].make(), chosen.local_of("fedcm")
        return ud.run(method, problem, rounds=1, local=local, engine="sequential").x - problem.x0

    assert torch.allclose(moved(0.1), 0.1 * moved(1.0), rtol=1e-9, atol=0)
    plain = ud.FedCM(alpha=0.5)
    x = ud.run(plain, problem, rounds=1, local=e.local_of("fedcm"), engine="sequential").x
    assert torch.equal(moved(1.0), x - problem.x0)


def test_table_7_mime_has_undampened_momentum():
    e = experiment(algorithms={"mime": {"opt": "sgdm"}}, local={"steps": 1, "batch": "all"})
    problem = double(e)
    chosen = {"server_lr": 0.5, UNDAMPENED: 0.2, "beta": 0.9}
    chosen = with_methods(e, {"mime": method_words(e, "mime", chosen, problem)})
    method, local = chosen.methods["mime"].make(), chosen.local_of("mime")
    x, m = problem.x0.clone(), torch.zeros_like(problem.x0)
    for r in ud.rounds(method, problem, rounds=3, local=local, engine="sequential"):  # everyone
        c = sum((problem.full_grad(x, [i]) for i in range(problem.N)), 0 * x) / problem.N
        x, m = x - 0.5 * 0.2 * (c + 0.9 * m), 0.9 * m + c
        assert torch.allclose(r.x, x, rtol=1e-9, atol=1e-12)


def test_gamma_needs_fixed_work():
    e = experiment("fedcm", local={"steps": {"low": 1, "high": 3}})
    with pytest.raises(InvalidInput, match="constant lr and a fixed number"):
        method_words(e, "fedcm", {GAMMA: 0.5}, PROBLEM)


@pytest.mark.parametrize("name", SPACES)
def test_a_space_is_the_same_after_toml(name):
    assert space_from(space_words(SPACES[name]), name) == SPACES[name]


def test_a_space_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        "[common]\nlocal.lr = [0.1, 1.0]\n"
        '[[method]]\nname = "mime"\nwhen = {opt = "sgdm"}\nbeta = {low = 0.1, high = 0.9}\n'
    )
    space = space_of(str(file))
    assert space.common == {"local.lr": (0.1, 1.0)}
    assert space.rows == (Row("mime", {"beta": Range(0.1, 0.9)}, {"opt": "sgdm"}),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("common = 3", r"one \[common\]"),
        ("[commons]\nbeta = [1]", "unknown key of a space: 'commons'; did you mean 'common'"),
        ("[[method]]\nbeta = [1]", "needs its name"),
        ('[[method]]\nname = "fedavgg"', "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ("[common]\nlocal.lr = 0.1", "lr: give a list of values or a range, got 0.1"),
        ("[common]\nlocal.lr = []", "give a list of values"),
        ("[common]\nlocal.lr = [0.1, 0.1]", "has a value twice"),
        ("[common]\nlocal.lr = {low = 1, high = 0.5}", "from low to high"),
        ("[common]\nlocal.lr = {low = 0, high = 0.5, log = true}", "begins above zero"),
        ("[common]\nlocal.lr = {from = 0}", "a range is written"),
        ("[common", "is not TOML"),
    ],
)
def test_a_wrong_space_file_is_refused(tmp_path, text, message):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_space(file)


# budgets


def test_budgets_are_equal_and_small_grids_are_exhausted():
    e = experiment("fedavg", "scaffold-m")
    whole = searches(e, Plan(SPACE))
    assert [s.trials for s in whole] == [3, 6]
    few = searches(e, Plan(SPACE, trials=4))
    assert [s.trials for s in few] == [3, 4]
    drawn = few[1].points
    assert drawn is not None and len({tuple(p.items()) for p in drawn}) == 4
    assert drawn != searches(e, Plan(SPACE, trials=4, seed=1))[1].points
    for sampler in ("random", "tpe"):  # nothing to search in what can be tried whole
        fedavg, scaffold = searches(e, Plan(SPACE, trials=4, sampler=sampler))
        assert fedavg.points == whole[0].points and scaffold.points is None


def test_the_introduction_says_what_is_unequal():
    e = experiment("fedavg", "scaffold-m", "fedgm")
    said = list(introduction(planned(e, Plan(SPACE, trials=4, seeds=2))))
    assert "every method: at most 4 trials of 4 rounds with 2 seeds" in said
    assert "fedavg: the grid has 3 points, the rest of the budget stays unspent" in said
    assert "scaffold-m: 4 of 6 points of the grid, drawn without replacement" in said
    assert "fedgm: no row in space mine; only what is common: local.lr" in said
    assert any("training samples held out" in line and "test data unseen" in line for line in said)
    said = list(introduction(planned(experiment("scaffold"), Plan(space_of("fedgm"), validate=0))))
    assert "scaffold: space fedgm has nothing to choose; tried once as it is" in said
    assert any("test data, as in the papers" in line for line in said)


# whole sweeps


@pytest.fixture(scope="module")
def swept_once(tmp_path_factory):
    """A sweep of two methods, the whole grid, two seeds."""
    directory = tmp_path_factory.mktemp("sweeps") / "once"
    e, plan = experiment("fedavg", "scaffold-m", rounds=6), Plan(SPACE, seeds=2, last=3)
    return e, plan, directory, list(run_sweep(e, plan, directory))


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
    (top,) = [
        t
        for t in [
            *run_sweep(e, Plan(Space("one", common={"local.lr": (0.3,)}), validate=0), tmp_path)
        ]
    ]
    best = read(tmp_path / "best.toml")
    result = ud.run(
        best.methods["fedavg"].make(),
        problem_of(best),
        rounds=best.rounds,
        participation=best.participation.make(),
        local=best.local_of("fedavg"),
        engine=best.engine_choice,
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
    (tmp_path / "trace.csv").write_text(
        "client,from,to\n" + "".join(f"{i},0,{30 * (1 + i % 2)}\n" for i in range(6))
    )
    away = {"kind": "trace", "path": str(tmp_path / "trace.csv")}
    e = experiment(
        "fedavg",
        engine="auto",
        rounds=8,
        population={"pace": 1.0, "availability": away},
        server={"kind": "buffer", "size": 2},
    )
    plan = Plan(Space("work", common={"local.steps": (2, 25)}))
    swept(e, plan, tmp_path / "sweep")
    (fedavg,) = found(planned(e, plan), tmp_path / "sweep")
    assert [t.outcome.state for t in fedavg.trials] == ["done", "deserted"]
    assert "nobody is left" in fedavg.trials[1].outcome.reason
    assert "deserted" in capsys.readouterr().out


def test_parameters_of_a_method_within_a_method(tmp_path):
    words = {"method": [{"name": "autonomous-fedgm", "schedule": {"eta": [1.0, 4.0], "nu": [0.7]}}]}
    space = space_from(words, "nested")
    assert space_from(space_words(space), "nested") == space
    schedule = {"name": "fedgm", "beta": 0.5}
    e = experiment(algorithms={"autonomous-fedgm": {"schedule": schedule}})
    trials = list(run_sweep(e, Plan(space), tmp_path))
    assert [t.chosen["schedule.eta"] for t in trials] == [1.0, 4.0]
    for trial in trials:
        made = with_methods(e, {"it": trial.words}).methods["it"].make()
        assert made.schedule == ud.FedGM(eta=trial.chosen["schedule.eta"], beta=0.5, nu=0.7)
    with pytest.raises(InvalidInput, match="unknown parameter of fedavg: 'schedule.eta'"):
        searches(experiment("fedavg"), Plan(Space("s", common={"schedule.eta": (1.0,)})))


def test_what_diverges_is_pruned_and_said(tmp_path, capsys):
    space = Space(
        "steep",
        common={"local.lr": (0.1, 1e39)},
        rows=(Row("scaffold", {"local.lr": (1e39, 1e40)}),),
    )
    e, plan = experiment("fedavg", "scaffold", baseline="scaffold"), Plan(space)
    swept(e, plan, tmp_path)
    fedavg, scaffold = found(planned(e, plan), tmp_path)
    assert [t.outcome.state for t in fedavg.trials] == ["done", "diverged"]
    assert fedavg.best is not None and fedavg.best.chosen == {"local.lr": 0.1}
    assert fedavg.trials[1].outcome.reason
    assert scaffold.best is None and scaffold.count("diverged") == 2
    best = read(tmp_path / "best.toml")
    assert best.labels == ["fedavg"] and best.baseline is None
    assert "scaffold: none of its trials was finished; the last: " in capsys.readouterr().out
    only = tmp_path / "only"
    with pytest.raises(InvalidInput, match="no trial of any method was finished"):
        swept(experiment("scaffold"), plan, only, quiet=True)
    assert not (only / "best.toml").exists()


def test_hopeless_trials_are_pruned(tmp_path):
    lrs = (0.05, 0.1, 0.2, 0.3, 0.5, 1e-6, 2e-6)
    plan = Plan(Space("slow", common={"local.lr": lrs}), prune=True)
    trials = list(run_sweep(experiment("fedavg", rounds=8), plan, tmp_path))
    assert [t.outcome.state for t in trials] == ["done"] * 5 + ["pruned"] * 2
    assert "worse than the median" in trials[-1].outcome.reason


def test_a_search_is_repeatable_and_does_no_trial_twice(tmp_path, monkeypatch):
    calls = []
    curves = sweeping.curves
    monkeypatch.setattr(sweeping, "curves", lambda *given: calls.append(given) or curves(*given))
    lists = Space(
        "lists", common={"local.lr": (0.1, 0.3), "local.batch": (4, 8), "local.clip": (1.0, 9.0)}
    )
    e = experiment("fedavg", rounds=2)
    trials = list(
        run_sweep(e, Plan(lists, trials=7, sampler="random", prune=False), tmp_path / "a")
    )
    different = {tuple(t.chosen.items()) for t in trials}
    assert len(different) < len(trials) == 7 and len(calls) == len(different)
    again = list(run_sweep(e, Plan(lists, trials=7, sampler="random", prune=False), tmp_path / "b"))
    assert again == trials


def test_ranges_are_searched(tmp_path):
    rows = (Row("ghbm", {"tau": Range(2, 6, whole=True)}),)
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
        assert trials[0].figure == "loss" and best is not None
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
from undrift.experiments.sweeps import opened, run_sweep
directory = Path(sys.argv[1])
print("begun", flush=True)
for trial in run_sweep(*opened(directory), directory):
    print(trial.number, flush=True)
"""


def resumable(sampler: str, file: Path) -> tuple[ud.Experiment, Plan]:
    """The whole of two grids, or TPE with pruning among ranges, on data of one's own."""
    file.write_text(BLOBS)
    own = {"use": [str(file)], "data": {"name": "blobs"}, "rounds": 12}
    if sampler == "grid":
        return experiment("fedavg", "scaffold-m", **own), Plan(SPACE, seeds=2)
    rows = (Row("scaffold-m", {"beta": Range(0.1, 1.0)}),)
    space = Space("ranges", common={"local.lr": Range(1e-4, 1.0, log=True)}, rows=rows)
    return experiment("scaffold-m", **own), Plan(space, trials=13, sampler="tpe")


def everything(directory: Path) -> tuple[str, str, list]:
    trials = [f.trials for f in found(planned(*opened(directory)), directory)]
    return (directory / "trials.csv").read_text(), (directory / "best.toml").read_text(), trials


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_a_killed_sweep_goes_on_as_if_it_had_not_been(tmp_path, sampler):
    e, plan = resumable(sampler, tmp_path / "blobs.py")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    run_sweep(e, plan, killed)  # not begun, but described there
    moments = random.Random(sampler)
    try:
        for lines in (0, 3):  # trials that it ends before it is killed, a moment later
            child = subprocess.Popen(
                [sys.executable, "-c", KILLED, str(killed)], stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            for _ in range(1 + lines):
                assert child.stdout.readline()
            time.sleep(moments.uniform(0, 0.1) + (lines == 0) * moments.uniform(0.5, 2))
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
    assert first + list(run_sweep(*opened(tmp_path / "early"), tmp_path / "early")) == trials
    assert everything(tmp_path / "early") == everything(directory)


# data to choose by


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    fraction=st.floats(0.05, 0.9),
    seed=st.integers(0, 2**32),
)
def test_held_out_data_are_nobodys(sizes, fraction, seed):
    n = sum(sizes) + 30
    ends = np.cumsum(sizes)
    clients = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    clients.append(np.arange(n - 30, n))  # so that something can be held out
    X = torch.arange(n, dtype=torch.float32)[:, None]
    whole = ud.federate(
        (X, torch.arange(n) % 2), model=nn.Linear(1, 2), loss=F.cross_entropy, clients=clients
    )
    part = with_held_out(whole, fraction, seed)
    assert part.test is not None
    held = set(part.test[0].flatten().long().tolist())
    kept = [set(part.samples(i).tolist()) for i in range(part.N)]
    assert all(kept) and not held & set().union(*kept)
    for i, client in enumerate(clients):
        assert kept[i] | (held & set(client.tolist())) == set(client.tolist())
        assert abs(len(held & set(client.tolist())) - fraction * len(client)) <= 1
    again = with_held_out(whole, fraction, seed)
    assert again.test is not None and torch.equal(again.test[0], part.test[0])


def test_a_shared_sample_is_held_out_of_all_its_clients():
    X = torch.arange(10.0)[:, None]
    whole = ud.federate(
        (X, torch.arange(10) % 2),
        model=nn.Linear(1, 2),
        loss=F.cross_entropy,
        clients=ud.IID(40, size=4),
    )
    part = with_held_out(whole, 0.5, seed=0)
    assert part.test is not None
    held = set(part.test[0].flatten().long().tolist())
    kept = [set(part.samples(i).tolist()) for i in range(part.N)]
    assert held and all(kept) and not held & set().union(*kept)


def test_nothing_held_out_is_an_error():
    X = torch.zeros(3, 1)
    lonely = ud.federate(
        (X, torch.arange(3)), model=nn.Linear(1, 3), loss=F.cross_entropy, clients=ud.IID(3)
    )
    with pytest.raises(InvalidInput, match="holds out nothing"):
        with_held_out(lonely, 0.5, seed=0)


def test_test_data_are_not_looked_at_unless_asked_for(tmp_path):
    @dataset("coins")
    def coins(other: bool = False) -> Data:
        random = torch.Generator().manual_seed(0)
        X, Y = torch.randn(90, 4, generator=random), torch.arange(90) % 3
        test = X[:30] + 9 * other, Y[:30]
        return Data("coins", (X + Y[:, None], Y), test, classes=3)

    def qualities(validate: float, other: bool):
        clients = {"partition": "iid", "number": 6}
        e = experiment("fedavg", data={"name": "coins", "other": other}, clients=clients)
        plan = Plan(Space("lr", common=FEW), validate=validate)
        place = tmp_path / f"{validate} {other}"
        return [t.outcome.qualities for t in run_sweep(e, plan, place)]

    try:
        assert qualities(0.2, other=False) == qualities(0.2, other=True)
        assert qualities(0, other=False) != qualities(0, other=True)
    finally:
        DATASETS.pop("coins")


# edges


def flagged(method: str, choices: dict, chosen: dict) -> list[str]:
    space = Space("edges", rows=(Row(method, choices),))
    (search,) = searches(experiment(method), Plan(space, trials=2, sampler="random"))
    return [line.split(" is at")[0] for line in edges(experiment(method), search, chosen, PROBLEM)]


def test_a_best_value_at_the_edge_is_flagged_if_there_is_anything_beyond():
    lr = {"local.lr": (0.1, 1.0, 0.3)}
    assert flagged("fedavg", lr, {"local.lr": 1.0}) == ["local.lr = 1"]
    assert flagged("fedavg", lr, {"local.lr": 0.1}) == ["local.lr = 0.1"]
    assert flagged("fedavg", lr, {"local.lr": 0.3}) == []
    assert flagged("fedavg", {"local.lr": (0.1,)}, {"local.lr": 0.1}) == []
    assert flagged("fedhbm", {"beta": (0.9, 1.0)}, {"beta": 1.0}) == []  # 1 is the largest there is
    assert flagged("fedhbm", {"beta": (0.9, 0.99)}, {"beta": 0.99}) == ["beta = 0.99"]
    assert flagged("ghbm", {"tau": (1, 5)}, {"tau": 1}) == []
    assert flagged("ghbm", {"tau": (1, 5)}, {"tau": 5}) == ["tau = 5"]
    assert flagged("fedavgm", {"dampened": (True, False)}, {"dampened": True}) == []
    assert flagged("mime", {"opt": ("sgd", "sgdm")}, {"opt": "sgd"}) == []
    wide = {"local.lr": Range(0.01, 1.0, log=True)}
    assert flagged("fedavg", wide, {"local.lr": 0.98}) == ["local.lr = 0.98"]
    assert flagged("fedavg", wide, {"local.lr": 0.5}) == []
    assert (
        flagged("fedavg", {"local.weight_decay": Range(0.0, 1.0)}, {"local.weight_decay": 0.0})
        == []
    )


def test_the_end_of_a_sweep_is_said(tmp_path, capsys):
    swept(experiment("fedavg"), Plan(Space("lr", common=FEW), seeds=2), tmp_path / "s")
    compared(tmp_path / "s", quiet=True)
    out = capsys.readouterr().out
    assert "fedavg 2/2: local.lr=0.3: accuracy 0." in out and "+-" in out
    assert "fedavg: local.lr = 0.3 is at the edge of its values (0.05 to 0.3): widen them" in out
    assert (tmp_path / "s" / "compare" / "result.json").exists()
    swept(experiment("fedavg"), Plan(Space("lr", common=FEW), seeds=2), tmp_path / "s", quiet=True)
    assert capsys.readouterr().out == ""


# bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"trials": 0}, r"trials must lie in \[1, inf\)"),
        ({"seeds": 0}, r"seeds must lie in \[1, inf\)"),
        ({"sampler": "gird"}, "unknown sampler 'gird'; did you mean 'grid'"),
        ({"validate": 1.0}, r"validate must lie in \[0, 1\)"),
        ({"sampler": "tpe"}, "sampler tpe needs a number of trials"),
        ({"space": space_of("search")}, "space search has a range for local.lr of fedavg"),
        ({"space": Space("x", rows=(Row("fedavg", {"beta": (1,)}),))}, "unknown parameter of fedavg: 'beta'"),
        ({"space": Space("x", common={GAMMA: (1,)})}, "unknown parameter of fedavg: 'gamma"),
        ({"space": Space("x", common={"local.lr": (0.1, -1.0)})}, "lr must lie in"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_refused_before_anything_is_written(tmp_path, words, message):
    with pytest.raises(InvalidInput, match=message):
        run_sweep(experiment("fedavg"), Plan(**{"space": SPACE, **words}), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_an_unknown_space_is_refused():
    with pytest.raises(InvalidInput, match="unknown space 'quik'; did you mean 'quick'"):
        space_of("quik")
    with pytest.raises(InvalidInput, match="cannot be read"):
        space_of("nowhere.toml")


def test_a_method_that_cannot_run_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="full participation"):
        run_sweep(experiment("vrl-sgd"), Plan(SPACE), tmp_path / "s")


def test_another_sweep_in_the_directory_is_refused(tmp_path, swept_once):
    e, plan, directory, _ = swept_once
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(
        InvalidInput, match="another sweep: experiment.rounds is 6 there and 7 here"
    ):
        run_sweep(experiment("fedavg", "scaffold-m", rounds=7), plan, directory)
    with pytest.raises(InvalidInput, match="another sweep: sweep.validate is 0.1 there and 0.2"):
        run_sweep(e, Plan(SPACE, seeds=2, last=3, validate=0.2), directory)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    (tmp_path / "letter.txt").write_text("precious")
    with pytest.raises(InvalidInput, match="exists and is no sweep"):
        run_sweep(e, plan, tmp_path)
    with pytest.raises(InvalidInput, match="is not a sweep"):
        opened(tmp_path)
    held = lock(directory)
    try:
        with pytest.raises(InvalidInput, match="in use"):
            next(run_sweep(e, plan, directory))
    finally:
        held.release()


def test_a_broken_database_is_named(tmp_path):
    list(run_sweep(experiment("fedavg", rounds=1), Plan(SPACE), tmp_path))
    (tmp_path / "sweep.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(InvalidInput, match="sweep.db cannot be used"):
        next(run_sweep(experiment("fedavg", rounds=1), Plan(SPACE), tmp_path))


def test_without_optuna_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidInput, match=r'pip install "undrift\[sweep\]"'):
        run_sweep(experiment("fedavg"), Plan(SPACE), tmp_path / "s")
    assert not (tmp_path / "s").exists()
