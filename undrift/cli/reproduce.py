"""undrift reproduce."""

import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Annotated

import tomli_w
import typer

from undrift.cli import options as o
from undrift.cli.runs import execute, resume
from undrift.cli.sweeps import run_and_report
from undrift.cli.terminal import make_console
from undrift.core.errors import InvalidInput
from undrift.experiments.config import Experiment, read
from undrift.experiments.config.federation import data_of
from undrift.experiments.config.parts import load_cached
from undrift.experiments.recipes.claims import Measurements, check_claims, methods_of
from undrift.experiments.recipes.page import (
    COLUMNS,
    PICTURE,
    describe_result,
    describe_verdicts,
    format_duration,
    render_page,
    write_readme,
)
from undrift.experiments.recipes.picture import plot_claims, plot_runs
from undrift.experiments.recipes.recipe import (
    Recipe,
    RecipeRun,
    RecipeSearch,
    find_recipe,
    function_of,
    list_recipes,
    read_recipe,
    settings_digest,
)
from undrift.experiments.recipes.results import NUMBERS, check_current, outdated, read_results, record_results
from undrift.experiments.report import write_report
from undrift.experiments.report.load import load_runs
from undrift.experiments.report.tables import make_table
from undrift.experiments.runs.directory import RunDirectory
from undrift.experiments.runs.files import Damaged, read_json, write_aside, write_json, write_marked
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.spaces import space_of
from undrift.experiments.sweeps.sweeping import BEST

log = logging.getLogger("undrift")

CLAIMS = "claims.json"
# What must not change of an experiment between a run and its resumption.
KEPT = ("rounds", "seeds", "methods", "local", "data", "clients", "model", "population", "server")


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Recipes, by name or folder; none: list them")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every recipe whose results are missing or out of date")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small form that shows that a recipe works")] = False,
    out: o.Out = None,
    jobs: o.Jobs = None,
    keep: Annotated[bool, typer.Option("--record", help="Write what comes out into the recipe's folder")] = False,
    page: Annotated[Path | None, typer.Option("--page", help="Write all recorded results as one Markdown page")] = None,
    quiet: o.Quiet = False,
) -> None:
    """Repeat a paper's experiments, and check what comes out against what it claims.

    Searches come first, then runs, each in its own directory under OUT; if interrupted, the same command resumes it.

    Example: undrift reproduce theory
    """
    if quick and keep:
        raise InvalidInput("--quick shows that a recipe works, its numbers mean nothing: leave out --record")
    if names and everything:
        raise InvalidInput("give recipes, or --all, not both")
    if out is not None and (everything or len(names or ()) > 1):
        raise InvalidInput("--out is the place of one recipe: leave it out, each has its own under runs/")
    folders = [find_recipe(name) for name in names or ()]
    if everything:
        folders = [folder for folder in list_recipes().values() if quick or _is_due(folder)]
        if not folders:
            print("every recipe has recorded results, and has not changed since: give names to repeat some")
    if not folders and not everything and page is None:
        return _print_recipes()
    for folder in folders:  # what is missing is named before anything runs
        check_data(folder, read_recipe(folder), quick)
    for folder in folders:
        place = out or Path("runs") / (f"{folder.name}-quick" if quick else folder.name)
        reproduce_one(folder, place, jobs, quick, keep, quiet)
    if page is not None:
        write_aside(page, render_page(list_recipes()).encode())


def _is_due(folder: Path) -> bool:
    recipe = read_recipe(folder)
    return read_results(folder) is None or outdated(folder, recipe) is not None


def check_data(folder: Path, recipe: Recipe, quick: bool) -> None:
    """Read the data of every experiment and function, so that what is missing is told first."""
    for name in recipe.data:
        load_cached(name, ())
    for part in (*recipe.search, *recipe.run):
        if part.experiment is not None:
            data_of(read(folder / part.experiment, quick_settings(recipe, quick)))


def quick_settings(recipe: Recipe, quick: bool) -> list[str]:
    """Settings under which an experiment takes seconds, none if it may take its time."""
    return _as_settings(recipe.quick) if quick else []


def _as_settings(values: Mapping[str, object]) -> list[str]:
    return [f"{key}={tomli_w.dumps({'x': value}).removeprefix('x = ').strip()}" for key, value in values.items()]


