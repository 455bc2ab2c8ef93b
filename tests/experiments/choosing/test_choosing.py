"""Choosing a method: the budget, the decision, the whole of it on a small federation, resumed, and what is refused."""

import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import undrift as ud
from tests.support.small_sweep import experiment, problem_of
from undrift.core.errors import InvalidInput
from undrift.experiments.choosing import Budget, choosing, describe, open_choosing, prepare_choosing
from undrift.experiments.choosing.answer import Final, decide, within_noise
from undrift.experiments.choosing.budget import LADDER, plan_budget, seconds_of
from undrift.experiments.choosing.choosing import carry_out, conclude
from undrift.experiments.config import read
from undrift.experiments.config.toml import to_dict
from undrift.experiments.sweeps.validation import with_held_out

SETTLED: Any = {"trials": 2, "seeds": 2, "rounds": 3}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """Two methods on a tiny federation, with everything settled."""
    directory = tmp_path_factory.mktemp("choosing") / "once"
    ready = prepare_choosing(experiment("fedavg", "scaffold-m"), given=SETTLED, directory=directory)
    ended = list(carry_out(ready, directory))
    return ready, directory, ended, conclude(ready, directory)


# the budget


def test_more_minutes_are_more_work_and_never_more_than_minutes():
    seconds, points = {"fedavg": 0.01, "ghbm": 0.03}, {"fedavg": 6, "ghbm": 18}
    plans = [plan_budget(minutes, seconds, points, {}) for minutes in (0.3, 1, 4, 20, 500)]
    cost = [seconds_of(plan, seconds, points) for plan in plans]
    assert cost == sorted(cost) and len(set(plans)) == 5 and plans[-1] == LADDER[-1]
    assert all(spent <= 60 * minutes for spent, minutes in zip(cost, (0.3, 1, 4, 20, 500), strict=True))
    assert plan_budget(4, seconds, points, {"rounds": 7}).rounds == 7


def test_too_few_minutes_say_how_many_are_needed():
    with pytest.raises(InvalidInput, match=r"minutes 0.1 is too little for 1 methods .* takes about 3 min 20 s"):
        plan_budget(0.1, {"fedavg": 0.5}, {"fedavg": 6}, {}, [Budget(2, 2, 50)])


def test_nothing_is_timed_if_all_is_settled(monkeypatch):
    monkeypatch.setattr("undrift.experiments.choosing.choosing.seconds_together", lambda runs: 1 / 0)
    ready = prepare_choosing(experiment("fedavg"), given=SETTLED)
    assert ready.budget == Budget(**SETTLED) and ready.estimate is None and not ready.seconds


def test_minutes_are_settled_by_the_seconds_of_a_round(monkeypatch):
    monkeypatch.setattr("undrift.experiments.choosing.choosing.seconds_together", lambda runs: 0.01)
    ready = prepare_choosing(experiment("fedavg", "scaffold-m"), minutes=1.0)
    assert ready.budget == plan_budget(1.0, {"a": 0.01, "b": 0.01}, {"a": 6, "b": 18}, {})
    assert ready.estimate is not None and 30 < ready.estimate <= 60
    assert ready.sweep.experiment.rounds == ready.budget.rounds and len(ready.sweep.problems) == ready.budget.seeds


# the decision


def final(label: str, *values: float, sent: float = 1.0, state: int = 0) -> Final:
    """A method whose seeds rise to these qualities in two rounds."""
    curves = [[0.5 * value, value] for value in values]
    return Final(label, {"name": label}, {}, [1, 2], curves, [sent, 2 * sent], state, sent)


def test_a_clear_winner_is_taken_whatever_it_costs():
    finals = [final("fedavg", 0.70, 0.71, 0.72), final("ghbm", 0.90, 0.91, 0.92, sent=9.0)]
    label, baseline, found = decide(finals, "accuracy", 1, "fedavg")
    assert (label, baseline) == ("ghbm", "fedavg") and [c.label for c in found] == ["ghbm", "fedavg"]
    assert found[1].noise is False and found[1].behind == pytest.approx(0.2)
    assert (found[0].rounds, found[0].bytes) == (2, 18.0) and (found[1].rounds, found[1].bytes) == (2, 2.0)


def test_within_noise_the_cheapest_is_taken():
    finals = [final("fedavg", 0.89, 0.93, 0.90), final("scaffold", 0.91, 0.90, 0.93, sent=2.0, state=8)]
    label, _, found = decide(finals, "accuracy", 1, "fedavg")
    assert label == "fedavg" and found[0].label == "scaffold" and found[1].noise is True


