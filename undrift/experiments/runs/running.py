"""Experiments run in their directories: started, resumed, several runs at a time."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from undrift.core.errors import InvalidInput, setting
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federation, Federations
from undrift.experiments.config.toml import Setting, to_toml, with_settings
from undrift.experiments.runs.directory import (
    EXPERIMENT,
    FEDERATION,
    RunDirectory,
    create,
    metrics_of,
    open_directory,
    rewrite,
    sent_before,
)
from undrift.experiments.runs.files import Damaged, hold, read_json, write_json
from undrift.experiments.runs.loggers import Logs
from undrift.experiments.runs.recorded import Recording, recorded
from undrift.experiments.runs.references import begin_with_best, is_fine_tuned, reference_run
from undrift.metrics.quality import as_target
from undrift.simulation.api import RunConfig, prepare
from undrift.simulation.checks import fit_to_run
from undrift.simulation.client_states import half_of_memory
from undrift.simulation.engines import EngineChoice

log = logging.getLogger("undrift")

STOP = "stop"  # sent to a worker in place of a run


@dataclass(frozen=True)
class Update:
    """News of a run: a round is done, or the run is."""

    run: Path
    round: int
    rounds: int
    metrics: dict[str, float | None]
    bytes: int  # sent so far, down and up
    finished: bool = False
    stopped: str | None = None
    error: str | None = None


def config_of(experiment: Experiment, built: Federation) -> RunConfig:
    """The one run of an experiment that has a single method and a single seed."""
    (label,), (seed,) = experiment.labels, experiment.seeds
    return RunConfig(
        experiment.methods[label].make(),
        built.problem,
        experiment.rounds,
        experiment.participation.make(),
        experiment.local_of(label),
        engine=experiment.engine,
        seed=seed,
        evaluate_every=experiment.evaluation.every,
        population=experiment.population and experiment.population.make(),
        server=experiment.server and experiment.server.make(),
        metrics=experiment.evaluation.metrics,
        codec=experiment.codec_choice,
        privacy=experiment.privacy and experiment.privacy.make(),
    )


def prepare_directory(experiment: Experiment, out: Path, resumes: bool = False) -> RunDirectory:
    """A directory for an experiment; its runs are checked first, so that nothing begins that cannot end.

    resumes   whether one that holds this very experiment already is as good
    """
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    experiment, federations = resolve_engine(experiment)
    if len(experiment.runs()) == 1:
        experiment = experiment.single(experiment.labels[0], experiment.seeds[0])
    if resumes and (out / EXPERIMENT).exists() and RunDirectory(out).experiment_text == to_toml(experiment):
        return open_directory(out)
    return create(out, experiment, federations=federations)


def resolve_engine(experiment: Experiment) -> tuple[Experiment, Federations]:
    """The experiment with its engine written down, so that a run that is repeated or resumed has the same one.

    The first run decides it; the runs of the first seed are checked with it.
    """
    federations, seed = Federations(), experiment.seeds[0]
    built = federations.get(experiment, seed)
    per_round, N = experiment.participation.per_round, built.problem.N
    if per_round is not None and per_round > N:
        asked = setting(f"participation.per_round = {per_round}", participation__per_round=per_round)
        everyone = setting('participation.scheme = "everyone"', participation__scheme="everyone")
        raise InvalidInput(
            f"{asked} is more than there are clients, {N}: ask for at most so many, or for all of them with {everyone}"
        )
    task = built.problem.task
    if experiment.target is not None and task is not None and "test" in experiment.evaluation.metrics:
        if as_target(experiment.target, task.usual[0]) is None:
            raise InvalidInput(
                f"{setting(f'target = {experiment.target:g}', target=f'{experiment.target:g}')} cannot be reached: {task.usual[0]} is a share such as 0.9, or "
                "percent such as 90"
            )
    for label in experiment.labels:
        run = prepare(config_of(experiment.single(label, seed), built))
        first = label == experiment.labels[0]
        if isinstance(experiment.engine, str) or (first and experiment.on_ray):
            experiment = experiment.model_copy(update={"engine": run.plan.choice})
    return experiment, federations


def extend(directory: RunDirectory, rounds: int) -> RunDirectory:
    """The same experiment, with all its runs, for more rounds: what is done stays, the rest is left to do."""
    with hold(directory.path):
        before, paths = directory.experiment(), members(directory)
        if rounds < before.rounds:
            done = max((len(RunDirectory(path).rounds()) for path in paths), default=0)
            raise InvalidInput(
                f"--rounds: {directory.path} is planned for {before.rounds} rounds ({done} are done) and can only be "
                f"made longer, got {rounds}"
            )
        if rounds > before.rounds:
            longer = with_settings(before, [Setting(("rounds",), rounds, f"--rounds {rounds}")])
            _check_extension(before, longer, paths)
            directory = rewrite(directory, longer)
            for path, (label, seed) in zip(paths, longer.runs(), strict=True):
                if path != directory.path and (path / EXPERIMENT).exists():
                    rewrite(open_directory(path), longer.single(label, seed))
    return directory


def _check_extension(before: Experiment, longer: Experiment, paths: Sequence[Path]) -> None:
    """Refuse more rounds for a method whose schedule follows from their number: its first rounds would have been others."""
    if before.privacy is not None and before.privacy.epsilon is not None:
        raise InvalidInput(
            "--rounds: the noise of these rounds was chosen so that all of them together reach privacy.epsilon: more rounds "
            "cannot have the same noise; start a new run"
        )
    known = next((path / FEDERATION for path in paths if (path / FEDERATION).exists()), None)
    if known is None:
        return  # nothing has been done yet
    N = read_json(known)["clients"]
    for label in before.labels:
        fitted = []
        for each in (before, longer):
            local = each.local_of(label).for_run(each.rounds)
            method = fit_to_run(each.methods[label].make(), N, each.participation.make(), each.rounds, local)
            fitted.append((method, local))
        if fitted[0] != fitted[1]:
            raise InvalidInput(
                f"--rounds: the schedule of {label} follows from the number of rounds, {before.rounds}, so its first ones "
                "would have been others: start a new comparison, or give the schedule's own length"
            )


def is_finished(directory: RunDirectory) -> bool:
    """Whether all runs have ended that the directory's experiment asks for, each with as many rounds."""
    rounds = directory.experiment().rounds
    return all(
        RunDirectory(path).result() is not None and open_directory(path).experiment().rounds == rounds
        for path in members(directory)
    )


