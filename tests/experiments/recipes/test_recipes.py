"""Recipes: read, searched, run, resumed, and checked against their claims."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from undrift.cli.reproduce import describe_result, reproduce
from undrift.core.errors import InvalidInput
from undrift.experiments.config import read
from undrift.experiments.recipes.claims import Claim, ClaimResult, check_claims, read_claims
from undrift.experiments.recipes.recipe import find_recipe, list_recipes, read_recipe
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
"""
CLAIM: dict[str, Any] = {
    "claim": "late is not worse", "published": "in words", "of": "timed/fedavg", "against": "best/fedavg",
    "above": -1.0, "tolerance": 0.0,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "small"
    made.mkdir()
    (made / "plain.toml").write_text(EXPERIMENT + "[algorithms.scaffold]\n")
    (made / "timed.toml").write_text(
        EXPERIMENT.replace('engine = "sequential"', "population = {pace = 1.0}")
    )
    (made / "space.toml").write_text("[common]\nlocal.lr = [0.01, 0.3]\n")
    (made / "recipe.toml").write_text(RECIPE)
    (made / "expected.json").write_text(json.dumps([CLAIM]))
    return made


def test_a_recipe_is_searched_run_and_judged(folder: Path, capsys: Any) -> None:
    out = folder.parent / "out"
    reproduce(str(folder), out, jobs=1, keep=True)
    said = capsys.readouterr().out
    assert "late is not worse" in said and "in words" in said
    assert "late is not worse" in (out / "report.html").read_text()
    chosen = read(out / "search" / "lr" / "best.toml")
    assert chosen.labels == ["fedavg"]
    best = chosen.methods["fedavg"].local["lr"]
    for run in ("best", "timed"):
        for seed in (0, 1):
            one = read(out / "runs" / run / "fedavg" / f"seed-{seed}" / "experiment.toml")
            assert one.local.lr == best
    (claim,) = read_claims(folder / "expected.json")
    (kept,) = read_json(out / "claims.json")
    assert claim.ours is not None and claim.ours.by_seed == kept["by_seed"]
    assert kept["holds"] == "yes" and len(kept["by_seed"]) == 2
    (result,) = check_claims([claim], {name: out / "runs" / name for name in ("best", "timed")})
    assert result.as_recorded

    # called again it goes on, and finds the same
    shutil.rmtree(out / "runs" / "timed")
    reproduce(str(folder), out, jobs=1, quiet=True)
    assert read_json(out / "claims.json") == [
        kept | {"ours": claim.ours.model_dump(), "as_recorded": True}
    ]

    # a recipe that has changed is not mixed with runs of another
    timed = folder / "timed.toml"
    timed.write_text(timed.read_text().replace("rounds = 6", "rounds = 7"))
    with pytest.raises(InvalidInput, match="other rounds than the recipe now has"):
        reproduce(str(folder), out, jobs=1, quiet=True)


def of(values: list[float], **words: Any) -> ClaimResult:
    return ClaimResult(Claim(**{**CLAIM, "above": 0.0, **words}), tuple(values))


def test_a_claim_holds_with_every_seed_or_in_the_mean_or_not() -> None:
    assert of([0.1, 0.2]).holds == "yes"
    assert of([0.5, -0.1]).holds == "in the mean"
    assert of([0.1, -0.5]).holds == "no"
    slower = {"above": None, "below": 1.5, "by": "ratio", "measure": "rounds", "target": 0.8}
    assert of([1.0, 1.4], **slower).holds == "yes"
    assert of([1.0, math.inf], **slower).holds == "no"
    assert describe_result(of([1.0, math.inf], **slower))["here"] == "never reached"
    assert describe_result(of([0.01, 0.02]))["here"] == "+1.50 ± 0.71 points"


def test_as_recorded_is_within_the_tolerance() -> None:
    ours = {"by_seed": [0.1, 0.3], "mean": 0.2, "std": 0.1}
    assert of([0.15, 0.3], ours=ours, tolerance=0.03).as_recorded
    assert not of([0.15, 0.3], ours=ours, tolerance=0.02).as_recorded
    never = {"by_seed": [None, 0.3], "mean": None, "std": None}
    assert of([math.inf, 0.3], ours=never).as_recorded
    assert not of([0.1, 0.3], ours=never).as_recorded


@pytest.mark.parametrize("file, old, new, message", [
    ("recipe.toml", 'best = "lr"', 'best = "lrs"', "unknown search 'lrs'; did you mean 'lr'"),
    ("recipe.toml", 'best = "lr"', "", "give an experiment file, or best"),
    ("recipe.toml", "plain.toml", "plan.toml", "needs plan.toml, which is not beside it"),
    ("recipe.toml", 'methods = ["fedavg"]', 'methods = ["fedavgm"]', "unknown method of the experiment: 'fedavgm'"),
    ("recipe.toml", 'about = "a small one"', "", "about: Field required"),
    ("expected.json", '"above": -1.0, ', "", "give one bound"),
    ("expected.json", '"above": -1.0', '"above": -1.0, "target": 0.5', "a target belongs to"),
    ("expected.json", '"tolerance": 0.0', '"tolerence": 0.0', "tolerance"),
])  # fmt: skip
def test_what_is_wrong_in_a_recipe_is_named(
    folder: Path, file: str, old: str, new: str, message: str
) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(InvalidInput, match=message):
        reproduce(str(folder), folder.parent / "out", quiet=True)
    assert not (folder.parent / "out").exists()


def test_recipes_are_found_by_name_and_missing_ones_explained(folder: Path, tmp_path: Path) -> None:
    assert find_recipe("small", [tmp_path]) == folder == find_recipe(str(folder))
    with pytest.raises(InvalidInput, match="did you mean 'small'"):
        find_recipe("smal", [tmp_path])
    with pytest.raises(InvalidInput, match="they come with a clone of the project"):
        find_recipe("small", [tmp_path / "nowhere"])


def test_recipes_of_the_clone_are_found_from_anywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list_recipes() == list_recipes([OWN])
    mine = tmp_path / "recipes" / "autonomous-fedgm"
    mine.parent.mkdir()
    folder.rename(mine)
    assert find_recipe("autonomous-fedgm") == mine  # those in the current directory come first


@pytest.mark.parametrize("name", sorted(list_recipes([OWN])))
def test_our_own_recipes_can_be_read(name: str) -> None:
    folder = OWN / name
    recipe = read_recipe(folder)
    labels = {
        f"{run.name}/{label}"
        for run in recipe.run
        for source in [
            run.experiment or next(s.experiment for s in recipe.search if s.name == run.best)
        ]
        for label in read(folder / source).labels
    }
    for claim in read_claims(folder / "expected.json"):
        assert {claim.of, claim.against or claim.of} <= labels
        assert claim.ours is not None, "undrift reproduce NAME --record writes what came out"
    for search in recipe.search:
        file = search.space.endswith(".toml")
        assert space_of(str(folder / search.space) if file else search.space).rows is not None
    assert (folder / "README.md").exists()
