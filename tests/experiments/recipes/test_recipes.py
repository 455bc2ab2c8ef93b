"""Recipes: read, searched, run, resumed, recorded, and checked against their claims."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.real_data import real_data
from tests.support.run_directories import DOWN, UP, write_comparison, write_run
from undrift.cli.reproduce import reproduce
from undrift.core.errors import InvalidInput
from undrift.experiments.config import read
from undrift.experiments.recipes.claims import Claim, ClaimResult, Measurements, check_claims, methods_of
from undrift.experiments.recipes.page import describe_result, render_page
from undrift.experiments.recipes.recipe import find_recipe, list_recipes, read_recipe, settings_digest
from undrift.experiments.recipes.results import RecordedClaim, check_current, outdated, read_results, reproduced
from undrift.experiments.report.load import load_runs
from undrift.experiments.runs.files import read_json
from undrift.experiments.sweeps.spaces import space_of

OWN = Path(__file__).parents[3] / "recipes"
EXPERIMENT = """
rounds = 6
seeds = 2
threads = 1
engine = "sequential"
model = "logistic"
clients = {partition = "dirichlet", number = 6, alpha = 0.3}
participation = {per_round = 3}
local = {steps = 2, batch = 8}
[algorithms.fedavg]
"""
RECIPE = """
about = "a small one"
paper = "none"
summary = "All of it held."
quick = {rounds = 2, seeds = 1}
[[search]]
name = "lr"
experiment = "plain.toml"
space = "space.toml"
methods = ["fedavg"]
[[run]]
name = "best"
best = "lr"
[[run]]
name = "timed"
experiment = "timed.toml"
take = {"local.lr" = "lr"}
set = {"participation.per_round" = 2}
[[run]]
name = "numbers"
function = "numbers.py:squares"
[[claim]]
claim = "late is not worse"
published = "in words"
source = "Fig. 1"
of = "timed/fedavg"
against = "best/fedavg"
above = -1.0
[[claim]]
claim = "squares ascend"
published = "always"
cell = true
measure = "number"
order = ["numbers/one", "numbers/two", "numbers/three"]
[[claim]]
claim = "it takes time to a quality"
published = "some"
measure = "seconds"
target = 0.01
of = "best/fedavg"
above = 0.0
"""
NUMBERS = """
def squares(quick):
    return {name: [k**2, k**2 + 0.5] for k, name in enumerate(("one", "two", "three"), 1)}
"""
README = """# Small

<!-- results: written by `undrift reproduce --record` -->
before
<!-- end of results -->

