"""A run that leaves everything behind: metrics line by line, checkpoints, the best and the last model."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from safetensors.torch import save
from torch import Tensor

from undrift.core.errors import Stopped
from undrift.experiments.runs.checkpoint import Checkpoints, Saved, newest
from undrift.experiments.runs.directory import METRICS, RESULT, TIMES, VISITS, as_line, as_time, metrics_in, times_until
from undrift.experiments.runs.files import (
    OWNER_ONLY,
    Lines,
    alone,
    holds,
    mark_of,
    marked,
    plain,
    read_checked,
    write_aside,
    write_json,
)
from undrift.experiments.runs.loggers import Logs
from undrift.problems import Problem
from undrift.problems.protocols import FromModule
from undrift.simulation.api import RunConfig, prepare
from undrift.simulation.asynchronous.async_state import still_out
from undrift.simulation.asynchronous.clock import RECORDED_VISITS
from undrift.simulation.results import Best, Round, State, better

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Recording:
    """How a run is kept."""

    checkpoint_every: int = 10
    state_memory: int | None = None


USUAL = Recording()


def recorded(
    folder: Path,
    config: RunConfig,
    recording: Recording = USUAL,
    logs: Logs | None = None,
    play: Callable[[State], Iterator[Round]] | None = None,
) -> Iterator[Round]:
    """Every round of a run, recorded in a folder; begins where the newest usable checkpoint ends.

    `play` gives the rounds after a state, if another engine than `ud.rounds` does.

    Stopped at any moment, by any means, and called again, it records what an uninterrupted run would have.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    memory = recording.state_memory
    fresh = lambda: config.first_state(memory, folder, timed=config.timed)
    saved = newest(checkpoints, fresh, lambda s: _recorded_by(folder, s))
    record = _Record(folder, checkpoints, saved, fresh(), config.timed)
    state = record.kept.state
    checkpoints.forget_after(state.round)
    play = play or prepare(config).play
    playing = play(state) if state.round < config.rounds else iter(())
    whole = True  # nothing is half done
    with _between_rounds() as stop_if_asked:
        try:
            while True:
                whole, stopped = False, None
                try:
                    r = next(playing, None)
                except Stopped as end:
                    r, stopped = None, str(end)
                if r is None:
                    break
                record.add(r, recording.checkpoint_every)
                if logs is not None:
                    logs.add(r)
                whole = True
                yield r
                stop_if_asked()
            record.end(config.problem, stopped)
        finally:  # also if the caller stops asking: what is whole is kept
            record.close(save=whole)


@contextmanager
def _between_rounds() -> Iterator[Callable[[], None]]:
    """While this is entered, Ctrl-C (or SIGTERM) is held back until what it gives is called; a second one acts at once.

    What is computed and recorded together is therefore whole when a run is stopped politely.  Only the main thread hears
    signals; elsewhere this does nothing.
    """
    asked = False

    def stop_if_asked() -> None:
        if asked:
            raise KeyboardInterrupt

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        stop_if_asked()
        asked = True

    heard = [number for number in SIGNALS if signal.getsignal(number) is signal.default_int_handler]
    heard = heard if threading.current_thread() is threading.main_thread() else []
    for number in heard:
        signal.signal(number, hear)
    try:
        yield stop_if_asked
    finally:
        for number in heard:
            signal.signal(number, signal.default_int_handler)


@dataclass(frozen=True)
class _Kept:
    """A whole round and everything recorded by then; replaced in one step, so that no interruption splits it."""

    state: State
    best: Best | None
    marks: dict[str, dict[str, int]]


class _Record:
    """What has been recorded so far."""

    def __init__(self, folder: Path, checkpoints: Checkpoints, saved: Saved | None, fresh: State, timed: bool):
        self.folder, self.checkpoints = folder, checkpoints
        marks = saved.marks if saved else {}
        names = (METRICS, VISITS) if timed else (METRICS,)
        self.lines = {name: _lines(folder / name, marks.get(name)) for name in names}
        self.times = times_until(folder / TIMES, saved.state.round if saved else 0)
        self.kept = _Kept(saved.state, saved.best, marks) if saved else _Kept(fresh, None, marks)
        self.saved = self.kept.state.round

    def add(self, r: Round, checkpoint_every: int) -> None:
        self.lines[METRICS].add(as_line(r))
        self.times.add(as_time(r))
        for visit in r.timing.visits if r.timing else ():
            self.lines[VISITS].add(asdict(visit))
        marks = {name: lines.mark() for name, lines in self.lines.items()}
        self.kept = _Kept(r.state, better(self.kept.best, r), marks)
        if r.round % checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self, wait: bool = False) -> None:
        kept = self.kept
        if self.checkpoints.save(kept.state, kept.best, kept.marks, wait):
            self.saved = kept.state.round

    def end(self, problem: Problem, stopped: str | None) -> None:
        """The models, and how it ended."""
        if self.saved < self.kept.state.round:
            self.checkpoint(wait=True)
        state, best = self.kept.state, self.kept.best
        for visit in still_out(state.in_flight):  # after the checkpoint: a resumed run records how they end
            if visit.order <= RECORDED_VISITS:
                self.lines[VISITS].add(asdict(visit))
        _write_model(self.folder / "model.safetensors", problem, state.server.x, state.round)
        if best is not None:
            _write_model(self.folder / "best.safetensors", problem, best.x, best.round)
        about_best = best and {"round": best.round, "value": plain(best.value)}
        lines = read_checked(self.folder / METRICS)
        last = next((metrics_in(line) for line in reversed(lines) if metrics_in(line)), {})
        result = {"rounds": state.round, "stopped": stopped, "last": last}
        how = {"best": about_best, "models": _how_to_load(problem)}
        models = ["model.safetensors"] + ["best.safetensors"] * (best is not None)
        files = {name: mark_of(self.folder / name) for name in models}
        files |= {name: lines.mark() for name, lines in self.lines.items()}
        write_json(self.folder / RESULT, {**result, **how, "files": files})

    def close(self, save: bool) -> None:
        try:
            if save and self.saved < self.kept.state.round:
                self.checkpoint(wait=True)
            self.checkpoints.finish()
        finally:
            self.checkpoints.close()
            for lines in (*self.lines.values(), self.times):
                lines.close()


def _recorded_by(folder: Path, saved: Saved) -> bool:
    """Whether what was recorded by then is there, in the files or in their copies."""
    return all(marked(folder / name, mark) is not None for name, mark in saved.marks.items())


def _lines(path: Path, mark: dict[str, int] | None) -> Lines:
    """The file to append to: as it was when it was marked, from its copy if need be."""
    if mark is None:
        return Lines(path, copy=True)
    if not holds(path, mark):
        write_aside(path, marked(path, mark) or b"")
    return Lines(path, mark["bytes"], mark["crc32"], copy=True)


def _write_model(path: Path, problem: Problem, x: Tensor, round: int) -> None:
    """By the names of the module's parameters where there is a module, else one vector `x`."""
    named = problem.named_parameters(x) if isinstance(problem, FromModule) else {"x": x}
    content = {name: alone(value) for name, value in named.items()}
    write_aside(path, save(content, metadata={"round": str(round)}), OWNER_ONLY)


def _how_to_load(problem: Problem) -> str:
    if not isinstance(problem, FromModule):
        return 'safetensors.torch.load_file("best.safetensors")["x"]'
    return 'model.load_state_dict(safetensors.torch.load_file("best.safetensors"), strict=False)'
