"""Experiments carried out in run directories: started, gone on with, several at a time."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from undrift.engines import choose
from undrift.errors import InvalidInput
from undrift.events.engine import visits_by
from undrift.experiment.description import EngineSection, Experiment
from undrift.experiment.federation import Federation, federation
from undrift.experiment.virtual import PopulationSection
from undrift.record.directory import (
    FEDERATION,
    RunDirectory,
    as_line,
    create,
    figures,
    opened,
    rewritten,
)
from undrift.record.files import lock, read_json, write_json
from undrift.record.logs import Logs
from undrift.record.recorded import Settings, played, recorded


@dataclass(frozen=True)
class Update:
    """News of a run: a round is done, or the run is."""

    run: Path
    round: int
    rounds: int
    figures: dict[str, float | None]
    bytes: int  # in this round
    seconds: float
    finished: bool = False
    stopped: str | None = None
    error: str | None = None


def settings_of(experiment: Experiment, made: Federation) -> Settings:
    """The one run of an experiment that has a single method and a single seed."""
    (label,), (seed,) = experiment.labels, experiment.seeds
    return Settings(
        experiment.methods[label].make(),
        made.problem,
        experiment.rounds,
        experiment.participation.make(),
        experiment.local_of(label),
        engine=experiment.engine
        if isinstance(experiment.engine, str)
        else experiment.engine.make(),
        seed=seed,
        evaluate_every=experiment.evaluation.every,
        checkpoint_every=experiment.checkpoint_every,
        state_memory=experiment.state_memory,
        population=experiment.population and experiment.population.make(),
        server=experiment.server and experiment.server.make(),
    )


def prepared(experiment: Experiment, out: Path) -> RunDirectory:
    """A directory for an experiment; its runs are checked first, so that nothing begins that cannot end."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    first = experiment.seeds[0]
    made = federation(experiment, first)
    for label in experiment.labels:
        played(settings_of(experiment.single(label, first), made))
    experiment = _with_engine(experiment, made)
    if len(experiment.runs()) == 1:
        experiment = experiment.single(experiment.labels[0], first)
    return create(out, experiment, {"seeds": experiment.seeds})


def _with_engine(experiment: Experiment, made: Federation) -> Experiment:
    """The experiment with its engine chosen: the choice may depend on how fast the machine is at the moment, so a run
    that is repeated or resumed must be told."""
    if not isinstance(experiment.engine, str):
        return experiment
    engine = experiment.engine
    if experiment.timed:
        population = (experiment.population or PopulationSection()).make()
        engine = visits_by(engine, population, made.problem)
    choice = choose(
        made.problem,
        rounds=experiment.rounds,
        participation=experiment.participation.make(),
        local=experiment.local_of(experiment.labels[0]),
        engine=engine,
    )
    words = {"name": choice.engine, "chunk": choice.chunk, "workers": choice.workers}
    section = EngineSection(**words, since=choice.since)
    return experiment.model_copy(update={"engine": section})


def extended(directory: RunDirectory, rounds: int) -> RunDirectory:
    """The same experiment for more rounds: what is done stays, the rest is left to do."""
    held = lock(directory.path)
    try:
        for path in [*dict.fromkeys([*members(directory), directory.path])]:
            each = RunDirectory(path)
            before = each.experiment()
            if rounds <= before.rounds:
                raise InvalidInput(
                    f"{path} has {before.rounds} rounds already: --rounds must be more, got {rounds}"
                )
            longer = before.model_copy(update={"rounds": rounds})
            rewritten(each, longer)
    finally:
        held.release()
    return directory


def members(directory: RunDirectory) -> list[Path]:
    """Where the runs of a directory are: itself if it is of one method and one seed."""
    experiment = directory.experiment()
    runs = experiment.runs()
    if len(runs) == 1:
        return [directory.path]
    return [directory.path / label / f"seed-{seed}" for label, seed in runs]


def carried_out(directory: RunDirectory, jobs: int = 1) -> Iterator[Update]:
    """Do what is left to do of an experiment; `jobs` runs at a time, each in a process of its own if more than one."""
    held = lock(directory.path)
    try:
        experiment = directory.experiment()
        paths = members(directory)
        if len(paths) > 1:
            for path, (label, seed) in zip(paths, experiment.runs(), strict=True):
                if not path.exists():
                    create(path, experiment.single(label, seed), {"seeds": [seed]})
        left = [path for path in paths if RunDirectory(path).result() is None]
        if jobs > 1 and len(left) > 1:
            yield from _in_processes(left, min(jobs, len(left)), experiment.threads)
        else:
            for path in left:
                yield from one_run(path, held_already=path == directory.path)
    finally:
        held.release()