def set_workers(directory: RunDirectory, workers: int) -> RunDirectory:
    """The same experiment with another number of workers, from the next round on."""
    with hold(directory.path):
        for path in {directory.path, *members(directory)}:
            if (path / EXPERIMENT).exists() and RunDirectory(path).result() is None:
                one = open_directory(path)
                experiment = one.experiment()
                engine = _with_workers(experiment.engine, workers)
                changed = rewrite(one, experiment.model_copy(update={"engine": engine}))
                directory = changed if path == directory.path else directory
    return directory


def _with_workers(engine: str | EngineChoice, workers: int) -> EngineChoice:
    if isinstance(engine, str) or not (engine.engine == "ray" or engine.one_by_one):
        raise InvalidInput(
            "workers are for the engines 'sequential', 'compiled' with chunk = 1, and 'ray': leave --workers out"
        )
    shards = engine.shards
    if shards is not None and workers > shards:
        log.warning(
            "%d shards for %d workers in place of %d: sums are rounded otherwise from here on", workers, workers, shards
        )
        shards = workers
    return replace(engine, workers=workers, shards=shards, threads=None)


def members(directory: RunDirectory) -> list[Path]:
    """Where the runs of a directory are: itself if it is of one method and one seed."""
    runs = directory.experiment().runs()
    if len(runs) == 1:
        return [directory.path]
    return [directory.path / label / f"seed-{seed}" for label, seed in runs]


def run_experiment(directory: RunDirectory, jobs: int = 1, workers: "Sequence[Worker]" = ()) -> Iterator[Update]:
    """Do what is left to do of an experiment; `jobs` runs at a time, each in a process of its own if more than one.

    `workers`: processes for it that have been started before, by `start_workers`.
    """
    with hold(directory.path):
        experiment, runs = directory.experiment(), [directory]
        if len(paths := members(directory)) > 1:
            runs = [
                _open_member(path, experiment.single(label, seed))
                for path, (label, seed) in zip(paths, experiment.runs(), strict=True)
            ]
        for group in (False, True):  # what is fine-tuned has to be there first
            some = [run for run in runs if is_fine_tuned(run.path) is group]
            if group and some:
                some = begin_with_best(directory.path, experiment, some)
            left = [run for run in some if run.result() is None]
            if jobs > 1 and len(left) > 1:
                directory.federations.clear()  # workers build their own
                workers = workers or start_workers(min(jobs, len(left)), experiment.threads)
                yield from _in_processes([run.path for run in left], workers)
                workers = ()
            else:
                for run in left:
                    yield from run_one(run, run.path == directory.path, federations=directory.federations)


def _open_member(path: Path, experiment: Experiment) -> RunDirectory:
    """The directory of one run of a comparison: made if it is not there, longer if the comparison has become so."""
    if not (path / EXPERIMENT).exists():
        return create(path, experiment)
    member = open_directory(path)
    return rewrite(member, experiment) if member.experiment().rounds < experiment.rounds else member