def test_less_loss_is_better_and_a_quality_never_reached_has_no_price():
    finals = [final("fedavg", 0.2, 0.21), final("fedgm", 0.9, 0.91)]
    label, _, found = decide([replace(f, values=[[1.0, v[1]] for v in f.values]) for f in finals], "loss", 1, "fedavg")
    assert label == "fedavg" and found[1].bytes is None and found[1].behind == pytest.approx(0.7)


def test_one_seed_says_nothing_of_chance():
    label, _, found = decide([final("fedavg", 0.7), final("ghbm", 0.9)], "accuracy", 1, "fedavg")
    assert label == "ghbm" and [c.noise for c in found] == [None, None]
    assert within_noise([0.1, 0.1]) is False  # without any spread


# all of it


def test_the_answer_is_of_runs_with_other_seeds_on_held_out_data(chosen):
    ready, directory, ended, found = chosen
    assert len(ended) == 2 * 2 + 2 and ready.final_seeds == [2, 3, 4, 5]
    best = found.best
    run = read(directory / "chosen.toml")
    assert run.seeds == ready.final_seeds and {found.chosen, "fedavg"} == {*run.labels}
    one = run.single(found.chosen, 2)
    held = with_held_out(problem_of(one, 2), 0.2, 2)
    alone = ud.run(
        one.methods[found.chosen].make(), held, rounds=3, local=one.local, participation=ud.Uniform(3), seed=2,
        engine="sequential", metrics="test",
    )  # fmt: skip
    assert alone.history[-1].metrics["accuracy"] == pytest.approx(best.qualities[0], abs=1e-6)
    sent = sum(r.bytes_down + r.bytes_up for r in alone.history)
    assert best.total == sent and best.visit == pytest.approx(sent / 9)
    assert found["scaffold-m"].state == 650 * 4 and found["fedavg"].state == 0


def test_the_federation_is_described(chosen):
    f = chosen[-1].federation
    assert (f["clients"], f["per_round"], f["local_steps"], f["parameters"]) == (6, 3, [2, 2.0, 2], 650)
    problem = problem_of(experiment("fedavg"))
    each = torch.stack([problem.full_grad(problem.x0[None], [i])[0] for i in range(6)])
    mean = each.mean(0)
    expected = (each - mean).square().sum(1).mean() / mean.square().sum()
    assert f["gradient_dissimilarity"] == pytest.approx(float(expected), rel=1e-4)


def test_sentences_and_files_say_the_same(chosen):
    _, directory, _, found = chosen
    again = ud.load_choice(directory)
    assert str(again) == str(found) and again.contenders == found.contenders
    text = str(found)
    assert f"Take {found.best.spec}." in text and "4 seeds that nothing was tuned on" in text
    assert f"undrift run {directory / 'chosen.toml'}" in text
    json.loads((directory / "plan.json").read_text())
    tomllib.loads((directory / "chosen.toml").read_text())


def test_interrupted_anywhere_it_finds_the_same(chosen, tmp_path):
    ready, _, ended, found = chosen
    for count in range(len(ended)):  # a little further each time
        resumed = (
            ready
            if count % 2
            else prepare_choosing(experiment("fedavg", "scaffold-m"), given=SETTLED, directory=tmp_path / "again")
        )
        playing = carry_out(resumed, tmp_path / "again")
        next(playing)
        del playing  # which closes it
    opened = open_choosing(tmp_path / "again")
    assert list(carry_out(opened, tmp_path / "again")) == []
    again = conclude(opened, tmp_path / "again")
    assert again.contenders == found.contenders and again.chosen == found.chosen


def test_another_request_is_refused(chosen, tmp_path):
    _, directory, _, _ = chosen
    with pytest.raises(InvalidInput, match=r"holds another choice: given.rounds is 3 there and 4 here; --out"):
        prepare_choosing(experiment("fedavg", "scaffold-m"), given={**SETTLED, "rounds": 4}, directory=directory)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="exists and holds no choice: --out"):
        prepare_choosing(experiment("fedavg"), given=SETTLED, directory=tmp_path)


def test_a_method_that_does_not_fit_is_left_out_or_refused():
    e = experiment("fedavg", "mb-storm", "scaffnew")
    ready = prepare_choosing(e, given=SETTLED)
    assert "full participation" in ready.dropped["scaffnew"] and "scaffnew" not in ready.sweep.experiment.labels
    with pytest.raises(InvalidInput, match="full participation"):
        prepare_choosing(e, given=SETTLED, drop=False)


