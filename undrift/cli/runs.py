"""undrift run, compare, resume."""

import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from undrift.cli import options as o
from undrift.cli.choose import work_and_answer
from undrift.cli.dry import describe_work, show_plan
from undrift.cli.progress import show_updates
from undrift.cli.reports import report_on
from undrift.cli.sweeps import run_and_report
from undrift.cli.terminal import resumable, set_verbosity, status
from undrift.core.errors import InvalidInput
from undrift.experiments.choosing.choosing import PLAN, open_choosing
from undrift.experiments.config import Experiment, read
from undrift.experiments.runs.directory import RunDirectory, free_path, open_directory
from undrift.experiments.runs.files import is_as_written
from undrift.experiments.runs.running import (
    Worker,
    config_of,
    extend,
    is_finished,
    members,
    prepare_directory,
    run_experiment,
    set_workers,
    start_workers,
    stop_workers,
)
from undrift.experiments.runs.verify import forget_damaged
from undrift.experiments.sweeps.sweeping import SWEEP, open_sweep

log = logging.getLogger("undrift")


def run(
    file: Annotated[Path, typer.Argument(help="An experiment: TOML, or Python that sets `experiment`")],
    settings: o.Set = None,
    engine: o.Engine = None,
    workers: o.Workers = None,
    out: o.Out = None,
    jobs: o.Jobs = None,
    dry: o.Dry = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Run the experiment of a file.

    Example: undrift run experiment.toml --set algorithm.beta=0.1 --out runs/beta0.1
    """
    chosen = o.settings_of({"engine": engine, "workers": workers})
    experiment = read(file, [*chosen, *(settings or ())])
    if not is_as_written(file):
        set_verbosity(verbose)
        log.warning("%s was changed since it was written, or is damaged: it is run as it is", file)
    execute(experiment, experiment.name or file.stem, out, jobs, dry, quiet, verbose)


@o.takes_experiment
def compare(
    methods: Annotated[
        list[str], typer.Argument(help="Methods, with parameters if you like: scaffold-m:beta=0.1,lr=0.5")
    ],
    given: dict[str, Any],
    out: o.Out = None,
    jobs: o.Jobs = None,
    dry: o.Dry = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Run methods on the same federation and report which is best, and at what cost in bytes.

    Example: undrift compare fedavg scaffold-m fedhbm --data mnist --dirichlet 0.2 --rounds 200 --seeds 3
    """
    name = f"compare-{given.get('data', 'digits')}"
    execute(o.make_experiment(methods, given, name), name, out, jobs, dry, quiet, verbose)


def resume(
    directory: Annotated[Path, typer.Argument(help="What `undrift run` or `compare` made")],
    rounds: Annotated[int | None, typer.Option("--rounds", help="Go on to so many rounds in all")] = None,
    workers: o.Workers = None,
    jobs: o.Jobs = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Resume a run that was interrupted, as if it had not been; or run one that is done for longer.

    Example: undrift resume runs/compare-digits
    """
    set_verbosity(verbose)
    for mark, kind in ((PLAN, "choice"), (SWEEP, "sweep")):
        if (directory / mark).exists() and (rounds is not None or workers is not None):
            raise InvalidInput(f"{directory} is a {kind}, whose rounds and engine are part of it: start a new {kind}")
    if (directory / PLAN).exists():
        return work_and_answer(open_choosing(directory), directory, quiet)
    if (directory / SWEEP).exists():
        return run_and_report(*open_sweep(directory), directory, quiet=quiet)
    whole = open_directory(directory)
    if rounds is not None:
        whole = extend(whole, rounds)
    if workers is not None:
        whole = set_workers(whole, workers)
    forget_damaged(members(whole))
    if is_finished(whole) and (directory / "report.html").exists():
        if not quiet:
            print(f"{directory} is finished: {directory / 'report.html'}; --rounds N goes on for longer")
        return
    finish(whole, jobs, quiet)


def execute(
    experiment: Experiment,
    name: str,
    out: Path | None,
    jobs: int | None = None,
    dry: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Run an experiment in a new directory, or only show it."""
    set_verbosity(verbose)
    experiment = with_threads(experiment, jobs)
    if dry:
        return show_plan(experiment, _jobs(experiment, jobs))
    at_a_time, cores = _jobs(experiment, jobs), o.count_cores()
    if not quiet and at_a_time * (experiment.threads or 1) > cores:
        words = f"{at_a_time} at a time, {experiment.threads} threads each, and {cores} cores: they wait for each other"
        print(f"more threads than cores (runs {words})", file=sys.stderr)
    workers = start_workers(at_a_time, experiment.threads) if at_a_time > 1 else []  # ready when all is checked
    try:
        with status(quiet) as show:
            show(f"reading {experiment.data.name}, building clients, choosing the engine")
            directory = prepare_directory(experiment, out or free_path(Path("runs") / name))
        finish(directory, jobs, quiet, workers)
    finally:
        stop_workers(workers)


def finish(directory: RunDirectory, jobs: int | None, quiet: bool, workers: Sequence[Worker] = ()) -> None:
    """Do the work, show it, report on it."""
    path, experiment = directory.path, directory.experiment()
    if not quiet:
        announce(directory)
    again = f"`undrift resume {shlex.quote(str(path))}`"
    try:
        with resumable(path):
            at_a_time = _jobs(experiment, jobs)
            left = [member for member in members(directory) if RunDirectory(member).result() is None]
            updates = run_experiment(directory, at_a_time, workers)
            failed = show_updates(updates, experiment, path, quiet, len(left), at_a_time)
    except OSError as error:
        said = f"{error.strerror or error}; what was recorded is kept, {again} goes on when that is mended"
        raise OSError(error.errno, said, error.filename) from error
    if failed:
        first, reason = next(iter(failed.items()))
        how_many = f"{len(failed)} of {len(members(directory))} runs failed"
        raise InvalidInput(f"{how_many}; {first}: {reason}; {again} tries again")
    report_on([path], path, quiet)


def announce(directory: RunDirectory) -> None:
    """What is about to run: the local work, where this process knows the federation, and the engine."""
    experiment, built = directory.experiment(), directory.federations.last
    first = experiment.single(experiment.labels[0], experiment.seeds[0])
    words = list(describe_work(config_of(first, built))) if built is not None else []
    if built is not None:
        words.insert(0, f"{built.problem.N} clients: {built.problem.summary()['partition']}")
    for line in (*words, f"engine: {experiment.engine}", f"recording in {directory.path}"):
        print(line, file=sys.stderr)


def _jobs(experiment: Experiment, jobs: int | None) -> int:
    runs = len(experiment.runs())
    usual = 1 if experiment.on_ray else usual_jobs(runs, o.count_cores())  # a run on Ray takes the whole cluster
    return min(jobs or usual, runs)


def usual_jobs(runs: int, cores: int) -> int:
    """How many runs at a time end soonest: one for each core, or fewer with more threads where the last would be few.

    t threads are taken to be t**0.85 times as fast as one, as on a model of some hundred thousand parameters.

    >>> [usual_jobs(runs, cores=2) for runs in (1, 2, 3, 4, 9)]
    [1, 2, 1, 2, 2]
    """
    time = {jobs: -(-runs // jobs) / (cores // jobs) ** 0.85 for jobs in range(1, min(runs, cores) + 1)}
    return max(jobs for jobs, found in time.items() if found <= 1.1 * min(time.values()))


def with_threads(experiment: Experiment, jobs: int | None) -> Experiment:
    """Sums depend on the number of threads in their last bits, so it is part of the experiment."""
    if experiment.threads is not None:
        return experiment
    threads = max(1, o.count_cores() // _jobs(experiment, jobs))
    return experiment.model_copy(update={"threads": threads})
