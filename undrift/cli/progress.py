"""Progress: bars on a terminal, plain lines elsewhere, nothing if so wished."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from undrift.experiments.config import Experiment
from undrift.experiments.runs.running import Update

EVERY = 5.0  # seconds between plain lines


@dataclass
class _Run:
    """What is known of a run while it goes on."""

    round: int = 0
    bytes: int = 0
    metrics: dict[str, float | None] = field(default_factory=dict)
    began: float = field(default_factory=monotonic)
    first: int | None = None  # the round it was at when we began to look

    def take(self, update: Update) -> None:
        if self.first is None:
            self.first = max(0, update.round - 1)
        self.round, self.bytes = update.round, update.bytes
        self.metrics = update.metrics or self.metrics

    def status(self) -> str:
        value = self.metrics.get("accuracy", self.metrics.get("loss"))
        name = "accuracy" if "accuracy" in self.metrics else "loss"
        shown = "" if value is None else f"{name} {value:.3f}, "
        return f"{shown}{self.bytes / 1e6:.1f} MB"

    def left(self, rounds: int) -> float:
        done = self.round - (self.first or 0)
        return (monotonic() - self.began) / max(1, done) * (rounds - self.round)


Say: TypeAlias = Callable[[str, _Run, Update], None]


def show_updates(
    updates: Iterable[Update], experiment: Experiment, path: Path, quiet: bool
) -> dict[str, str]:
    """Show updates as they come; returns what failed, by run."""
    if quiet:
        display = _silent()
    elif sys.stderr.isatty():
        display = _bars(experiment)
    else:
        display = _lines()
    runs: dict[Path, _Run] = {}
    failed: dict[str, str] = {}
    with display as say:
        for update in updates:
            name = _name(update.run, path, experiment)
            if update.error is not None:
                failed[name] = update.error
                continue
            run = runs.setdefault(update.run, _Run())
            run.take(update)
            say(name, run, update)
    return failed


def _name(run: Path, path: Path, experiment: Experiment) -> str:
    if run == path:
        return experiment.labels[0]
    return f"{run.parent.name}, seed {run.name.removeprefix('seed-')}"


@contextmanager
def _silent() -> Iterator[Say]:
    yield lambda name, run, update: None


@contextmanager
def _lines() -> Iterator[Say]:
    printed: dict[str, float] = {}

    def say(name: str, run: _Run, update: Update) -> None:
        if update.stopped:
            print(f"{name}: stopped after round {run.round}: {update.stopped}", file=sys.stderr)
        elif update.finished:
            print(f"{name}: done, {run.round} rounds, {run.status()}", file=sys.stderr)
        elif monotonic() - printed.setdefault(name, monotonic()) > EVERY:
            printed[name] = monotonic()
            left = f"{run.left(update.rounds):.0f} s left"
            print(
                f"{name}: round {run.round}/{update.rounds}, {run.status()}, {left}",
                file=sys.stderr,
            )

    yield say


@contextmanager
def _bars(experiment: Experiment) -> Iterator[Say]:
    """A bar for everything, and one for each run that is going on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        several = len(experiment.runs()) > 1
        total = len(experiment.runs()) * experiment.rounds
        whole = progress.add_task("[bold]all", total=total, status="rounds", visible=several)
        bars: dict[str, TaskID] = {}

        def say(name: str, run: _Run, update: Update) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=update.rounds, status="")
                progress.update(whole, advance=(run.first or 0))
            bar = bars[name]
            before = progress.tasks[progress.task_ids.index(bar)].completed
            progress.update(bar, completed=run.round, status=run.status())
            progress.update(whole, advance=max(0, run.round - max(before, run.first or 0)))
            if update.finished:
                progress.update(bar, visible=False)
                how = f"[red]stopped: {update.stopped}" if update.stopped else run.status()
                progress.console.print(f"{name}: {run.round} rounds, {how}")

        yield say


def set_verbosity(verbose: bool) -> None:
    """Log to stderr, more or less."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=logging.WARNING, format="undrift: %(message)s")
    logging.getLogger("undrift").setLevel(level)
