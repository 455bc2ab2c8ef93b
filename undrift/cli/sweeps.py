"""undrift sweep."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Argument, Option

from undrift.cli import options as o
from undrift.cli.terminal import make_console, printer, resumable, set_verbosity
from undrift.core.errors import InvalidInput
from undrift.data.trees import sample_count
from undrift.experiments.config import Experiment, read
from undrift.experiments.report.format import plural
from undrift.experiments.report.tables import make_table
from undrift.experiments.sweeps.plan import Plan
from undrift.experiments.sweeps.space import size_of
from undrift.experiments.sweeps.spaces import SPACES, space_of
from undrift.experiments.sweeps.sweeping import BEST, Sweep, SweepResult, continue_sweep, plan_sweep, read_results
from undrift.experiments.sweeps.trial import TrialDone
from undrift.metrics.quality import spread

SpaceName = Annotated[str, Option("--space", help=f"{', '.join(SPACES)}, or a TOML file of your own")]
Trials = Annotated[
    int | None, Option("--trials", min=1, help="Of every method; as many as the largest grid has if not given")
]
Sampler = Annotated[str, Option("--sampler", help="grid, random or tpe")]
Validate = Annotated[
    float,
    Option(
        "--validate",
        metavar="PART",
        help="Part of every client's training data held out to choose by; 0: choose by test data",
    ),
]
Prune = Annotated[
    bool | None,
    Option(
        "--prune/--no-prune", help="Stop trials that are worse than the median; only random and tpe do if not given"
    ),
]


@o.takes_experiment
def sweep(
    targets: Annotated[list[str], Argument(help="An experiment file, or methods such as fedavg scaffold-m")],
    given: dict[str, Any],
    space: SpaceName = "quick",
    trials: Trials = None,
    sampler: Sampler = "grid",
    validate: Validate = 0.1,
    prune: Prune = None,
    compare: Annotated[bool, Option("--compare", help="Then run the best of each method, in OUT/compare")] = False,
    out: o.Out = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Choose step sizes and other parameters fairly: the same number of trials, rounds and seeds for every method.

    Interrupted and called again, it resumes.  OUT/best.toml is the experiment with the best of each method.

    Example: undrift sweep fedavg scaffold-m --space quick --rounds 50 --trials 20 --out runs/sweep
    """
    set_verbosity(verbose)
    experiment = _experiment(targets, given)
    plan = Plan(space_of(space), trials, given.get("seeds"), sampler, validate, prune)
    directory = out or Path("runs") / f"sweep-{experiment.name or experiment.data.name}"
    run_and_report(experiment, plan, directory, quiet)
    if compare:
        run_best(directory, quiet)


def _experiment(targets: Sequence[str], given: dict[str, Any]) -> Experiment:
    """The experiment of a file, or of methods on the federation that options describe."""
    files = [target for target in targets if target.endswith((".toml", ".py"))]
    if not files:
        return o.make_experiment(list(targets), given, given.get("data", "digits"))
    if len(targets) > 1:
        raise InvalidInput(f"give one experiment file or methods, not both: got {' '.join(targets)}")
    if set(given) - {"settings", "seeds"}:
        raise InvalidInput("an experiment file says all of it: change it with --set KEY=VALUE")
    return read(files[0], given.get("settings", ()))


def run_best(directory: Path, quiet: bool) -> None:
    """Run the best of each method, or resume that."""
    from undrift.cli.runs import execute, resume  # which knows sweeps, too

    place = directory / "compare"
    if place.exists():
        return resume(place, quiet=quiet)
    execute(read(directory / BEST), "compare", place, quiet=quiet)