def reproduce_one(folder: Path, out: Path, jobs: int | None, quick: bool, keep: bool, quiet: bool) -> None:
    """Search, run and check one recipe, or what is left of it."""
    recipe = read_recipe(folder)
    settings = quick_settings(recipe, quick)
    try:
        for search in recipe.search:
            run_search(search, folder, out, quiet, settings)
        experiments = {run.name: _read_experiment(run, folder, out, settings) for run in recipe.run if not run.function}
        numbers = {run.name: _compute(run, folder, out, quick) for run in recipe.run if run.function}
        places = {
            label: _run_or_resume(label, experiment, out, jobs, quiet) for label, experiment in experiments.items()
        }
    except KeyboardInterrupt:
        again = f"undrift reproduce {shlex.quote(str(folder))} --out {shlex.quote(str(out))}"
        print(f"undrift: `{again}` resumes the recipe", file=sys.stderr)
        raise
    records = {name: load_runs([place]) for name, place in places.items()}
    methods = methods_of(records)
    by_seed = {
        f"{name}/{label}": dict(enumerate(map(float, values)))
        for name, (found, _) in numbers.items()
        for label, values in found.items()
    }
    measured = Measurements(methods, by_seed)
    results = check_claims(recipe.claim, measured)
    content = json.dumps([result.to_dict() for result in results], indent=1, allow_nan=False) + "\n"
    write_marked(out, {CLAIMS: content.encode()})
    why = outdated(folder, recipe)
    if why is not None and not quiet:
        print(f"{folder.name}: {why}: they are not shown", file=sys.stderr)
    known = None if quick or why is not None else read_results(folder)
    rows = [describe_result(result, known.of(result.claim) if known else None) for result in results]
    report = write_report(list(places.values()), out, claims=rows) if places else None
    if keep:
        seconds = sum(float(run.seconds.sum()) for method in methods.values() for run in method.runs)
        seconds += sum(took for _, took in numbers.values())
        record_results(folder, recipe, results, measured, seconds)
        recorded = check_current(folder, recipe)
        write_readme(folder, recipe, recorded)
        if len(records) > 1:
            picture = plot_runs(records)
        else:
            picture = plot_claims(recipe, recorded) if report is None else (out / PICTURE).read_bytes()
        write_aside(folder / PICTURE, picture)
    if not quiet:
        make_console().print(make_table(COLUMNS, [list(row.values()) for row in rows]))
        if report is not None:
            print(f"report: {report}")


def _compute(run: RecipeRun, folder: Path, out: Path, quick: bool) -> tuple[Mapping[str, Sequence[float]], float]:
    """The numbers of a function and the seconds that it took, computed once for the recipe as it is."""
    assert run.function is not None
    place = out / "runs" / run.name / NUMBERS
    digest = settings_digest(folder, read_recipe(folder)) + ("-quick" if quick else "")
    try:
        if place.exists() and (kept := read_json(place))["settings"] == digest:
            return kept["numbers"], kept["seconds"]
    except Damaged as error:
        log.warning("%s: its numbers are computed again", error)
    began = perf_counter()
    numbers = {label: [float(v) for v in values] for label, values in function_of(folder, run.function)(quick).items()}
    took = perf_counter() - began
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, {"settings": digest, "numbers": numbers, "seconds": took})
    return numbers, took


def _print_recipes() -> None:
    recipes = list_recipes()
    if not recipes:
        find_recipe("")  # explains where they are
    for name, folder in sorted(recipes.items()):
        recipe = read_recipe(folder)
        results, why = read_results(folder), outdated(folder, recipe)
        told = "not recorded" if results is None else "recorded before it was changed" if why else ""
        if results is not None and not told:
            told = f"{describe_verdicts(results)}; {format_duration(results.seconds)}"
        print(f"{name:20} {recipe.about}\n{'':20} {told}")
    print("\n`undrift reproduce NAME` repeats one; times are those of the recorded runs, on one core")


def run_search(search: RecipeSearch, folder: Path, out: Path, quiet: bool, settings: Sequence[str]) -> None:
    """Run a search, or what is left of it; a single trial if there are settings for a small form."""
    changes = [*_as_settings(search.set), *_chosen_settings(search.take, out), *settings]
    experiment = read(folder / search.experiment, changes)
    if search.methods is not None:
        experiment = experiment.only(search.methods)
    is_file = search.space.endswith(".toml")
    space = space_of(str(folder / search.space) if is_file else search.space)
    trials = 1 if settings else search.trials
    plan = Plan(space, trials, search.seeds, search.sampler, search.held_out)
    run_and_report(experiment, plan, _search_folder(out, search.name), quiet)


def _search_folder(out: Path, name: str) -> Path:
    return out / "search" / name


def _read_experiment(run: RecipeRun, folder: Path, out: Path, settings: Sequence[str]) -> Experiment:
    file = folder / run.experiment if run.experiment else _search_folder(out, run.best or "") / BEST
    return read(file, [*_as_settings(run.set), *_chosen_settings(run.take, out), *settings])


def _chosen_settings(take: Mapping[str, str], out: Path) -> list[str]:
    """Settings with the values that earlier searches have chosen."""
    return _as_settings({path: _chosen_value(path, name, out) for path, name in take.items()})


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


def _run_or_resume(name: str, experiment: Experiment, out: Path, jobs: int | None, quiet: bool) -> Path:
    """Run an experiment, or what is left of it; returns its directory."""
    place = out / "runs" / name
    if not place.exists():
        execute(experiment, name, place, jobs, quiet=quiet)
        return place
    parts = attrgetter(*KEPT)
    for part, known, now in zip(KEPT, parts(RunDirectory(place).experiment()), parts(experiment), strict=True):
        if known != now:
            raise InvalidInput(
                f"{place} holds runs with other {part} than the recipe now has: --out chooses another place"
            )
    resume(place, jobs=jobs, quiet=quiet)
    return place