# Python


def test_a_problem_in_python():
    random = torch.Generator().manual_seed(0)
    X = torch.randn(200, 4, generator=random)
    problem = ud.federate(
        (X, (X[:, 0] > 0).long()), model=torch.nn.Linear(4, 2), loss=F.cross_entropy, clients=ud.IID(5)
    )
    found = ud.choose(
        problem, methods=["FedAvg", "fedhbm"], local=ud.Local(steps=3, batch=8), participation=ud.Uniform(2), **SETTLED
    )
    assert found.federation["clients"] == 5 and found.federation["per_round"] == 2
    assert {c.label for c in found.contenders} == {"fedavg", "fedhbm"} and "ud.compare" in found.next
    with pytest.raises(InvalidInput, match="out keeps"):
        ud.choose(problem, out="somewhere", **SETTLED)


def test_an_experiment_in_python(chosen, tmp_path):
    e = experiment("fedavg", "scaffold-m")
    found = ud.choose(e, out=tmp_path / "out", validate=0.2, **SETTLED)
    assert found.contenders == chosen[-1].contenders
    assert to_dict(e)["rounds"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"minutes": 0}, "minutes"),
        ({"rounds": 0}, "rounds"),
        ({"methods": ["fedagv"]}, "did you mean 'fedavg'"),
        ({"space": "wide"}, "unknown space"),
        ({"validate": 1.0}, "validate"),
    ],
)
def test_wrong_arguments_are_named(words, said):
    with pytest.raises(InvalidInput, match=said):
        ud.choose(experiment("fedavg"), **{**SETTLED, **words})
    with pytest.raises(InvalidInput, match="ud.federate"):
        ud.choose(lambda seed: ud.Quadratic(torch.eye(2).repeat(2, 1, 1), torch.ones(2, 2)))  # pyright: ignore[reportArgumentType]


# the command


def command(undrift, *words):
    return undrift("choose", "--clients", 8, "--model", "logistic", "--steps", 2, *words)


def test_the_command_plans_works_and_resumes(undrift):
    words = ["--methods", "fedavg,scaffold", "--trials", 2, "--rounds", 3, "--seeds", 2]
    dry = command(undrift, *words, "--dry")
    assert "plan: 2 trials x 2 seeds x 3 rounds" in dry.out and "Take" not in dry.out
    said = command(undrift, *words)
    assert said.code == 0 and "Take " in said.out and "runs/choose-digits/choice.json" in said.out
    again = undrift("resume", "runs/choose-digits")
    assert again.code == 0 and again.out[again.out.index("method ") :] == said.out[said.out.index("method ") :]
    assert "1/2" in said.out and "1/2" not in again.out  # nothing was left to do
    assert "is a choice" in undrift("resume", "runs/choose-digits", "--rounds", 5).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "--minutes"),
        (["--minutes", "0.0001", "--methods", "fedavg"], "--minutes 0.0001 is too little"),
        (["--methods", "fedagv"], "did you mean 'fedavg'"),
        (["--methods", "fedavg:lr=1"], "--methods takes names"),
        (["--rounds", "0"], "--rounds"),
        (["--trials", "0"], "--trials"),
        (["--async"], "virtual time"),
        (["none.toml"], "none.toml"),
    ],
)
def test_wrong_flags_are_named_in_a_line(undrift, words, said):
    got = (
        undrift("choose", "--model", "logistic", "--clients", 8, *words)
        if "none.toml" not in words
        else undrift("choose", *words)
    )
    assert got.code == 2 and said in got.err and len(got.err.strip().splitlines()) <= 2, got.err


def test_too_few_minutes_show_after_the_first_method_is_timed(monkeypatch):
    timed: list[str] = []
    monkeypatch.setattr(choosing, "_seconds", lambda experiment, search, problem: timed.append(search.label) or 100.0)
    with pytest.raises(InvalidInput, match="too little for 2 methods"):
        prepare_choosing(experiment("fedavg", "scaffold"), minutes=1.0)
    assert len(timed) == 1


def test_of_a_large_federation_some_gradients_are_looked_at_and_that_is_said(monkeypatch):
    for name, value in {"LARGE": 10, "CLIENTS": 3, "SAMPLES": 2}.items():
        monkeypatch.setattr(describe, name, value)
    found = prepare_choosing(experiment("fedavg"), given=SETTLED).federation
    assert found["gradients_of"] == 3 and found["gradient_dissimilarity"] > 0
    assert any("(of 3 clients and at most 2 samples of each)" in line for line in describe.federation_in_words(found))
