"""undrift reproduce."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from undrift.cli import options as o
from undrift.cli.runs import execute, resume
from undrift.cli.sweeps import run_and_report
from undrift.cli.tables import make_console, make_table
from undrift.core.errors import InvalidInput
from undrift.experiments.config import Experiment, read
from undrift.experiments.recipes.claims import (
    ClaimResult,
    check_claims,
    read_claims,
    record_results,
)
from undrift.experiments.recipes.recipe import (
    EXPECTED,
    RecipeRun,
    RecipeSearch,
    find_recipe,
    list_recipes,
    read_recipe,
)
from undrift.experiments.runs.directory import RunDirectory
from undrift.experiments.runs.files import write_json
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.spaces import space_of
from undrift.experiments.sweeps.sweeping import BEST

CLAIMS = "claims.json"
COLUMNS = ("claim", "published", "recorded", "here", "holds")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A recipe, by name or folder; none: list them")
    ] = None,
    out: o.Out = None,
    jobs: o.Jobs = None,
    keep: Annotated[
        bool, typer.Option("--record", help="Write what comes out into the recipe's expected.json")
    ] = False,
    quiet: o.Quiet = False,
) -> None:
    """Repeat a paper's experiments, and check what comes out against what it claims.

    Searches come first, then runs, each in its own directory under OUT; if interrupted, the same command resumes it.

    Example: undrift reproduce autonomous-fedgm --out runs/autonomous-fedgm
    """
    if name is None:
        return _print_recipes()
    folder = find_recipe(name)
    recipe, claims = read_recipe(folder), read_claims(folder / EXPECTED)
    out = out or Path("runs") / folder.name
    try:
        for search in recipe.search:
            run_search(search, folder, out, quiet)
        experiments = {run.name: _read_experiment(run, folder, out) for run in recipe.run}
        places = {
            label: _run_or_resume(label, experiment, out, jobs, quiet)
            for label, experiment in experiments.items()
        }
    except KeyboardInterrupt:
        again = f"undrift reproduce {shlex.quote(name)} --out {shlex.quote(str(out))}"
        print(f"undrift: `{again}` resumes the recipe", file=sys.stderr)
        raise
    results = check_claims(claims, places)
    write_json(out / CLAIMS, [result.to_dict() for result in results])
    if keep:
        record_results(folder / EXPECTED, results)
    from undrift.experiments.report import write_report  # slow to import

    rows = [describe_result(result) for result in results]
    page = write_report(list(places.values()), out, claims=rows)
    if not quiet:
        make_console().print(make_table(COLUMNS, [list(row.values()) for row in rows]))
        print(f"report: {page}")


def _print_recipes() -> None:
    recipes = list_recipes()
    if not recipes:
        find_recipe("")  # explains where they are
    for name, folder in sorted(recipes.items()):
        print(f"{name:24} {read_recipe(folder).about}")


def run_search(search: RecipeSearch, folder: Path, out: Path, quiet: bool) -> None:
    """Run a search, or what is left of it."""
    experiment = read(folder / search.experiment, _chosen_settings(search.take, out))
    if search.methods is not None:
        experiment = experiment.only(search.methods)
    if experiment.threads is None:
        experiment = experiment.model_copy(update={"threads": 1})
    is_file = search.space.endswith(".toml")
    space = space_of(str(folder / search.space) if is_file else search.space)
    plan = Plan(space, search.trials, search.seeds, search.sampler, search.held_out)
    run_and_report(experiment, plan, _search_folder(out, search.name), quiet)


def _search_folder(out: Path, name: str) -> Path:
    return out / "search" / name


def _read_experiment(run: RecipeRun, folder: Path, out: Path) -> Experiment:
    best = _search_folder(out, run.best or "") / BEST
    file = folder / run.experiment if run.experiment else best
    return read(file, _chosen_settings(run.take, out))


def _chosen_settings(take: Mapping[str, str], out: Path) -> list[str]:
    """Settings with the values that earlier searches have chosen."""
    return [f"{path}={_chosen_value(path, name, out)!r}" for path, name in take.items()]


def _chosen_value(path: str, search: str, out: Path) -> object:
    best = read(_search_folder(out, search) / BEST)
    if len(best.labels) != 1:
        raise InvalidInput(f"search {search!r} is of several methods: {path} has no single value")
    method = best.methods[best.labels[0]]
    settings = method.local if path.startswith("local.") else method.parameters
    key = path.removeprefix("local.")
    if key not in settings:
        raise InvalidInput(f"search {search!r} does not choose {path}")
    return settings[key]


def _run_or_resume(
    name: str, experiment: Experiment, out: Path, jobs: int | None, quiet: bool
) -> Path:
    """Run an experiment, or what is left of it; returns its directory."""
    place = out / "runs" / name
    if not place.exists():
        execute(experiment, name, place, jobs, quiet=quiet)
        return place
    known = _list_settings(RunDirectory(place).experiment())
    for part, value in _list_settings(experiment).items():
        if known[part] != value:
            raise InvalidInput(
                f"{place} holds runs with other {part} than the recipe now has: --out chooses another place"
            )
    resume(place, jobs=jobs, quiet=quiet)
    return place


def _list_settings(experiment: Experiment) -> dict[str, object]:
    """What must not change between a run and its resumption."""
    return {
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
        "methods": experiment.methods,
        "local": experiment.local,
        "data": experiment.data,
        "clients": experiment.clients,
        "model": experiment.model,
        "population": experiment.population,
        "server": experiment.server,
    }


# what came out


def describe_result(result: ClaimResult) -> dict[str, str]:
    """A claim in words: what was published, what was recorded, what came out here, whether it holds."""
    ours, here = result.claim.ours, result.measured
    differs = " (not as recorded)" if result.as_recorded is False else ""
    return {
        "claim": result.claim.claim,
        "published": result.claim.published,
        "recorded": "" if ours is None else _format_value(result, ours.mean, ours.std),
        "here": _format_value(result, here.mean, here.std) + differs,
        "holds": result.holds,
    }


def _format_value(result: ClaimResult, mean: float | None, std: float | None) -> str:
    """A number with its spread: percentage points for accuracies, else as it is."""
    claim = result.claim
    if mean is None:
        return "never reached"
    points = claim.measure == "final" and claim.by == "difference" and "accuracy" in claim.metric
    scale, unit = (100, " points") if points else (1, "")
    if claim.by == "ratio" and claim.against is not None:
        unit = " times"
    spread = "" if std is None else f" ± {scale * std:.2f}"
    sign = "+" if claim.by == "difference" and claim.against is not None else ""
    return f"{scale * mean:{sign}.2f}{spread}{unit}"
