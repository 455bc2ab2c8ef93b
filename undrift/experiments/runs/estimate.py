"""How long an experiment takes: measured by playing some of its rounds in processes like those that would run it.

Nothing is decided by these clocks; engines are chosen by what a run is (simulation/engines/choice.py).
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter, time

import psutil
import torch

from undrift.algorithms.fedavg import FedAvg
from undrift.core.errors import InvalidInput
from undrift.core.rng import Key
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federations, federation
from undrift.experiments.runs.directory import create, open_directory
from undrift.experiments.runs.recorded import Recording, recorded
from undrift.experiments.runs.running import config_of
from undrift.problems import Problem
from undrift.problems.model import ModelProblem
from undrift.problems.quadratic import Quadratic
from undrift.simulation.api import PreparedRun, RunConfig, prepare
from undrift.simulation.batched_runs import Trial, rounds_together
from undrift.simulation.client_states import half_of_memory

ENOUGH_SECONDS, ENOUGH_ROUNDS = 1.0, 8  # of usual rounds
AT_MOST_SECONDS = 4.0  # of them, if they are slow
SETTLED = 100  # the round from which on all count, whatever is captured in them
LOOKED_AT = 500  # rounds whose steps are counted
STEPS_LOOKED_AT = 100  # rounds whose steps are reported
MARK = "timing "  # what else is printed comes from a user's file
REPORT = 0.6  # a report takes about this part of what it takes to start a process


@dataclass(frozen=True)
class RunTiming:
    """What was measured of a run, in seconds.

    start       of its process, until it can begin
    compiler    loading the compiler, once in a process
    setup       reading the data and building the federation
    compiling   what the first rounds take beyond a usual one: compiling, and an initialisation round
    round       a usual round without evaluation
    evaluation  evaluating and recording a round
    bytes       sent in a round, down and up
    """

    start: float
    compiler: float
    setup: float
    compiling: float
    round: float
    evaluation: float
    bytes: float


def estimate_seconds(
    experiment: Experiment, timings: Mapping[str, RunTiming], jobs: int, before: float = 0.0
) -> dict[str, float]:
    """The seconds of a whole experiment by what they are spent on, `jobs` runs at a time after `before` of preparation.

    >>> e = Experiment(algorithm={"name": "fedavg"}, rounds=10, seeds=3)
    >>> timing = RunTiming(start=2.0, compiler=4.0, setup=1.0, compiling=3.0, round=0.5, evaluation=0.1, bytes=1e6)
    >>> estimate_seconds(e, {"fedavg": timing}, jobs=2)  # two runs one after another, and one beside them
    {'start': 2.0, 'setup': 2.0, 'compiling': 7.0, 'rounds': 10.0, 'evaluation': 2.0, 'report': 1.2}
    """
    evaluations = -(-experiment.rounds // experiment.evaluation.every)
    setup = max(timing.setup for timing in timings.values())  # others shared a federation
    names = ("start", "setup", "compiling", "rounds", "evaluation")
    workers = [dict.fromkeys(names, 0.0) for _ in range(jobs)]
    seeds = [experiment.seeds[0] if jobs == 1 else None] * jobs  # whose federation each one has
    known: list[set[str]] = [set() for _ in range(jobs)]  # methods whose programs each one has
    for label, seed in [(label, seed) for label, seed in experiment.runs() if label in timings]:
        n = min(range(jobs), key=lambda n: sum(workers[n].values()))  # who is free first
        parts, timing = workers[n], timings[label]
        if not parts["rounds"]:  # its first run
            parts["start"] = timing.start if jobs > 1 else 0.0
            parts["compiling"] = timing.compiler
        parts["setup"] += setup if seeds[n] != seed else 0.0
        parts["compiling"] += timing.compiling if label not in known[n] else 0.0
        known[n].add(label)
        parts["rounds"] += timing.round * experiment.rounds
        parts["evaluation"] += timing.evaluation * evaluations
        seeds[n] = seed
    longest = max(workers, key=lambda parts: sum(parts.values()))
    longest["start"] += before
    return longest | {"report": REPORT * fmean(timing.start for timing in timings.values())}


# in the process that asks


def measure_experiment(experiment: Experiment, jobs: int) -> dict[str, RunTiming]:
    """The timing of every method, measured by `jobs` processes at once, so that they slow each other down as they would.

    Each process has as many methods to measure: some are measured twice where they do not divide.
    """
    labels = experiment.labels
    each = -(-len(labels) // jobs)
    measured: dict[str, list[RunTiming]] = {label: [] for label in labels}
    with TemporaryDirectory(prefix="undrift-dry-") as folder:
        sample = list(islice(cycle(labels), each * jobs))
        parts = [sample[n::jobs] for n in range(jobs)]
        processes = [_start(experiment, part, Path(folder) / str(n), jobs) for n, part in enumerate(parts)]
        try:
            for process, part in zip(processes, parts, strict=True):
                said, errors = process.communicate()
                if process.returncode != 0:
                    reason = (errors.strip() or "no message").splitlines()[-1]
                    raise InvalidInput(f"trying {', '.join(part)} failed: {reason}")
                lines = [line for line in said.splitlines() if line.startswith(MARK)]
                for label, line in zip(part, lines, strict=True):
                    measured[label].append(RunTiming(**json.loads(line.removeprefix(MARK))))
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    return {label: _mean(timings) for label, timings in measured.items()}


def _start(experiment: Experiment, labels: Sequence[str], folder: Path, jobs: int) -> "subprocess.Popen[str]":
    paths = []
    for number, label in enumerate(labels):
        one = experiment.single(label, experiment.seeds[0])
        paths.append(str(create(folder / f"{number}", one).path))
    return subprocess.Popen(
        [sys.executable, "-m", "undrift.experiments.runs.estimate", str(jobs), *paths],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(experiment.threads or 1)},
    )


def _mean(timings: Sequence[RunTiming]) -> RunTiming:
    names = [f.name for f in fields(RunTiming)]
    return RunTiming(**{name: fmean(vars(timing)[name] for timing in timings) for name in names})


# in the processes that measure


def measure_run(path: Path, start: float, jobs: int, federations: Federations) -> RunTiming:
    """Play some rounds of the run of a directory, and time them."""
    began = perf_counter()
    experiment = open_directory(path).experiment()
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    config = config_of(experiment, federations.get(experiment, experiment.seeds[0]))
    config = replace(config, evaluate_every=1)
    run = prepare(config)
    recording = Recording(experiment.checkpoint_every, half_of_memory() // jobs)
    setup = perf_counter() - began
    compiler = load_compiler() if run.plan.choice.inner.engine == "compiled" else 0.0
    warm_up = max(1, run.plan.choice.inner.since)  # the last round that does what is done once
    first: list[float] = []
    usual: list[tuple[float, float, float]] = []  # seconds of a round, of its evaluation, its work
    sent: list[int] = []
    forms = _captured_forms(config.problem)
    last = perf_counter()
    for r in recorded(path, config, recording, play=run.play):
        seconds = perf_counter() - last
        sent.append(r.bytes_down + r.bytes_up)
        if _captured_forms(config.problem) > forms and r.round <= SETTLED:  # gradients are faster from now on
            forms = _captured_forms(config.problem)
            first += [*(each[0] + each[1] for each in usual), seconds]
            usual.clear()
        elif r.round <= warm_up:
            first.append(seconds)
        else:
            usual.append((r.seconds, seconds - r.seconds, work_of(run, r.round)))
            spent = sum(each[0] + each[1] for each in usual)
            if spent > AT_MOST_SECONDS or (spent > ENOUGH_SECONDS and len(usual) >= ENOUGH_ROUNDS):
                break
        last = perf_counter()
    if not usual:  # a run of a round or two
        usual, first = [(seconds, 0.0, 1.0) for seconds in first], []
    per_work = sum(each[0] for each in usual) / sum(each[2] for each in usual)
    seconds, evaluation = per_work * mean_work(run), fmean(each[1] for each in usual)
    once = sum(first) - len(first) * (seconds + evaluation)
    if compiler and once > 0.1 * config.rounds * seconds:
        # What was compiled just now is found on disk the next time, but not by the same process on the same problem.
        anew = federation(experiment, experiment.seeds[0])
        playing, last = prepare(config_of(experiment, anew)).play(), perf_counter()
        for _ in islice(playing, warm_up):
            pass
        once = perf_counter() - last - warm_up * (seconds + evaluation)
    sizes = fmean(sent[1:] or sent)  # the first round may have an initialisation round in it
    return RunTiming(start, compiler, setup, max(0.0, once), seconds, evaluation, sizes)


def _captured_forms(problem: Problem) -> int:
    return len(problem.captured.captured) if isinstance(problem, ModelProblem) else 0


def seconds_together(runs: Sequence[RunConfig]) -> float:
    """The seconds of a round of one run, evaluation included, where these are computed as the trials of a sweep are."""
    first, spent = runs[0], []
    playing = rounds_together(
        [Trial(run.algorithm, run.problem, run.local, run.seed) for run in runs],
        rounds=first.rounds,
        participation=first.participation,
        engine=first.engine,
    )
    for _ in islice(playing, 2):  # in which clients are computed alone as well, to check the method
        pass
    last = perf_counter()
    for _ in playing:
        spent.append(perf_counter() - last)
        if sum(spent) > ENOUGH_SECONDS or len(spent) >= ENOUGH_ROUNDS:
            break
        last = perf_counter()
    return median(spent) / len(runs)


@cache
def load_compiler() -> float:
    """Compile something small, so that what a process loads for it is there; returns how long it took."""
    began = perf_counter()
    problem = Quadratic(torch.ones(2, 1, 1), torch.ones(2, 1))
    for _ in prepare(RunConfig(FedAvg(), problem, 1, engine="compiled")).play():
        pass
    return perf_counter() - began


def work_of(run: PreparedRun, t: int) -> float:
    """The steps of a round that are computed one after another; 1 in virtual time, whose rounds have no cohort."""
    config = run.config
    if config.timed:
        return 1.0
    steps = steps_of(config, t)
    chunk = 1 if run.plan.choice.inner.one_by_one else run.plan.choice.chunk
    return float(sum(max(steps[n : n + chunk]) for n in range(0, len(steps), chunk)) or 1)


def mean_work(run: PreparedRun) -> float:
    """The mean of `work_of` over the run's rounds."""
    rounds = run.config.rounds
    return fmean(work_of(run, t) for t in range(1, min(rounds, LOOKED_AT) + 1))


def steps_of(config: RunConfig, t: int) -> list[int]:
    """The local steps of every client of a round."""
    problem = config.problem
    clients = config.participation.draw(config.seed, t, problem.weights).clients
    return config.local.count(problem, Key(config.seed, t), clients)


def span_of_steps(config: RunConfig) -> tuple[int, float, int] | None:
    """The least, the median and the most local steps of a client in a round; None in virtual time, which has no cohorts."""
    if config.timed:
        return None
    rounds = range(1, min(config.rounds, STEPS_LOOKED_AT) + 1)
    steps = sorted(count for t in rounds for count in steps_of(config, t))
    return (steps[0], median(steps), steps[-1]) if steps else None


def main(jobs: str, *paths: str) -> None:
    start = time() - psutil.Process().create_time()
    federations = Federations()
    for path in paths:
        timing = measure_run(Path(path), start, int(jobs), federations)
        print(f"{MARK}{json.dumps(asdict(timing))}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