The end.
"""
PAIR: dict[str, Any] = {"claim": "a", "published": "b", "of": "r/a", "against": "r/b", "above": 0.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "small"
    made.mkdir()
    (made / "plain.toml").write_text(EXPERIMENT + "[algorithms.scaffold]\n")
    (made / "timed.toml").write_text(EXPERIMENT.replace('engine = "sequential"', "population = {pace = 1.0}"))
    (made / "space.toml").write_text("[common]\nlocal.lr = [0.01, 0.3]\n")
    (made / "recipe.toml").write_text(RECIPE)
    (made / "numbers.py").write_text(NUMBERS)
    (made / "README.md").write_text(README)
    return made


def test_a_recipe_is_searched_run_judged_and_recorded(folder: Path, capsys: Any) -> None:
    out = folder.parent / "out"
    reproduce([str(folder)], out=out, jobs=1, keep=True)
    said = capsys.readouterr().out
    assert "late is not worse" in said and "in words" in said
    assert "late is not worse" in (out / "report.html").read_text()
    chosen = read(out / "search" / "lr" / "best.toml")
    assert chosen.labels == ["fedavg"]
    best = chosen.methods["fedavg"].local["lr"]
    for run, per_round in (("best", 3), ("timed", 2)):
        for seed in (0, 1):
            one = read(out / "runs" / run / "fedavg" / f"seed-{seed}" / "experiment.toml")
            assert one.local.lr == best and one.participation.per_round == per_round
    recipe = read_recipe(folder)
    results = check_current(folder, recipe)
    kept = read_json(out / "claims.json")
    assert [each.by_seed for each in results.claims] == [each["by_seed"] for each in kept]
    assert results.claims[1].by_seed == [3.0, 3.0] and results.claims[1].holds == "yes"
    runs = load_runs([out / "runs" / "best"]).methods[0].runs
    firsts = [int((run.evaluated & (run.metrics["accuracy"] >= 0.01)).argmax()) for run in runs]
    spent = [float(run.seconds[: first + 1].sum()) for run, first in zip(runs, firsts, strict=True)]
    assert results.claims[2].by_seed == pytest.approx(spent, rel=1e-9)
    assert set(results.methods) == {"best/fedavg", "timed/fedavg"}
    readme = (folder / "README.md").read_text()
    assert "| late is not worse | in words (Fig. 1) |" in readme and "before" not in readme and "The end." in readme
    assert (folder / "curves.png").read_bytes()[:4] == b"\x89PNG"
    page = render_page({"small": folder})
    assert "3 claims: 3 hold" in page and "undrift reproduce small" in page
    assert (
        "| [small](#small) | 3 | 0 | 0 |" in page and "Of 1 cells of tables that others have published, 1 are" in page
    )
    assert "- **small.** All of it held." in page

    # called again it goes on, and finds the same
    shutil.rmtree(out / "runs" / "timed")
    reproduce([str(folder)], out=out, jobs=1, quiet=True)
    assert read_json(out / "claims.json") == kept

    # a recipe that has changed is not mixed with runs or results of another
    timed = folder / "timed.toml"
    timed.write_text(timed.read_text().replace("rounds = 6", "rounds = 7"))
    assert "have changed" in str(outdated(folder, recipe))
    with pytest.raises(InvalidInput, match="have changed since results were recorded"):
        render_page({"small": folder})
    with pytest.raises(InvalidInput, match="other rounds than the recipe now has"):
        reproduce([str(folder)], out=out, jobs=1, quiet=True)
    (folder / "results.json").unlink()
    with pytest.raises(InvalidInput, match="nothing has been recorded yet"):
        render_page({"small": folder})


def test_the_quick_form_records_nothing(folder: Path) -> None:
    out = folder.parent / "out"
    reproduce([str(folder)], quick=True, out=out, jobs=1, quiet=True)
    assert read(out / "runs" / "timed" / "experiment.toml").rounds == 2
    assert read_results(folder) is None
    with pytest.raises(InvalidInput, match="leave out --record"):
        reproduce([str(folder)], quick=True, keep=True)


def test_a_recipe_of_numbers_has_a_picture_and_its_old_results_are_not_shown(folder: Path, capsys: Any) -> None:
    head, *parts = RECIPE.split("[[")
    (folder / "recipe.toml").write_text("[[".join([head, *(part for part in parts if "numbers" in part)]))
    out = folder.parent / "out"
    reproduce([str(folder)], out=out, keep=True, quiet=True)
    assert (folder / "curves.png").read_bytes()[:4] == b"\x89PNG"
    capsys.readouterr()
    reproduce([str(folder)], out=out)
    assert capsys.readouterr().out.count("+3 ± 0") == 2  # recorded and here
    (folder / "numbers.py").write_text(NUMBERS + "# changed\n")
    reproduce([str(folder)], out=out)
    said = capsys.readouterr()
    assert said.out.count("+3 ± 0") == 1  # here alone
    assert "have changed since results were recorded: they are not shown" in said.err


def test_all_says_if_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("undrift.cli.reproduce.list_recipes", dict)
    reproduce(everything=True)
    assert "every recipe has recorded results" in capsys.readouterr().out


def test_names_and_all_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="not both"):
        reproduce(["cheng"], everything=True)
    with pytest.raises(InvalidInput, match="the place of one recipe"):
        reproduce(["cheng", "ghbm"], out=Path("here"))


def of(values: list[float], **words: Any) -> ClaimResult:
    return ClaimResult(Claim(**{**PAIR, **words}), tuple(values))


def test_a_claim_holds_with_every_seed_or_in_the_mean_or_not() -> None:
    assert of([0.1, 0.2]).holds == "yes"
    assert of([0.5, -0.1]).holds == "in the mean"
    assert of([0.1, -0.5]).holds == "no"
    slower = {"above": None, "below": 1.5, "by": "ratio", "measure": "rounds", "target": 0.8}
    assert of([1.0, 1.4], **slower).holds == "yes"
    assert of([1.0, math.inf], **slower).holds == "no"
    assert describe_result(of([1.0, math.inf], **slower), None)["here"] == "never reached"
    assert describe_result(of([0.01, 0.02]), None)["here"] == "+1.50 ± 0.71 points (2 seeds)"


def test_a_number_is_as_published_within_its_spread_or_a_bound() -> None:
    number = {"against": None, "above": None, "equals": 0.75}
    assert of([0.76, 0.77], **number, within=0.02).holds == "yes"
    assert of([0.76, 0.80], **number, within=0.02).holds == "no"
    assert of([0.785, 0.785], **number, spread=0.02).holds == "yes"  # 2 sd
    assert of([0.80, 0.80], **number, spread=0.02).holds == "no"
    assert of([0.70, 0.90], **number, spread=0.0).holds == "yes"  # our own spread counts too
    assert of([0.80, 0.80], **number, spread=0.02, within=0.011).holds == "yes"


def test_terms_are_ordered_and_paired_by_seed() -> None:
    numbers = {f"r/{k}": {0: float(k), 1: 10.0 * k} for k in (1, 2, 4)}
    measured = Measurements({}, numbers)
    order = Claim(claim="up", published="", measure="number", order=["r/1", "r/2", "r/4"])
    down = Claim(claim="down", published="", measure="number", order=["r/4", "r/2"])
    gap = Claim(claim="gap", published="", measure="number", of="r/4 - r/2", against="r/2 - r/1", above=0.0)
    ratio = Claim(claim="ratio", published="", measure="number", of="r/4", against="r/2", by="ratio", below=3.0)
    results = check_claims([order, down, gap, ratio], measured)
    assert [each.by_seed for each in results] == [(1.0, 10.0), (-2.0, -20.0), (1.0, 10.0), (2.0, 2.0)]
    assert [each.holds for each in results] == ["yes", "no", "yes", "yes"]
    unpaired = Measurements({}, numbers | {"r/4": {0: 1.0}})
    with pytest.raises(InvalidInput, match="different seeds"):
        check_claims([order], unpaired)


def test_costs_to_a_target_are_those_of_the_first_round_that_reaches_it(tmp_path: Path) -> None:
    (method,) = load_runs([write_run(tmp_path / "run", [0.1, 0.5, 0.9])]).methods
    for measure, cost in (("rounds", 2), ("bytes", 2 * (DOWN + UP)), ("uplink bytes", 2 * UP)):
        claim = Claim.model_validate(PAIR | {"of": "r/a", "against": None, "measure": measure, "target": 0.4})
        assert check_claims([claim], Measurements({"r/a": method}, {}))[0].by_seed == (cost,)


def test_a_ratio_to_what_never_reaches_the_target_is_an_upper_bound(tmp_path: Path) -> None:
    curves = {"fast": [0.1, 0.9, 0.9, 0.9], "never": [0.1, 0.2, 0.3, 0.3]}
    runs = {
        f"r/{name}": load_runs([write_run(tmp_path / name, curve, name=name)]).methods[0]
        for name, curve in curves.items()
    }
    cost = {"measure": "rounds", "target": 0.8, "by": "ratio", "above": None, "below": 0.4}
    ahead = Claim.model_validate(PAIR | cost | {"of": "r/fast", "against": "r/never"})
    behind = Claim.model_validate(PAIR | cost | {"of": "r/never", "against": "r/fast"})
    both = Claim.model_validate(PAIR | cost | {"of": "r/never", "against": "r/never"})
    results = check_claims([ahead, behind, both], Measurements(runs, {}))
    assert [each.by_seed for each in results] == [(0.5,), (math.inf,), (math.inf,)]
    assert [each.holds for each in results] == ["no", "no", "no"]
    large = ahead.model_copy(update={"above": 0.4, "below": None})  # which an upper bound does not show
    assert check_claims([large], Measurements(runs, {}))[0].holds == "no"


ABSENT = math.nan, math.inf


@pytest.mark.parametrize("absent", ABSENT)
@pytest.mark.parametrize("bound", ["above", "below"])
def test_what_is_not_there_never_helps_a_claim(absent: float, bound: str) -> None:
    for by, good in (("difference", {"above": -9.0, "below": 9.0}), ("ratio", {"above": 0.1, "below": 9.0})):
        for of, against in ((absent, 1.0), (1.0, absent), (absent, absent)):
            words = {"measure": "number", "by": by, "above": None, bound: good[bound]}
            claim = Claim.model_validate(PAIR | words)
            numbers = {"r/a": {0: 1.0, 1: of}, "r/b": {0: 1.0, 1: against}}
            (result,) = check_claims([claim], Measurements({}, numbers))
            assert result.by_seed[0] in (0.0, 1.0) and result.holds == "no", (by, of, against)
    for place in range(3):
        rising = {f"r/{k}": {0: float(k) if k != place else absent} for k in range(3)}
        claim = Claim(claim="up", published="", measure="number", order=["r/0", "r/1", "r/2"])
        never_is_last = math.isinf(absent) and place == 2  # which is more than any number
        assert check_claims([claim], Measurements({}, rising))[0].holds == ("yes" if never_is_last else "no")


@pytest.mark.parametrize("of, against", [(-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_ratio_is_of_positive_numbers(of: float, against: float) -> None:
    for bound in ({"above": None, "below": 2.0}, {"above": -2.0}):
        claim = Claim.model_validate(PAIR | {"measure": "number", "by": "ratio"} | bound)
        (result,) = check_claims([claim], Measurements({}, {"r/a": {0: of}, "r/b": {0: against}}))
        assert math.isnan(result.by_seed[0]) and result.holds == "no"


def test_a_difference_of_lower_bounds_is_none(tmp_path: Path) -> None:
    curves = {"a": [0.1, 0.9, 0.9, 0.9], "b": [0.1, 0.2, 0.9, 0.9], "never": [0.1, 0.2, 0.3, 0.3]}
    runs = {f"r/{n}": load_runs([write_run(tmp_path / n, c, name=n)]).methods[0] for n, c in curves.items()}
    words = {"measure": "rounds", "target": 0.8, "by": "ratio", "above": None, "below": 3.0, "of": "r/a"}
    known = Claim.model_validate(PAIR | words | {"against": "r/never - r/b"})  # at least 4 - 3
    unknown = Claim.model_validate(PAIR | words | {"against": "r/b - r/never"})
    results = check_claims([known, unknown], Measurements(runs, {}))
    assert [each.by_seed[0] for each in results][0] == 2.0 and results[0].holds == "yes"
    assert math.isnan(results[1].by_seed[0]) and results[1].holds == "no"


def test_a_run_that_ended_early_has_no_quality(tmp_path: Path) -> None:
    curve = [0.1, 0.5, 0.9]
    whole = load_runs([write_run(tmp_path / "b", curve, name="b")]).methods[0]
    endings: dict[str, dict[str, Any]] = {"diverged": {"stopped": "nan"}, "killed": {"planned": 4, "ended": False}}
    for name, words in endings.items():
        early = load_runs([write_run(tmp_path / name, curve, name="a", **words)]).methods[0]
        measured = Measurements({"r/a": early, "r/b": whole if name == "diverged" else early}, {})
        for measure in ("final", "best"):
            claim = Claim.model_validate(PAIR | {"measure": measure, "against": None, "above": 0.2})
            assert check_claims([claim], measured)[0].holds == "no"
            against = Claim.model_validate(PAIR | {"measure": measure, "of": "r/b", "against": "r/a", "above": -1.0})
            assert check_claims([against], measured)[0].holds == "no"
            assert describe_result(check_claims([against], measured)[0], None)["here"] == "not finite"
        cost = {"measure": "rounds", "against": None, "above": None, "below": 4.0, "target": 0.5}
        assert check_claims([Claim.model_validate(PAIR | cost)], measured)[0].by_seed == (2.0,)  # before it ended
        aimed = Claim.model_validate(PAIR | cost | {"of": "r/b", "target": "r/a"})
        assert check_claims([aimed], measured)[0].holds == "no"


def test_a_seed_that_is_missing_or_was_never_evaluated_counts(tmp_path: Path) -> None:
    place = write_comparison(tmp_path / "run", {"a": [[0.5, 0.9], [0.5, 0.9], [0.5, 0.9]]})
    claim = Claim.model_validate(PAIR | {"against": None, "above": 0.2})
    reach = {"measure": "rounds", "target": 0.5, "above": None, "below": 9.0}
    costs = Claim.model_validate(PAIR | {"against": None, **reach})
    asked = [claim, costs]
    results = check_claims(asked, Measurements(methods_of({"r": load_runs([place])}), {}))
    assert [each.holds for each in results] == ["yes", "yes"]
    metrics = place / "a" / "seed-1" / "metrics.jsonl"
    metrics.write_text("")
    records = load_runs([place])
    assert [run.seed for run in records.methods[0].runs] == [0, 2] and len(records.not_evaluated) == 1
    results = check_claims(asked, Measurements(methods_of({"r": records}), {}))
    assert [math.isnan(each.by_seed[1]) for each in results] == [True, True]
    assert [each.holds for each in results] == ["no", "no"]
    shutil.rmtree(place / "a" / "seed-1")
    results = check_claims(asked, Measurements(methods_of({"r": load_runs([place])}), {}))
    assert [len(each.by_seed) for each in results] == [3, 3] and [each.holds for each in results] == ["no", "no"]
    with pytest.raises(InvalidInput, match="empty list"):
        none = Claim.model_validate(PAIR | {"measure": "number", "against": None})
        check_claims([none], Measurements({}, {"r/a": {}}))


def test_runs_of_other_lengths_or_evaluations_are_not_compared(tmp_path: Path) -> None:
    def method(name: str, rounds: int, every: int) -> Any:
        return load_runs([write_run(tmp_path / name, [0.5] * (rounds // every), every=every)]).methods[0]

    methods = {"r/a": method("a", 4, 1), "r/b": method("b", 4, 2), "r/c": method("c", 8, 1)}
    reach = {"measure": "rounds", "target": 0.4, "by": "ratio", "above": None, "below": 2.0}
    for other in ("r/b", "r/c"):
        for words in ({}, reach, {"of": None, "against": None, "above": None, "order": ["r/a", other]}):
            against = {} if "order" in words else {"against": other}
            claim = Claim.model_validate(PAIR | words | against)
            with pytest.raises(InvalidInput, match=f"compares r/a with {other}, whose runs have other rounds"):
                check_claims([claim], Measurements(methods, {}))


def test_an_answer_to_another_question_is_out_of_date(folder: Path) -> None:
    out = folder.parent / "out"
    reproduce([str(folder)], out=out, jobs=1, keep=True, quiet=True)
    path, text = folder / "recipe.toml", (folder / "recipe.toml").read_text()
    assert outdated(folder, read_recipe(folder)) is None
    for old, new in (
        ("above = -1.0", "above = 1.0"),  # the answer would be another
        ('against = "best/fedavg"', 'against = "timed/fedavg"'),
        ('order = ["numbers/one", "numbers/two", ', 'order = ["numbers/one", '),
        ("target = 0.01", "target = 0.02"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        assert "has changed since its answer was recorded" in str(outdated(folder, read_recipe(folder)))
    path.write_text(text.replace("above = -1.0", "above = -2.0").replace('"in words"', '"in other words"'))
    assert outdated(folder, read_recipe(folder)) is None  # the same answer
    path.write_text(text.replace("squares ascend", "late is not worse"))
    with pytest.raises(InvalidInput, match="two claims have the same words: 'late is not worse'"):
        read_recipe(folder)


def test_reproduced_is_within_the_recorded_spread() -> None:
    ours = RecordedClaim(claim="a", by_seed=[0.1, 0.3], mean=0.2, std=0.1, holds="yes")
    assert reproduced(of([0.15, 0.3]), ours) and reproduced(of([0.15, 0.3]), None) is None
    assert not reproduced(of([0.6, 0.7]), ours)
    assert not reproduced(of([-0.05, 0.4]), ours)  # in the mean only
    never = RecordedClaim(claim="a", by_seed=[None, 0.3], mean=None, std=None, holds="no")
    assert reproduced(of([math.inf, 0.3]), never)
    assert not reproduced(of([0.1, 0.3]), never)


@pytest.mark.parametrize("old, new, message", [
    ('best = "lr"', 'best = "lrs"', "unknown search 'lrs'; did you mean 'lr'"),
    ('best = "lr"', "", "give an experiment file, or best"),
    ("plain.toml", "plan.toml", "needs plan.toml, which is not beside it"),
    ("numbers.py", "number.py", "needs number.py, which is not beside it"),
    (":squares", ":cubes", "has no function 'cubes'"),
    ('methods = ["fedavg"]', 'methods = ["fedavgm"]', "unknown method of the experiment: 'fedavgm'"),
    ('about = "a small one"', "", "about: Field required"),
    ("above = -1.0", "", "give one bound"),
    ("above = -1.0", "above = -1.0\ntarget = 0.5", "a target belongs to"),
    ("above = -1.0", "equals = 1.0", "needs `within` or `spread`"),
    ('of = "timed/fedavg"', 'of = "times/fedavg"', "did you mean 'timed'"),
    ("numbers/three", "numbers/four", "unknown number of a function"),
    ('of = "timed/fedavg"', 'order = ["timed/fedavg"]', "`order` has two terms or more"),
])  # fmt: skip
def test_what_is_wrong_in_a_recipe_is_named(folder: Path, old: str, new: str, message: str) -> None:
    text = (folder / "recipe.toml").read_text()
    assert old in text
    (folder / "recipe.toml").write_text(text.replace(old, new))
    with pytest.raises(InvalidInput, match=message):
        reproduce([str(folder)], out=folder.parent / "out", quick=True, jobs=1, quiet=True)


@pytest.mark.parametrize("file, old, new, message", [
    ("timed.toml", "rounds = 6", 'rounds = 6\ndata = "cifar100"', "cifar-100"),
    ("recipe.toml", 'paper = "none"', 'paper = "none"\ndata = ["heart"]', "processed.cleveland.data"),  # a function's
])  # fmt: skip
def test_missing_data_are_named_before_anything_runs(
    folder: Path, file: str, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(folder.parent))
    (folder / file).write_text((folder / file).read_text().replace(old, new))
    with pytest.raises(InvalidInput, match=message):
        reproduce([str(folder)], out=folder.parent / "out", jobs=1, quiet=True)
    assert not (folder.parent / "out").exists()


def test_files_that_experiments_use_belong_to_the_recipe(folder: Path) -> None:
    (folder / "plain.toml").write_text('use = ["own.py"]\n' + (folder / "plain.toml").read_text())
    (folder / "own.py").write_text("A = 1\n")
    before = settings_digest(folder, read_recipe(folder))
    (folder / "own.py").write_text("A = 2\n")
    assert settings_digest(folder, read_recipe(folder)) != before


def test_recipes_are_found_by_name_and_missing_ones_explained(folder: Path, tmp_path: Path) -> None:
    assert find_recipe("small", [tmp_path]) == folder == find_recipe(str(folder))
    with pytest.raises(InvalidInput, match="did you mean 'small'"):
        find_recipe("smal", [tmp_path])
    with pytest.raises(InvalidInput, match="there are no recipes in"):
        find_recipe("small", [tmp_path / "nowhere"])


def test_recipes_of_the_clone_are_found_from_anywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = Path(ud.__file__).with_name("recipes")  # where the package is installed, they come with it
    assert list_recipes() == list_recipes([shipped if shipped.exists() else OWN])
    mine = tmp_path / "recipes" / "theory"
    mine.parent.mkdir()
    folder.rename(mine)
    assert find_recipe("theory") == mine  # those in the current directory come first


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("name", sorted(list_recipes([OWN])))
def test_our_own_recipes_are_whole_and_their_results_are_theirs(name: str) -> None:
    folder = OWN / name
    recipe = read_recipe(folder)
    results = check_current(folder, recipe)
    assert recipe.summary and (folder / "curves.png").exists()
    for claim in recipe.claim:  # a cell that is missed is explained
        assert (
            not claim.cell
            or claim.why
            or [each.holds for each in results.claims if each.claim == claim.claim] == ["yes"]
        )
    labels = {
        f"{run.name}/{label}"
        for run in recipe.run
        if not run.function
        for source in [run.experiment or next(s.experiment for s in recipe.search if s.name == run.best)]
        for label in read(folder / source).labels
    }
    for claim in recipe.claim:
        assert claim.measure == "number" or {*claim.terms} <= labels
    for search in recipe.search:
        file = search.space.endswith(".toml")
        assert space_of(str(folder / search.space) if file else search.space).rows is not None
    assert len((folder / "README.md").read_text()) > 500


def test_the_page_is_what_is_recorded() -> None:
    page = Path(__file__).parents[3] / "docs" / "reproductions.md"
    assert page.read_text() == render_page(list_recipes([OWN])), "undrift reproduce --page docs/reproductions.md"


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("name", sorted(list_recipes([OWN])))
def test_the_quick_form_of_our_own_recipes_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(real_data()))
    reproduce([str(OWN / name)], quick=True, out=tmp_path / "out", jobs=1, quiet=True)
    assert len(read_json(tmp_path / "out" / "claims.json")) == len(read_recipe(OWN / name).claim)
