"""What a recipe says, and where recipes are."""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config.section import Section, Whole

RECIPE, EXPECTED = "recipe.toml", "expected.json"
FOLDER = "recipes"


class RecipeSearch(Section):
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


class RecipeRun(Section):
    """Runs that claims are about: an experiment file, or the best of a search, with all of its seeds."""

    name: str
    experiment: str | None = None
    best: str | None = None
    take: dict[str, str] = {}

    @model_validator(mode="after")
    def _check(self) -> "RecipeRun":
        if (self.experiment is None) == (self.best is None):
            raise InvalidInput(
                f"run {self.name!r}: give an experiment file, or best = the name of a search"
            )
        return self


class Recipe(Section):
    """A recipe; `about` is a line for lists."""

    about: str
    paper: str
    search: list[RecipeSearch] = []
    run: list[RecipeRun] = Field(min_length=1)

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
        return self


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
    files = [part.experiment for part in (*recipe.search, *recipe.run) if part.experiment]
    files += [search.space for search in recipe.search if search.space.endswith(".toml")]
    for name in [*files, EXPECTED]:
        if not (folder / name).exists():
            raise InvalidInput(f"{path} needs {name}, which is not beside it")
    return recipe


def explain_error(path: Path, error: ValidationError) -> InvalidInput:
    """The first thing that is wrong in a file, in one line."""
    first = error.errors()[0]
    place, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return InvalidInput(f"{path}: {place}: {message}")


def recipe_folders() -> list[Path]:
    """Where recipes may be: here, or in the clone that the package is run from."""
    return list(dict.fromkeys([Path.cwd() / FOLDER, Path(__file__).parents[3] / FOLDER]))


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
        raise InvalidInput(
            f"there are no recipes in {looked}: they come with a clone of the project, not with the installed package; "
            "call it from there, or give the path of a recipe's folder"
        )
    if name not in recipes:
        raise unknown("recipe", name, sorted(recipes))
    return recipes[name]
