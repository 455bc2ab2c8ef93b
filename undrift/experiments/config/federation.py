"""From an experiment's description to a problem that engines can run."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from undrift.core.errors import InvalidInput
from undrift.data.registry import Data
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.parts import default_loss, infer_model_kwargs, load_cached
from undrift.experiments.config.toml import from_dict, to_toml
from undrift.problems.federate import federate
from undrift.problems.model import ModelProblem
from undrift.simulation.engines.compiled import share_programs


@dataclass(frozen=True)
class Federation:
    """The problem of one seed, and the checksums of the files it was read from."""

    problem: ModelProblem
    checksums: dict[str, str]


def federation(experiment: Experiment, seed: int) -> Federation:
    """The clients, data and initial model that every method of a seed meets.

    >>> e = Experiment(algorithm={"name": "fedavg"})
    >>> federation(e, seed=0).problem.N
    100
    """
    section, data = experiment.clients, data_of(experiment)
    problem = federate(
        data,
        model=initial_model(experiment, seed, infer_model_kwargs(data)),
        loss=default_loss(data),
        clients=section.make(),
        weights=section.weights,
        test_samples=experiment.evaluation.test_samples,
        seed=seed if section.seed is None else section.seed,
        local_parameters=experiment.model.local_parameters,
    )
    problem.reopen = Opening(to_toml(experiment), seed, data.checksums)
    return Federation(problem, data.checksums)


class Federations:
    """Builds federations and keeps the last one, which the methods of a comparison share, until it is cleared."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self.last: Federation | None = None

    def get(self, experiment: Experiment, seed: int) -> Federation:
        """The federation of an experiment and a seed, built unless it is that of the last call."""
        of = experiment.evaluation.test_samples, experiment.data, experiment.clients, experiment.model
        if self.last is None or self._key != (seed, *of):
            before = self.last if self._key is not None and self._key[1:] == of else None
            self.clear()
            self._key, self.last = (seed, *of), federation(experiment, seed)
            if before is not None:
                share_programs(self.last.problem, before.problem)
        return self.last

    def clear(self) -> None:
        """Let go of the last one."""
        self.last = None


@dataclass(frozen=True)
class Opening:
    """How another machine comes to the same problem: by reading the same data itself."""

    words: str  # of the experiment, in TOML
    seed: int
    checksums: dict[str, str]

    def __call__(self) -> ModelProblem:
        made = federation(from_dict(tomllib.loads(self.words)), self.seed)
        for name in sorted({*self.checksums, *made.checksums}):
            if made.checksums.get(name) != self.checksums.get(name):
                raise InvalidInput(f"the data differ from those of the run: {name} is another file")
        load_cached.cache_clear()  # the problem has them: a second copy is not kept
        return made.problem


def data_of(experiment: Experiment) -> Data:
    """The data that an experiment names."""
    options = tuple(sorted(experiment.data.parameters.items()))
    return load_cached(experiment.data.name, options)


def initial_model(experiment: Experiment, seed: int, inferred: Mapping[str, int]) -> torch.nn.Module:
    """The model that every run of a seed begins with; torch's own randomness is left as it was."""
    model = experiment.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed if model.seed is None else model.seed)
        return model.make()(inferred)
