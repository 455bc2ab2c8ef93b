"""Progress: bars on a terminal, plain lines elsewhere, nothing if so wished."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from undrift.experiments.config import Experiment
from undrift.experiments.report.format import format_bytes, format_seconds, plural
from undrift.experiments.runs.running import Update
from undrift.metrics.quality import usual_first

EVERY = 5.0  # seconds between plain lines


@dataclass
class _Run:
    """What is known of a run while it goes on."""

    news: Update  # the last
    waited: float  # seconds until its first news
    metrics: dict[str, float | None] = field(default_factory=dict)
    seen: list[tuple[float, int]] = field(default_factory=list)  # moments, and the round that was done

    def take(self, update: Update, now: float) -> None:
        self.news = update
        self.metrics = update.metrics or self.metrics
        if not self.seen or update.round > self.seen[-1][1]:
            self.seen.append((now, update.round))

    @property
    def pace(self) -> float | None:
        """Seconds a round, by the later half of what was seen: the first rounds compile, and say nothing of the others."""
        later = self.seen[len(self.seen) // 2 :]
        if len(self.seen) < 3 or len(later) < 2:
            return None
        return (later[-1][0] - later[0][0]) / (later[-1][1] - later[0][1])

    @property
    def left(self) -> float | None:
        """Seconds until it is done."""
        if self.news.finished:
            return 0.0
        return None if self.pace is None else self.pace * (self.news.rounds - self.news.round)

    def status(self) -> str:
        name = next(iter(usual_first(self.metrics)), "")
        value = self.metrics.get(name)
        shown = "" if value is None else f"{name} {value:.3f}"
        last = " in the last round" if self.news.finished and shown else ""
        return ", ".join(filter(None, [shown + last, format_bytes(self.news.bytes)]))


@dataclass
class Forecast:
    """How long a number of runs take, `jobs` at a time: from the pace of those that have begun.

    Nothing is said before there is a pace: a guess that shrinks tenfold is worse than none.
    """

    runs: int  # in all
    jobs: int
    began: float
    known: dict[Path, _Run] = field(default_factory=dict)
    ends: float = 0.0  # when the last run finished

    def take(self, update: Update, now: float) -> _Run:
        """News of a run."""
        if update.run not in self.known:
            self.known[update.run] = _Run(update, now - max(self.began, self.ends))
        run = self.known[update.run]
        run.take(update, now)
        if update.finished:
            self.ends = now
        return run

    def left(self) -> float | None:
        """Seconds until all runs are done: each that waits goes to whoever is free first."""
        lefts = [run.left for run in self.known.values() if not run.news.finished]
        paces = [run.pace for run in self.known.values() if run.pace is not None]
        if None in lefts or not paces:
            return None
        ends = sorted([*(left or 0.0 for left in lefts), *[0.0] * max(0, self.jobs - len(lefts))])
        each = fmean(paces) * max(run.news.rounds for run in self.known.values()) + self._before()
        for _ in range(self.runs - len(self.known)):
            ends = sorted([ends[0] + each, *ends[1:]])
        return ends[-1]

    def _before(self) -> float:
        """What a run that follows another takes before its first news."""
        later = [run.waited for run in list(self.known.values())[self.jobs :]]
        return fmean(later) if later else 0.0


Say: TypeAlias = Callable[[str, _Run], None]


def show_updates(
    updates: Iterable[Update], experiment: Experiment, path: Path, quiet: bool, runs: int, jobs: int
) -> dict[str, str]:
    """Show updates of so many runs as they come, so many at a time; returns what failed, by run."""
    forecast = Forecast(runs, max(1, min(jobs, runs)), monotonic())
    if quiet:
        display = nullcontext(lambda name, run: None)
    elif sys.stderr.isatty():
        display = _bars(experiment, forecast)
    else:
        display = _lines()
    failed: dict[str, str] = {}
    with display as say:
        for update in updates:
            name = _name(update.run, path, experiment)
            if update.error is not None:
                failed[name] = update.error
                continue
            say(name, forecast.take(update, monotonic()))
    return failed


def _name(run: Path, path: Path, experiment: Experiment) -> str:
    if run == path:
        return experiment.labels[0]
    return f"{run.parent.name}, seed {run.name.removeprefix('seed-')}"


@contextmanager
def _lines() -> Iterator[Say]:
    printed: dict[str, float] = {}

    def say(name: str, run: _Run) -> None:
        news = run.news
        if news.stopped:
            print(f"{name}: stopped after round {news.round}: {news.stopped}", file=sys.stderr)
        elif news.finished:
            print(f"{name}: done, {plural(news.round, 'round')}, {run.status()}", file=sys.stderr)
        elif monotonic() - printed.setdefault(name, monotonic()) > EVERY:
            printed[name] = monotonic()
            left = "" if run.left is None else f", {run.left:.0f} s left"
            print(f"{name}: round {news.round}/{news.rounds}, {run.status()}{left}", file=sys.stderr)

    yield say


@contextmanager
def _bars(experiment: Experiment, forecast: Forecast) -> Iterator[Say]:
    """A bar for everything, and one for each run that is going on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[status]}"),
        TextColumn("{task.fields[left]}", style="cyan"),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        total = forecast.runs * experiment.rounds
        whole = progress.add_task("[bold]all", total=total, status="rounds", left="", visible=forecast.runs > 1)
        bars: dict[str, TaskID] = {}

        def say(name: str, run: _Run) -> None:
            news = run.news
            if name not in bars:
                bars[name] = progress.add_task(name, total=news.rounds, status="", left="")
            progress.update(bars[name], completed=news.round, status=run.status(), left=_clock(run.left))
            known = [each.news for each in forecast.known.values()]
            done = sum(each.rounds if each.finished else each.round for each in known)
            progress.update(whole, completed=done, left=_clock(forecast.left()))
            if news.finished:
                progress.update(bars[name], visible=False)
                how = f"[red]stopped: {news.stopped}" if news.stopped else run.status()
                progress.console.print(f"{name}: {plural(news.round, 'round')}, {how}")

        yield say


def _clock(seconds: float | None) -> str:
    return "" if seconds is None else f"{format_seconds(round(seconds))} left"