def run_and_report(experiment: Experiment, plan: Plan, directory: Path, quiet: bool = False) -> None:
    """Run a sweep, printing its trials and what was found."""
    console = make_console(quiet=quiet)
    say = printer(console)
    if experiment.threads is None:  # the same on any machine, where a sweep may be resumed
        experiment = experiment.model_copy(update={"threads": 1})
    ready = plan_sweep(experiment, plan)
    for line in introduction(ready):
        say(line)
    with resumable(directory):
        for trial in continue_sweep(ready, directory):
            say(_line(trial))
    results = read_results(ready, directory)
    console.print(best_table(ready, results))
    for line in remarks(results):
        say(line)
    if all(result.best is None for result in results):
        raise InvalidInput("no trial of any method was finished: choose a space of smaller steps")
    say(f"the best of each method: undrift run {directory / BEST}")


def introduction(sweep: Sweep) -> Iterator[str]:
    """What is going to be done, and by what methods are judged."""
    plan, experiment = sweep.plan, sweep.experiment
    problem = next(iter(sweep.problems.values()))
    if plan.validate:
        samples = 0 if problem.test is None else sample_count(problem.test[0])
        data = f"{samples:,} training samples held out ({plan.validate:.0%} of every client's), test data unseen"
    else:
        data = "test data, as in the papers: --validate 0.1 holds out training data in their place"
    yield f"space {plan.space.name}: {plan.space.about}"
    yield f"judged by {sweep.metric} on {data}; mean of the last {plural(sweep.last, 'evaluated round')}"
    budget = plan.trials or max(search.trials for search in sweep.searches)
    yield (
        f"every method: at most {plural(budget, 'trial')} of {plural(experiment.rounds, 'round')} with "
        f"{plural(len(sweep.problems), 'seed')}"
    )
    for search in sweep.searches:
        if not search.choices:
            yield f"{search.label}: space {plan.space.name} has nothing to choose; tried once as it is"
        elif not search.has_row:
            common = ", ".join(search.choices)
            yield f"{search.label}: no row in space {plan.space.name}; only what is common: {common}"
        if search.choices and search.trials < budget:
            yield f"{search.label}: the grid has {search.trials} points, the rest of the budget stays unspent"
        size = size_of(search.choices)
        if search.points is not None and size is not None and search.trials < size:
            yield f"{search.label}: {search.trials} of {size} points of the grid, drawn without replacement"


def _line(trial: TrialDone) -> str:
    ended = trial.outcome
    said = f"{trial.metric} {ended.quality:.4f}" if ended.state == "done" else ended.state
    return f"{trial.label} {trial.number + 1}/{trial.of}: {shown(trial.chosen)}: {said}"


def shown(chosen: dict[str, object]) -> str:
    """Parameters in a line: local.lr=0.1 beta=0.5."""
    return " ".join(
        f"{path}={value:g}" if isinstance(value, float) else f"{path}={value}" for path, value in chosen.items()
    )


def best_table(sweep: Sweep, results: Sequence[SweepResult]) -> Table:
    """The best of every method, and how its trials ended."""
    states = ["done", "pruned", "diverged"]
    if any(result.count("deserted") for result in results):
        states.append("deserted")  # in virtual time: nobody was left
    rows = []
    for result in results:
        chosen, quality = "none", ""
        if result.best is not None:
            deviation = spread(result.best.outcome.qualities)
            more = "" if deviation is None else f" +- {deviation:.4f}"
            chosen = shown(result.best.chosen)
            quality = f"{result.best.outcome.quality:.4f}{more}"
        counts = (str(result.count(state)) for state in states)
        rows.append([result.search.label, chosen, quality, *counts])
    return make_table(["method", "best parameters", sweep.metric, *states], rows, right=[sweep.metric, *states])


def remarks(results: Sequence[SweepResult]) -> Iterator[str]:
    """What the reader should know before believing the table."""
    for result in results:
        label = result.search.label
        yield from (f"{label}: {edge}" for edge in result.edges)
        if result.best is None:
            reason = result.trials[-1].outcome.reason if result.trials else "no trial yet"
            yield f"{label}: none of its trials was finished; the last: {reason}"
