"""undrift run, compare, resume."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer

from undrift.cli import options as o
from undrift.cli.progress import shown, talkative
from undrift.cli.reports import report_on
from undrift.cli.sweeps import swept
from undrift.core.errors import InvalidInput
from undrift.experiments.config import Experiment, read
from undrift.experiments.config.federation import federation
from undrift.experiments.config.toml import as_toml
from undrift.experiments.runs.directory import RunDirectory, opened
from undrift.experiments.runs.running import (
    carried_out,
    config_of,
    extended,
    members,
    prepared,
    with_workers,
)
from undrift.experiments.sweeps.sweeping import SWEEP
from undrift.experiments.sweeps.sweeping import open_sweep as sweep_opened
from undrift.simulation.api import prepare


def run(
    file: Annotated[
        Path, typer.Argument(help="An experiment: TOML, or Python that sets `experiment`")
    ],
    settings: o.Set = None,
    engine: o.Engine = None,
    workers: o.Workers = None,
    out: o.Out = None,
    jobs: o.Jobs = None,
    dry: o.Dry = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Carry out an experiment file.

    Example: undrift run experiment.toml --set algorithm.beta=0.1 --out runs/beta0.1
    """
    experiment = o.with_engine(read(file, settings or ()), engine, workers)
    carry_out(experiment, experiment.name or file.stem, out, jobs, dry, quiet, verbose)


@o.with_words
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(help="Methods, with parameters if you like: scaffold-m:beta=0.1,lr=0.5"),
    ],
    words: o.Words,
    out: o.Out = None,
    jobs: o.Jobs = None,
    dry: o.Dry = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Run methods on the same federation and report which is best, and at what cost in bytes.

    Example: undrift compare fedavg scaffold-m fedhbm --data mnist --dirichlet 0.2 --rounds 200 --seeds 3
    """
    name = f"compare-{words.data or 'digits'}"
    experiment = o.experiment_of(methods, words, name)
    carry_out(experiment, name, out, jobs, dry, quiet, verbose)


def resume(
    directory: Annotated[Path, typer.Argument(help="What `undrift run` or `compare` made")],
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Go on to so many rounds in all")
    ] = None,
    workers: o.Workers = None,
    jobs: o.Jobs = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Go on with a run that was interrupted, as if it had not been; or with one that is done, for longer.

    Example: undrift resume runs/compare-digits
    """
    talkative(verbose)
    if (directory / SWEEP).exists():
        if rounds is not None or workers is not None:
            raise InvalidInput(
                f"{directory} is a sweep, whose rounds and engine are part of it: sweep anew"
            )
        return swept(*sweep_opened(directory), directory, quiet=quiet)
    made = opened(directory)
    if rounds is not None:
        made = extended(made, rounds)
    if workers is not None:
        made = with_workers(made, workers)
    done = all(RunDirectory(path).result() for path in members(made))
    if done and (directory / "report.html").exists():
        if not quiet:
            print(f"{directory} is finished; --rounds N goes on for longer")
        return
    finish(made, jobs, quiet)


def carry_out(
    experiment: Experiment,
    name: str,
    out: Path | None,
    jobs: int | None = None,
    dry: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Carry out an experiment in a new directory, or only show it."""
    talkative(verbose)
    experiment = with_threads(experiment, jobs)
    if dry:
        return _dry(experiment, jobs)
    if out is None:
        out = free(Path("runs") / name)
    finish(prepared(experiment, out), jobs, quiet)


def finish(directory: RunDirectory, jobs: int | None, quiet: bool) -> None:
    """Do the work, show it, report on it."""
    path, experiment = directory.path, directory.experiment()
    again = f"`undrift resume {shlex.quote(str(path))}`"
    try:
        updates = carried_out(directory, _jobs(experiment, jobs))
        failed = shown(updates, experiment, path, quiet)
    except KeyboardInterrupt:
        print(f"\nundrift: interrupted; {again} goes on", file=sys.stderr)
        raise
    except OSError as error:
        said = f"{error.strerror or error}; what was recorded is kept, {again} goes on when that is mended"
        raise OSError(error.errno, said, error.filename) from error
    if failed:
        first, reason = next(iter(failed.items()))
        count = f"{len(failed)} of {len(members(directory))} runs failed"
        raise InvalidInput(f"{count}; {first}: {reason}; {again} tries again")
    report_on([path], path, quiet)


def free(path: Path) -> Path:
    """This path, or the first with a number behind it that is not there yet."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _jobs(experiment: Experiment, jobs: int | None) -> int:
    usual = 1 if experiment.on_ray else o.cores()  # a run on Ray takes the whole cluster
    return min(jobs or usual, len(experiment.runs()))


def with_threads(experiment: Experiment, jobs: int | None) -> Experiment:
    """Sums depend on the number of threads in their last bits, so it is part of the experiment."""
    if experiment.threads is not None:
        return experiment
    threads = max(1, o.cores() // _jobs(experiment, jobs))
    return experiment.model_copy(update={"threads": threads})


def _dry(experiment: Experiment, jobs: int | None) -> None:
    """What would be done: shown, and tried for a round or two in memory."""
    from undrift.experiments.report.format import format_bytes, format_seconds  # slow to import

    print(as_toml(experiment))
    torch.set_num_threads(experiment.threads or 1)
    total = 0.0
    for label in experiment.labels:
        one = experiment.single(label, experiment.seeds[0])
        config = config_of(one, federation(one, one.seeds[0]))
        config = replace(config, rounds=2)  # too short to be compiled
        if label == experiment.labels[0]:
            print(f"# {config.problem.x0.numel():,} parameters, {config.problem.N:,} clients")
        playing = prepare(config).play()
        next(playing)  # the first round is slower than those after it
        began = perf_counter()
        r = next(playing, None)
        a_round, sent = perf_counter() - began, 0 if r is None else r.bytes_down + r.bytes_up
        total += a_round * experiment.rounds * len(experiment.seeds)
        print(f"# {label}: {format_bytes(sent)} and {a_round * 1000:.0f} ms a round")
    at_a_time = _jobs(experiment, jobs)
    print(
        f"# {len(experiment.runs())} runs, about {format_seconds(total / at_a_time)}; nothing was started"
    )
