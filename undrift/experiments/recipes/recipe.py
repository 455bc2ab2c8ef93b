"""What a recipe says, and where recipes are."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config.section import Section, Whole

RECIPE, EXPECTED = "recipe.toml", "expected.json"
FOLDER = "recipes"


class Search(Section):
    """A sweep: an experiment file, a space (a file beside it, or a known name), trials of every method.

    `methods` are those of the experiment that are searched, all if not given.  `take` has settings whose values an earlier
    search has chosen: {"local.lr" = "name of the search"}.
    """

    name: str
    experiment: str
    space: str
    methods: list[str] | None = None
    trials: Whole | None = Field(default=None, ge=1)
    seeds: Whole = Field(default=1, ge=1)
    sampler: str = "grid"
    held_out: float = 0.1  # the part of every client's training data
    take: dict[str, str] = {}


class Run(Section):
    """Runs that claims are about: an experiment file, or the best of a search, with all of its seeds."""

    name: str
    experiment: str | None = None
    best: str | None = None
    take: dict[str, str] = {}

    @model_validator(mode="after")
    def _one(self) -> "Run":
        if (self.experiment is None) == (self.best is None):
            raise InvalidInput(
                f"run {self.name!r}: give an experiment file, or best = the name of a search"
            )
        return self


class Recipe(Section):
    """A recipe; `about` is a line for lists."""

    about: str
    paper: str
    search: list[Search] = []
    run: list[Run] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        known: list[str] = []
        for each in self.search:
            _known(each.take.values(), known)
            known.append(each.name)
        for each in self.run:
            _known([*each.take.values(), *([each.best] if each.best else [])], known)
        for names in (known, [each.name for each in self.run]):
            if len(set(names)) < len(names):
                raise InvalidInput(f"two parts have one name: {', '.join(sorted(names))}")
        return self


def _known(names: Any, known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown("search", name, known)


def read_recipe(folder: Path) -> Recipe:
    """The recipe in a folder; every file that it names is there."""
    path = folder / RECIPE
    try:
        recipe = Recipe(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidInput(
            f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    named = [e.experiment for e in (*recipe.search, *recipe.run) if e.experiment]
    for name in [*named, *(s.space for s in recipe.search if s.space.endswith(".toml")), EXPECTED]:
        if not (folder / name).exists():
            raise InvalidInput(f"{path} needs {name}, which is not beside it")
    return recipe


def folders() -> list[Path]:
    """Where recipes may be: here, or in the clone that the package is run from."""
    return list(dict.fromkeys([Path.cwd() / FOLDER, Path(__file__).parents[2] / FOLDER]))


def recipes_there(places: Sequence[Path] | None = None) -> dict[str, Path]:
    """Every recipe by its name."""
    found = [path.parent for place in places or folders() for path in place.glob(f"*/{RECIPE}")]
    return {folder.name: folder for folder in sorted(found, reverse=True)}


def find_recipe(name: str, places: Sequence[Path] | None = None) -> Path:
    """The folder of a recipe, by its name or its path."""
    if (Path(name) / RECIPE).exists():
        return Path(name)
    there = recipes_there(places)
    if not there:
        looked = " and ".join(str(place) for place in places or folders())
        raise InvalidInput(
            f"there are no recipes in {looked}: they come with a clone of the project, not with the installed package; "
            "call it from there, or give the path of a recipe's folder"
        )
    if name not in there:
        raise unknown("recipe", name, sorted(there))
    return there[name]