def one_run(path: Path, held_already: bool = False) -> Iterator[Update]:
    """Begin or go on with the run of a directory."""
    directory = opened(path)
    held = None if held_already else lock(path)
    try:
        experiment = directory.experiment()
        if experiment.threads is not None:
            torch.set_num_threads(experiment.threads)
        made = federation(experiment, experiment.seeds[0])
        _check_data(directory, made)
        settings = settings_of(experiment, made)
        logs = _logs(experiment, path)
        try:
            for r in recorded(path, settings, logs):
                seen = figures(as_line(r))
                sent = r.bytes_down + r.bytes_up
                yield Update(path, r.round, settings.rounds, seen, sent, r.seconds)
        finally:
            if logs is not None:
                logs.close()
        result = directory.result() or {}
        yield Update(
            path,
            result["rounds"],
            settings.rounds,
            result["last"],
            0,
            0.0,
            finished=True,
            stopped=result["stopped"],
        )
    finally:
        if held is not None:
            held.release()


def _logs(experiment: Experiment, path: Path) -> Logs | None:
    if not experiment.log:
        return None
    (label,), (seed,) = experiment.labels, experiment.seeds
    config = {"seed": seed, "algorithm": label, "data": experiment.data.name}
    return Logs(experiment.log, path, f"{label} seed {seed}", config)


def _check_data(directory: RunDirectory, made: Federation) -> None:
    """Remember what the federation is made of; refuse other data than those the run began with."""
    path = directory.path / FEDERATION
    if not path.exists():
        write_json(path, {**made.problem.summary(), "checksums": made.checksums})
        return
    known = read_json(path)["checksums"]
    for name in sorted({*known, *made.checksums}):
        if known.get(name) != made.checksums.get(name):
            raise InvalidInput(
                f"the data have changed since the run in {directory.path} began: {name} has another checksum; "
                "put the old file back, or start a new run"
            )


# several runs at a time


def _in_processes(paths: Sequence[Path], jobs: int, threads: int | None) -> Iterator[Update]:
    """Deal runs to worker processes; their news arrive as lines of JSON."""
    news: Queue[tuple[int, dict[str, Any] | None]] = Queue()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads or 1)}
    command = [sys.executable, "-m", "undrift.record.worker"]
    workers = [
        subprocess.Popen(  # in a session of its own: Ctrl-C reaches it through us, once
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for _ in range(jobs)
    ]

    def listen(number: int) -> None:
        assert (lines := workers[number].stdout) is not None
        for line in lines:
            news.put((number, json.loads(line)))
        news.put((number, None))

    for number in range(jobs):
        threading.Thread(target=listen, args=(number,), daemon=True).start()
    waiting, busy = list(paths), {}
    try:
        for number in range(jobs):
            busy[number] = _hand_over(workers[number], waiting)
        while any(busy.values()):
            number, said = news.get()
            if said is None:  # a worker has ended
                if busy.get(number):
                    code = workers[number].wait()
                    raise InvalidInput(f"the process of {busy[number]} ended with code {code}")
                continue
            update = Update(**{**said, "run": Path(said["run"])})
            yield update
            if update.finished or update.error:
                busy[number] = _hand_over(workers[number], waiting)
    finally:
        for worker in workers:
            _stopped(worker)


def _hand_over(worker: subprocess.Popen[str], waiting: list[Path]) -> Path | None:
    """Give a worker its next run, or nothing more."""
    assert worker.stdin is not None
    if not waiting:
        worker.stdin.close()
        return None
    path = waiting.pop(0)
    worker.stdin.write(f"{path}\n")
    worker.stdin.flush()
    return path


def _stopped(worker: subprocess.Popen[str]) -> None:
    """A worker that is done, or asked to end as by Ctrl-C: it writes a checkpoint first."""
    assert worker.stdin is not None and worker.stdout is not None
    idle = worker.stdin.closed
    if worker.poll() is None and not idle:
        worker.send_signal(signal.SIGINT)
    try:
        worker.wait(timeout=60)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    with suppress(BrokenPipeError):
        worker.stdin.close()
    worker.stdout.close()