def run_one(
    directory: RunDirectory, held_already: bool = False, at_a_time: int = 1, federations: Federations | None = None
) -> Iterator[Update]:
    """Begin or resume the run of a directory; `at_a_time` such runs share the machine's memory."""
    path = directory.path
    with nullcontext() if held_already else hold(path):
        experiment = directory.experiment()
        if experiment.threads is not None:
            torch.set_num_threads(experiment.threads)
        built = (federations or directory.federations).get(experiment, experiment.seeds[0])
        _check_data(directory, built)
        config = reference_run(experiment, built, path) if experiment.is_reference else config_of(experiment, built)
        memory = experiment.state_memory or half_of_memory() // at_a_time
        recording = Recording(experiment.checkpoint_every, memory)
        with closing(_logs(experiment, path)) as logs:
            for r in recorded(path, config, recording, logs):
                yield Update(path, r.round, config.rounds, metrics_of(r), logs.sent or 0)
        result = directory.result() or {}
        yield Update(
            path,
            result["rounds"],
            config.rounds,
            result["last"],
            sent_before(path, result["rounds"] + 1),
            finished=True,
            stopped=result["stopped"],
        )


def _logs(experiment: Experiment, path: Path) -> Logs:
    (label,), (seed,) = experiment.labels or experiment.reference, experiment.seeds
    config = {"seed": seed, "algorithm": label, "data": experiment.data.name}
    return Logs(experiment.log, path, f"{label} seed {seed}", config)


def _check_data(directory: RunDirectory, built: Federation) -> None:
    """Remember what the federation is made of; refuse other data than those the run began with."""
    path = directory.path / FEDERATION
    known = None
    if path.exists():
        try:
            known = read_json(path)["checksums"]
        except (Damaged, KeyError, TypeError) as error:
            log.warning("%s; it is written anew, from the data as they are now", error)
    if known is None:
        write_json(path, {**built.problem.summary(), "checksums": built.checksums})
        return
    for name in sorted({*known, *built.checksums}):
        if known.get(name) != built.checksums.get(name):
            raise InvalidInput(
                f"the data have changed since the run in {directory.path} began: {name} has another checksum; "
                "put the old file back, or start a new run"
            )


# several runs at a time


@dataclass
class Worker:
    """A process that executes one run after another."""

    process: subprocess.Popen[str]
    ready: bool = False  # it has said something
    run: Path | None = None  # what it is at

    def tell(self, word: str) -> None:
        with suppress(BrokenPipeError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()

    def listen(self, news: "Queue[tuple[Worker, dict[str, Any] | None]]") -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                news.put((self, json.loads(line)))
        except ValueError:
            pass  # closed, or not our words: it has ended for us
        finally:
            news.put((self, None))


def _in_processes(paths: Sequence[Path], workers: Sequence[Worker]) -> Iterator[Update]:
    """Deal runs to worker processes; their news arrive as lines of JSON."""
    news: Queue[tuple[Worker, dict[str, Any] | None]] = Queue()
    for worker in workers:
        threading.Thread(target=worker.listen, args=(news,), daemon=True).start()
    waiting = list(paths)
    try:
        for worker in workers:
            _hand_over(worker, waiting)
        while any(worker.run for worker in workers):
            worker, said = news.get()
            if said is None:
                if worker.run is not None:
                    code = worker.process.wait()
                    raise InvalidInput(f"the process of {worker.run} ended with code {code}")
                continue
            worker.ready = True
            if "run" not in said:
                continue
            update = Update(**{**said, "run": Path(said["run"])})
            if update.finished or update.error:
                _hand_over(worker, waiting)
            yield update
    finally:
        stop_workers(workers)


def start_workers(jobs: int, threads: int | None) -> list[Worker]:
    """Processes for so many runs at a time; they take seconds until they are ready, and end when this process does."""
    start = partial(
        subprocess.Popen[str],
        [sys.executable, "-m", "undrift.experiments.runs.worker", str(jobs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads or 1)},
        start_new_session=True,  # Ctrl-C reaches it through us, once
    )
    return [Worker(start()) for _ in range(jobs)]


def _hand_over(worker: Worker, waiting: list[Path]) -> None:
    """Give a worker its next run, if there is one."""
    worker.run = waiting.pop(0) if waiting else None
    if worker.run is not None:
        worker.tell(str(worker.run))


def stop_workers(workers: Sequence[Worker]) -> None:
    """End workers: those that are at a run finish its round and write a checkpoint, those that have not begun are killed."""
    for worker in workers:
        if worker.ready:
            worker.tell(STOP)
        else:
            worker.process.kill()
    for worker in workers:
        try:
            worker.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
