"""undrift reproduce."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from undrift.cli import options as o
from undrift.cli.runs import carry_out, resume
from undrift.cli.sweeps import swept
from undrift.core.errors import InvalidInput
from undrift.experiments.config import Experiment, read
from undrift.experiments.recipes.claims import Finding, findings, read_claims, record
from undrift.experiments.recipes.recipe import (
    EXPECTED,
    Recipe,
    Search,
    find_recipe,
    read_recipe,
    recipes_there,
)
from undrift.experiments.runs.directory import RunDirectory
from undrift.experiments.runs.files import write_json
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.spaces import space_of
from undrift.experiments.sweeps.sweeping import BEST

CLAIMS = "claims.json"
SAME = ("rounds", "seeds", "methods", "local", "data", "clients", "model", "population", "server")


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
    """Repeat a paper's experiments, and hold what comes out against what it claims.

    Searches come first, then runs, each in a directory of its own under OUT; interrupted and called again, it goes on.

    Example: undrift reproduce autonomous-fedgm --out runs/autonomous-fedgm
    """
    if name is None:
        return _list()
    folder = find_recipe(name)
    recipe, claims = read_recipe(folder), read_claims(folder / EXPECTED)
    out = out or Path("runs") / folder.name
    try:
        for search in recipe.search:
            searched(search, folder, out, quiet)
        places = {
            run.name: _ran(run.name, experiment, out, jobs, quiet)
            for run, experiment in _experiments(recipe, folder, out)
        }
    except KeyboardInterrupt:
        again = f"undrift reproduce {shlex.quote(name)} --out {shlex.quote(str(out))}"
        print(f"undrift: `{again}` goes on with the recipe", file=sys.stderr)
        raise
    found = findings(claims, places)
    write_json(out / CLAIMS, [each.json() for each in found])
    if keep:
        record(folder / EXPECTED, found)
    from undrift.experiments.report import write_report  # slow to import

    page = write_report(list(places.values()), out, claims=[told(each) for each in found])
    if not quiet:
        Console(width=None if sys.stdout.isatty() else 160).print(table(found))
        print(f"report: {page}")


def _list() -> None:
    there = recipes_there()
    if not there:
        find_recipe("")  # which says where they are
    for name, folder in sorted(there.items()):
        print(f"{name:24} {read_recipe(folder).about}")


def searched(search: Search, folder: Path, out: Path, quiet: bool) -> None:
    """Carry out a search, or what is left of it."""
    experiment = read(folder / search.experiment, _taken(search.take, out))
    if search.methods is not None:
        experiment = experiment.only(search.methods)
    if experiment.threads is None:
        experiment = experiment.model_copy(update={"threads": 1})
    file = search.space.endswith(".toml")
    space = space_of(str(folder / search.space) if file else search.space)
    plan = Plan(space, search.trials, search.seeds, search.sampler, search.held_out)
    swept(experiment, plan, _search(out, search.name), quiet)


def _search(out: Path, name: str) -> Path:
    return out / "search" / name


def _experiments(recipe: Recipe, folder: Path, out: Path) -> list[tuple[Any, Experiment]]:
    found = []
    for run in recipe.run:
        file = folder / run.experiment if run.experiment else _search(out, run.best or "") / BEST
        found.append((run, read(file, _taken(run.take, out))))
    return found


def _taken(take: dict[str, str], out: Path) -> list[str]:
    """Settings with the values that earlier searches have chosen."""
    return [f"{path}={_chosen(path, name, out)!r}" for path, name in take.items()]


def _chosen(path: str, name: str, out: Path) -> object:
    best = read(_search(out, name) / BEST)
    if len(best.labels) != 1:
        raise InvalidInput(f"search {name!r} is of several methods: {path} has no single value")
    method = best.methods[best.labels[0]]
    local = path.startswith("local.")
    words = method.local if local else method.parameters
    key = path.removeprefix("local.")
    if key not in words:
        raise InvalidInput(f"search {name!r} does not choose {path}")
    return words[key]


def _ran(name: str, experiment: Experiment, out: Path, jobs: int | None, quiet: bool) -> Path:
    """Carry out runs, or what is left of them; where they are."""
    place = out / "runs" / name
    if not place.exists():
        carry_out(experiment, name, place, jobs, quiet=quiet)
        return place
    known = RunDirectory(place).experiment()
    for part in SAME:
        if getattr(known, part) != getattr(experiment, part):
            raise InvalidInput(
                f"{place} holds runs with other {part} than the recipe now has: --out chooses another place"
            )
    resume(place, jobs=jobs, quiet=quiet)
    return place


# what came out


def table(found: Sequence[Finding]) -> Table:
    """Claim by claim: what was published, what was recorded, what came out, whether it holds."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("claim", "published", "recorded", "here", "holds"):
        made.add_column(heading)
    for each in found:
        words = told(each)
        made.add_row(*(words[key] for key in ("claim", "published", "recorded", "here", "holds")))
    return made


def told(found: Finding) -> dict[str, str]:
    """A finding in words."""
    ours = found.claim.ours
    recorded = "" if ours is None else shown(found, ours.mean, ours.std)
    here = shown(found, found.ours.mean, found.ours.std)
    if found.as_recorded is False:
        here += " (not as recorded)"
    return {
        "claim": found.claim.claim,
        "published": found.claim.published,
        "recorded": recorded,
        "here": here,
        "holds": found.holds,
    }


def shown(found: Finding, mean: float | None, std: float | None) -> str:
    """A number with its spread: percentage points for accuracies, else as it is."""
    claim = found.claim
    if mean is None:
        return "never reached"
    points = claim.measure == "final" and claim.by == "difference" and "accuracy" in claim.figure
    scale, unit = (100, " points") if points else (1, "")
    if claim.by == "ratio" and claim.against is not None:
        unit = " times"
    more = "" if std is None else f" ± {scale * std:.2f}"
    sign = "+" if claim.by == "difference" and claim.against is not None else ""
    return f"{scale * mean:{sign}.2f}{more}{unit}"
