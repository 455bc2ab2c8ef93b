"""What a recipe says, and where recipes are."""

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any, cast

from pydantic import Field, ValidationError, model_validator

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config.section import Section, Whole
from undrift.experiments.recipes.claims import Claim

RECIPE = "recipe.toml"
FOLDER = "recipes"


class RecipeSearch(Section):
    """A sweep: an experiment file, a space (a file beside it, or a known name), trials of every method.

    `methods` are those of the experiment that are searched, all if not given.  `set` changes settings of the experiment,
    {"participation.per_round" = 5}; `take` those whose values an earlier search has chosen: {"local.lr" = "its name"}.
    """

    name: str
    experiment: str
    space: str
    methods: list[str] | None = None
    trials: Whole | None = Field(default=None, ge=1)
    seeds: Whole = Field(default=1, ge=1)
    sampler: str = "grid"
    held_out: float = 0.1  # the part of every client's training data
    set: dict[str, Any] = {}
    take: dict[str, str] = {}


class RecipeRun(Section):
    """What claims are about: an experiment file or the best of a search, with all of its seeds; or a function.

    `function` is "file.py:name", a function of `quick` (whether a coarse answer will do) that returns numbers by label, each a
    list with one per seed.
    """

    name: str
    experiment: str | None = None
    best: str | None = None
    function: str | None = None
    set: dict[str, Any] = {}
    take: dict[str, str] = {}

    @model_validator(mode="after")
    def _check(self) -> "RecipeRun":
        if sum(each is not None for each in (self.experiment, self.best, self.function)) != 1:
            raise InvalidInput(
                f"run {self.name!r}: give an experiment file, or best = the name of a search, or function = 'file.py:name'"
            )
        return self


class Recipe(Section):
    """A recipe.

    about, paper   a line for lists, and what is repeated
    summary        what held and what did not, and why, in words, for the page of all recipes
    data           data sets that its functions read (those of experiments are known)
    quick          settings under which its experiments take seconds
    """

    about: str
    paper: str
    summary: str = ""
    data: list[str] = []
    quick: dict[str, Any] = {}
    search: list[RecipeSearch] = []
    run: list[RecipeRun] = Field(min_length=1)
    claim: list[Claim] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        searches: list[str] = []
        for search in self.search:
            _check_known(search.take.values(), searches)
            searches.append(search.name)
        for run in self.run:
            _check_known([*run.take.values(), *([run.best] if run.best else [])], searches)
        for names in (searches, [run.name for run in self.run]):
            if len(set(names)) < len(names):
                raise InvalidInput(f"two parts have the same name: {', '.join(sorted(names))}")
        claims = [claim.claim for claim in self.claim]
        for claim in claims:
            if claims.count(claim) > 1:  # answers are recorded under the claim's words
                raise InvalidInput(f"two claims have the same words: {claim!r}")
        for claim in self.claim:
            for term in claim.terms:
                if term.partition("/")[0] not in [run.name for run in self.run]:
                    raise unknown(f"run in claim {claim.claim!r}:", term.partition("/")[0], [r.name for r in self.run])
        return self

    @property
    def files(self) -> list[str]:
        """The files beside it that it names, but for experiments' own."""
        named = [part.experiment for part in (*self.search, *self.run) if part.experiment]
        named += [search.space for search in self.search if search.space.endswith(".toml")]
        named += [run.function.partition(":")[0] for run in self.run if run.function]
        return sorted(set(named))


def _check_known(names: Iterable[str], searches: Sequence[str]) -> None:
    for name in names:
        if name not in searches:
            raise unknown("search", name, searches)


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe in a folder, and check that every file it names is there."""
    path = folder / RECIPE
    try:
        recipe = Recipe(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        raise explain_error(path, error) from None
    for name in recipe.files:
        if not (folder / name).exists():
            raise InvalidInput(f"{path} needs {name}, which is not beside it")
    return recipe


def settings_digest(folder: Path, recipe: Recipe) -> str:
    """A digest of all that decides what comes out: searches, runs, the files that they name and those that these `use`."""
    parts = recipe.model_dump(include={"search", "run"})
    text = json.dumps(parts, sort_keys=True).encode()
    described = [(folder / name).read_text(encoding="utf-8") for name in recipe.files if name.endswith(".toml")]
    used = {file for text in described for file in tomllib.loads(text).get("use", [])}  # which experiments run first
    files = [*recipe.files, *sorted(used - {*recipe.files})]
    return hashlib.sha256(b"\0".join([text, *((folder / name).read_bytes() for name in files)])).hexdigest()


_run_once = cache(run_path)


def function_of(folder: Path, name: str) -> Callable[[bool], Mapping[str, Sequence[float]]]:
    """The function "file.py:name" of a recipe."""
    file, _, function = name.partition(":")
    found = _run_once(str(folder / file)).get(function)
    if not callable(found):
        raise InvalidInput(f"{folder / file} has no function {function!r}, which {RECIPE} names")
    return cast(Any, found)


def explain_error(path: Path, error: ValidationError) -> InvalidInput:
    """The first thing that is wrong in a file, in one line."""
    first = error.errors()[0]
    place, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return InvalidInput(f"{path}: {place}: {message}")


def recipe_folders() -> list[Path]:
    """Where recipes may be: here, in the clone that the package is run from, or installed with it."""
    package = Path(__file__).parents[2]
    return list(dict.fromkeys([Path.cwd() / FOLDER, package.parent / FOLDER, package / FOLDER]))


def list_recipes(places: Sequence[Path] | None = None) -> dict[str, Path]:
    """The folder of every recipe, by name; of equal names the one in the first place."""
    places = recipe_folders() if places is None else places
    found = [path.parent for place in reversed(places) for path in place.glob(f"*/{RECIPE}")]
    return {folder.name: folder for folder in found}


def find_recipe(name: str, places: Sequence[Path] | None = None) -> Path:
    """The folder of a recipe, by its name or its path."""
    if (Path(name) / RECIPE).exists():
        return Path(name)
    recipes = list_recipes(places)
    if not recipes:
        looked = " and ".join(str(place) for place in places or recipe_folders())
        raise InvalidInput(f"there are no recipes in {looked}: give the path of a recipe's folder")
    if name not in recipes:
        raise unknown("recipe", name, recipes, listed_by="undrift reproduce")
    return recipes[name]
