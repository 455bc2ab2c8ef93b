"""The runs of references in a comparison: recorded and resumed as all others are."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federation
from undrift.experiments.runs.directory import REFERENCE, START, RunDirectory, create, metrics_in
from undrift.experiments.runs.files import Damaged, mark_of_bytes, read_json, write_aside, write_json
from undrift.metrics.quality import higher_is_better, usual_first, usual_last
from undrift.simulation.api import RunConfig
from undrift.simulation.references import Alone, reference_config, steps_a_round

log = logging.getLogger("undrift")


def reference_run(experiment: Experiment, built: Federation, path: Path) -> RunConfig:
    """The run of a reference; what it costs is written down beside it."""
    (kind,), (seed,) = experiment.reference, experiment.seeds
    federated = RunConfig(
        Alone(),
        built.problem,
        experiment.rounds,
        experiment.participation.make(),
        experiment.local,
        seed=seed,
        metrics=experiment.evaluation.metrics,
    )
    config = reference_config(kind, federated, _model(path, built) if kind == "fine-tuned" else None)
    _note(path, kind=kind, gradients=round(config.rounds * steps_a_round(config)))
    return config


def _note(path: Path, **words: object) -> None:
    """Write something about a reference beside what is known of it."""
    try:
        about = read_json(path / REFERENCE) if (path / REFERENCE).exists() else {}
    except Damaged as error:
        log.warning("%s: it is written anew", error)
        about = {}
    write_json(path / REFERENCE, about | words)


def is_fine_tuned(path: Path) -> bool:
    return path.parent.name == "fine-tuned" and path.name.startswith("seed-")


def begin_with_best(folder: Path, experiment: Experiment, runs: Sequence[RunDirectory]) -> list[RunDirectory]:
    """Give every fine-tuned run the model it begins with: that of the method with the best final quality.

    A run that began with another model, because methods have run for longer since, is begun anew.
    """
    best, made = best_method(folder, experiment), []
    for run in runs:
        model = _model_of(RunDirectory(folder / best / run.path.name))
        start = run.path / START
        if start.exists() and start.read_bytes() != model:
            described = run.experiment()
            shutil.rmtree(run.path)
            run = create(run.path, described)
        write_aside(run.path / START, model)
        _note(run.path, of=best, start=mark_of_bytes(model))
        made.append(run)
    return made


def _model_of(run: RunDirectory) -> bytes:
    """The model of a run that has ended, as it was written."""
    path = run.path / "model.safetensors"
    content, mark = path.read_bytes(), (run.result() or {}).get("files", {}).get(path.name)
    if mark is not None and mark_of_bytes(content) != mark:
        raise Damaged(f"{path} is damaged: `undrift resume {run.path.parent.parent}` repairs it")
    return content


def best_method(folder: Path, experiment: Experiment) -> str:
    """The method with the best final quality, mean over seeds; the first of those that are equal."""
    found: dict[str, float] = {}
    for label in experiment.labels:
        values = [_final(RunDirectory(folder / label / f"seed-{seed}")) for seed in experiment.seeds]
        found[label] = float(np.mean(values))
    return max(found, key=lambda label: found[label] if np.isfinite(found[label]) else -np.inf)


def _final(run: RunDirectory) -> float:
    """The final quality of a run: higher is better."""
    lines = [metrics for metrics in map(metrics_in, run.rounds()) if metrics]
    if not lines:
        return -np.inf
    name = usual_first(lines[-1])[0]
    last = [line.get(name) for line in lines[-usual_last(len(lines)) :]]
    value = float(np.mean([np.nan if each is None else each for each in last]))
    return value if higher_is_better(name) else -value


def _model(path: Path, built: Federation) -> Tensor:
    named = load_file(path / START)
    flat = built.problem.flat
    return torch.cat([named[name].flatten() for name in flat.names if name not in flat.local_names]).to(
        built.problem.x0
    )
