"""--dry: what an experiment is, with which engine, and what it would take."""

from collections.abc import Iterator
from time import time

import psutil
import torch

from undrift.core.errors import setting
from undrift.experiments.config import Experiment
from undrift.experiments.config.toml import to_toml
from undrift.experiments.report.format import format_bytes, format_seconds, plural
from undrift.experiments.runs.estimate import estimate_seconds, measure_experiment, span_of_steps
from undrift.experiments.runs.running import config_of, resolve_engine
from undrift.simulation.api import RunConfig
from undrift.simulation.engines import EngineChoice
from undrift.simulation.engines.choice import explain


def describe_work(config: RunConfig) -> Iterator[str]:
    """The local steps of a client in a round, and what to bear in mind of them."""
    steps = span_of_steps(config)
    if steps is None:
        return
    least, usual, most = steps
    count = f"{most}" if least == most else f"{least} to {most}, median {usual:g}"
    yield f"local steps of a client per round: {count}; minibatches of {config.local.batch or 'all'} samples"
    if most == 1:
        more = setting("more steps in ud.Local", local__steps=10, local__batch=5)
        yield f"with one local step clients cannot drift, and methods against drift have nothing to show: try {more}"


def show_plan(experiment: Experiment, jobs: int) -> None:
    """Print an experiment, its engine and work, and how long it would take: some rounds are played to measure that."""
    torch.set_num_threads(experiment.threads or 1)
    resolved, federations = resolve_engine(experiment)
    before = time() - psutil.Process().create_time()  # until here it is as in earnest
    first = experiment.single(experiment.labels[0], experiment.seeds[0])
    config = config_of(first, federations.get(first, first.seeds[0]))
    federations.clear()
    problem, choice = config.problem, resolved.engine
    assert isinstance(choice, EngineChoice)
    how = {"rounds": config.rounds, "participation": config.participation, "local": config.local}
    print(to_toml(experiment))
    print(f"# {problem.x0.numel():,} parameters, {problem.N:,} clients")
    print(f"# engine: {choice} ({explain(choice, problem, **how, engine=experiment.engine)})")
    for words in describe_work(config):
        print(f"# {words}")
    timings = measure_experiment(resolved, jobs)
    for label, timing in timings.items():
        a_round = timing.round + timing.evaluation / experiment.evaluation.every
        print(
            f"# {label}: {format_bytes(timing.bytes)} and {1000 * a_round:.0f} ms a round "
            f"({1000 * timing.round:.0f} ms training, {1000 * timing.evaluation:.0f} ms an evaluation)"
        )
    whole = estimate_seconds(resolved, timings, jobs, before)
    parts = [f"{format_seconds(part)} {name}" for name, part in whole.items() if part >= 0.1]
    side_by_side = f", {jobs} at a time" if jobs > 1 else ""
    print(
        f"# {plural(len(experiment.runs()), 'run')}{side_by_side}: about {format_seconds(sum(whole.values()))} "
        f"({', '.join(parts)}); nothing was started"
    )
