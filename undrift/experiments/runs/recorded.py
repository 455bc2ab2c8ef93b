"""A run that leaves everything behind: figures line by line, checkpoints, the best and the last model."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from undrift.core.algorithm import Algorithm
from undrift.core.errors import Stopped
from undrift.local.settings import Local
from undrift.problems import Problem
from undrift.experiments.runs.checkpoint import Checkpoints, Saved, newest
from undrift.experiments.runs.directory import METRICS, RESULT, TIMES, VISITS, as_line, figures
from undrift.experiments.runs.files import Lines, alone, holds, plain, read_lines, write_aside, write_json
from undrift.experiments.runs.interrupts import Interrupts
from undrift.experiments.runs.loggers import Logs
from undrift.simulation.asynchronous.async_state import InFlight, still_out
from undrift.simulation.asynchronous.clock import PICTURED
from undrift.simulation.asynchronous.policies import ServerPolicy
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.client_states import ClientStates
from undrift.simulation.driver import Best, Round, State, better, rounds
from undrift.simulation.engines import Choice
from undrift.simulation.participation import Participation


@dataclass(frozen=True)
class Settings:
    """A run, as `ud.rounds` takes it, and how it is kept."""

    algorithm: Algorithm
    problem: Problem
    rounds: int
    participation: Participation
    local: Local
    engine: str | Choice = "auto"
    seed: int = 0
    evaluate_every: int = 1
    checkpoint_every: int = 10
    state_memory: int | None = None
    population: Population | None = None
    server: ServerPolicy | None = None

    @property
    def timed(self) -> bool:
        """Whether the run is in virtual time."""
        return self.population is not None or self.server is not None


def recorded(
    folder: Path,
    settings: Settings,
    logs: Logs | None = None,
    play: Callable[[State], Iterator[Round]] | None = None,
) -> Iterator[Round]:
    """Every round of a run, recorded in a folder; begins where the newest usable checkpoint ends.

    `play` gives the rounds after a state, if another engine than `ud.rounds` does.

    Stopped at any moment, by any means, and called again, it records what an uninterrupted run would have.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    saved = newest(checkpoints, lambda: _fresh(settings, folder), lambda s: _recorded_by(folder, s))
    record = _Record(folder, checkpoints, saved, _fresh(settings, folder), settings.timed)
    state = record.kept.state
    checkpoints.forget_after(state.round)
    play = play or (lambda start: played(settings, start))
    playing = play(state) if state.round < settings.rounds else iter(())
    whole = True  # nothing is half done
    with Interrupts() as interrupts:
        try:
            while True:
                whole, stopped = False, None
                try:
                    r = next(playing, None)
                except Stopped as end:
                    r, stopped = None, str(end)
                if r is None:
                    break
                record.add(r, settings.checkpoint_every)
                if logs is not None:
                    logs.add(r)
                whole = True
                yield r
                interrupts.check()
            record.end(settings.problem, stopped)
        finally:  # also if the caller stops asking: what is whole is kept
            record.close(save=whole)


@dataclass(frozen=True)
class _Kept:
    """A whole round and everything recorded by then; replaced in one step, so that no interruption splits it."""

    state: State
    best: Best | None
    marks: dict[str, dict[str, int]]


class _Record:
    """What has been recorded so far."""

    def __init__(
        self,
        folder: Path,
        checkpoints: Checkpoints,
        saved: Saved | None,
        fresh: State,
        timed: bool,
    ):
        self.folder, self.checkpoints = folder, checkpoints
        marks = saved.marks if saved else {}
        self.lines = {name: _lines(folder / name, marks) for name in (METRICS, TIMES)}
        if timed:
            self.lines[VISITS] = _lines(folder / VISITS, marks)
        self.kept = _Kept(saved.state, saved.best, marks) if saved else _Kept(fresh, None, marks)
        self.saved = self.kept.state.round

    def add(self, r: Round, checkpoint_every: int) -> None:
        self.lines[METRICS].add(as_line(r))
        self.lines[TIMES].add({"round": r.round, "seconds": r.seconds})
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
        for visit in still_out(
            state.flight
        ):  # after the checkpoint: a run that goes on records how they end
            if visit.order <= PICTURED:
                self.lines[VISITS].add(asdict(visit))
        _write_model(self.folder / "model.safetensors", problem, state.server.x, state.round)
        if best is not None:
            _write_model(self.folder / "best.safetensors", problem, best.x, best.round)
        about_best = best and {"round": best.round, "value": plain(best.value)}
        lines = list(read_lines(self.folder / METRICS))
        last = next((figures(line) for line in reversed(lines) if figures(line)), {})
        result = {"rounds": state.round, "stopped": stopped, "last": last}
        how = {"best": about_best, "models": _how_to_load(problem)}
        write_json(self.folder / RESULT, result | how)

    def close(self, save: bool) -> None:
        try:
            if save and self.saved < self.kept.state.round:
                self.checkpoint(wait=True)
            self.checkpoints.finish()
        finally:
            self.checkpoints.close()
            for lines in self.lines.values():
                lines.close()


def _fresh(settings: Settings, folder: Path) -> State:
    algorithm, x = settings.algorithm, settings.problem.x0.detach().clone()
    clients = ClientStates(algorithm.client(x), settings.state_memory, folder)
    server = algorithm.server(x)
    flight = InFlight(algorithm.send(server)).record() if settings.timed else None
    return State(0, server, clients, flight)


def played(settings: Settings, start: State | None = None) -> Iterator[Round]:
    """The rounds of a run, not recorded; what cannot run is refused at once."""
    return rounds(
        settings.algorithm,
        settings.problem,
        rounds=settings.rounds,
        participation=settings.participation,
        local=settings.local,
        engine=settings.engine,
        seed=settings.seed,
        evaluate_every=settings.evaluate_every,
        start=start,
        population=settings.population,
        server=settings.server,
    )


def _recorded_by(folder: Path, saved: Saved) -> bool:
    return all(holds(folder / name, mark) for name, mark in saved.marks.items())


def _lines(path: Path, marks: dict[str, dict[str, int]]) -> Lines:
    mark = marks.get(path.name, {"bytes": 0, "crc32": 0})
    return Lines(path, mark["bytes"], mark["crc32"])


def _write_model(path: Path, problem: Problem, x: Tensor, round: int) -> None:
    """By the names of the module's parameters where there is a module, else one vector `x`."""
    flat: Any = getattr(problem, "flat", None)
    named = {"x": x} if flat is None else flat.parameters(x)
    content = {name: alone(value) for name, value in named.items()}
    write_aside(path, save(content, metadata={"round": str(round)}))


def _how_to_load(problem: Problem) -> str:
    if getattr(problem, "flat", None) is None:
        return 'safetensors.torch.load_file("best.safetensors")["x"]'
    return 'model.load_state_dict(safetensors.torch.load_file("best.safetensors"), strict=False)'
