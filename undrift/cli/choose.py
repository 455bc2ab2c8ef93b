"""undrift choose."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from undrift.cli import options as o
from undrift.cli.sweeps import SpaceName, Trials, Validate, shown
from undrift.cli.terminal import make_console, printer, resumable, set_verbosity, status
from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value
from undrift.experiments.choosing.answer import Choice, Final
from undrift.experiments.choosing.choosing import (
    CHOICE,
    DEFAULT_METHODS,
    Choosing,
    carry_out,
    conclude,
    prepare_choosing,
)
from undrift.experiments.choosing.describe import federation_in_words
from undrift.experiments.config import Experiment, read
from undrift.experiments.report.format import format_bytes, format_metric, format_seconds
from undrift.experiments.report.tables import make_table
from undrift.experiments.sweeps.trial import TrialDone

Minutes = Annotated[float, Option("--minutes", help="What it may take, about; settles trials, rounds and seeds")]
Methods = Annotated[
    list[str] | None,
    Option("--methods", metavar="NAME,NAME", help="Which to choose from", show_default=",".join(DEFAULT_METHODS)),
]


@o.takes_experiment
def choose(
    given: dict[str, Any],
    file: Annotated[
        Path | None, Argument(help="An experiment file, whose methods are chosen from; or describe it by options")
    ] = None,
    minutes: Minutes = 5.0,
    methods: Methods = None,
    trials: Trials = None,
    space: SpaceName = "choose",
    validate: Validate = 0.2,
    out: o.Out = None,
    dry: o.Dry = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Say which method to take on a federation, with which settings, at what price, and how sure that is.

    A short list is tuned on held-out data, every method with the same trials, rounds and seeds; the best of each is run
    again with other seeds.  The work is settled by --minutes before it starts, or by --trials, --rounds and --seeds.
    Interrupted and called again, it resumes.

    Example: undrift choose --data mnist --dirichlet 0.1 --minutes 10
    """
    set_verbosity(verbose)
    names = _names(methods)
    experiment = _experiment(file, names, given)
    settled = {"trials": trials, "rounds": given.get("rounds"), "seeds": given.get("seeds")}
    settled = {name: value for name, value in settled.items() if value is not None}
    directory = out or Path("runs") / f"choose-{experiment.name or experiment.data.name}"
    with status(quiet) as show:
        show(f"reading {experiment.data.name}, measuring rounds of {len(experiment.labels)} methods")
        drop = names is None and file is None
        ready = prepare_choosing(experiment, minutes, settled, space, validate, directory, drop)
    if dry:
        return print_plan(ready, quiet=False)
    work_and_answer(ready, directory, quiet)


def _names(methods: list[str] | None) -> list[str] | None:
    if methods is None:
        return None
    names = [name for text in methods for name in text.replace(",", " ").split()]
    with_settings = [name for name in names if ":" in name or "=" in name]
    if with_settings or not names:
        got = with_settings[0] if with_settings else "nothing"
        raise InvalidInput(
            f"--methods takes names, as in --methods fedavg,scaffold: settings are what is tuned; got {got}"
        )
    return names


def _experiment(file: Path | None, names: list[str] | None, given: dict[str, Any]) -> Experiment:
    words = {key: value for key, value in given.items() if key not in ("seeds", "rounds")}
    for name in ("seeds", "rounds"):
        check_value("choose", f"--{name}", given.get(name), int, default=None, within="[1, inf)")
    if file is None:
        return o.make_experiment(names or list(DEFAULT_METHODS), words, given.get("data", "digits"))
    if names is not None:
        raise InvalidInput("--methods names methods of the short list; those of a file are in the file")
    if set(words) - {"settings"}:
        raise InvalidInput("an experiment file says all of it: change it with --set KEY=VALUE")
    return read(file, given.get("settings", ()))


def print_plan(ready: Choosing, quiet: bool) -> None:
    """The federation, and what is going to be done."""
    say = printer(make_console(quiet=quiet))
    budget, sweep = ready.budget, ready.sweep
    for line in federation_in_words(ready.federation):
        say(line)
    say(f"methods: {', '.join(sweep.experiment.labels)}")
    for label, reason in ready.dropped.items():
        say(f"{label} is left out: {reason}")
    about = "" if ready.estimate is None else f", about {format_seconds(ready.estimate)}"
    data = f"{sweep.plan.validate:.0%} of every client's training data held out" if sweep.plan.validate else "test data"
    say(
        f"plan: {budget} for every method, and the best of each again with {budget.final_seeds} other seeds{about}; judged by "
        f"{sweep.metric} on {data}"
    )
    say(f"the same work again: --trials {budget.trials} --seeds {budget.seeds} --rounds {budget.rounds}")


def work_and_answer(ready: Choosing, directory: Path, quiet: bool) -> None:
    """Do the work, telling what has ended, and print the answer."""
    print_plan(ready, quiet)
    console = make_console(quiet=quiet)
    say = printer(console)
    with resumable(directory):
        for ended in carry_out(ready, directory):
            say(_line(ended, ready))
    found = conclude(ready, directory)
    console.print(_table(found))
    for line in (*found.answer(), found.next, f"written to {directory / CHOICE}"):
        say(line)


def _line(ended: TrialDone | Final, ready: Choosing) -> str:
    metric, last = ready.sweep.metric, ready.sweep.last
    if isinstance(ended, Final):
        values = ended.qualities(last)
        said = ended.stopped or format_metric(sum(values) / len(values), metric)
        return f"{ended.label} with {shown(dict(ended.tuned))} and other seeds: {said}"
    outcome = ended.outcome
    said = format_metric(outcome.quality, metric) if outcome.state == "done" else outcome.state
    return f"{ended.label} {ended.number + 1}/{ended.of}: {shown(ended.chosen)}: {said}"


def _table(found: Choice) -> Any:
    rows = []
    for c in found.contenders:
        noise = {True: "yes", False: "no", None: "unknown"}[c.noise]
        price = ["never", "never"] if c.bytes is None else [str(c.rounds), format_bytes(c.bytes)]
        quality = format_metric(c.quality, found.metric, c.spread)
        rows.append(
            [c.label, shown(dict(c.tuned)), quality, noise, *price, format_bytes(c.state) if c.state else "none"]
        )
    to = f"to {found.baseline}'s quality"
    heads = [
        "method",
        "best settings",
        found.metric,
        "within noise of the best",
        f"rounds {to}",
        f"bytes {to}",
        "client state",
    ]
    return make_table(heads, rows, right=heads[2:])
