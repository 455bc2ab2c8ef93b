"""From an experiment's description to a problem that engines can run."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from undrift.core.errors import InvalidInput
from undrift.data.registry import Data
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.parts import clients_of, loaded, loss_of, model_maker, told_by
from undrift.experiments.config.toml import as_toml, described
from undrift.problems.federate import federate
from undrift.problems.model import ModelProblem


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
        model=initial_model(experiment, seed, told_by(data)),
        loss=loss_of(data),
        clients=clients_of(section.partition, section.number, section.parameters),
        weights=section.weights,
        test_samples=experiment.evaluation.test_samples,
        seed=_own(section.seed, seed),
    )
    problem.reopen = Opening(as_toml(experiment), seed, data.checksums)
    return Federation(problem, data.checksums)


@dataclass(frozen=True)
class Opening:
    """How another machine comes to the same problem: by reading the same data itself."""

    words: str  # of the experiment, in TOML
    seed: int
    checksums: dict[str, str]

    def __call__(self) -> ModelProblem:
        made = federation(described(tomllib.loads(self.words)), self.seed)
        for name in sorted({*self.checksums, *made.checksums}):
            if made.checksums.get(name) != self.checksums.get(name):
                raise InvalidInput(f"the data differ from those of the run: {name} is another file")
        loaded.cache_clear()  # the problem has them: a second copy is not kept
        return made.problem


def data_of(experiment: Experiment) -> Data:
    """The data that an experiment names."""
    options = tuple(sorted(experiment.data.parameters.items()))
    return loaded(experiment.data.name, options)


def initial_model(experiment: Experiment, seed: int, told: Mapping[str, int]) -> torch.nn.Module:
    """The model that every run of a seed begins with; `told` is what the data tell it."""
    model = experiment.model
    make = model_maker(model.name, model.parameters)
    return _initialised(make, told, _own(model.seed, seed))


def _own(given: int | None, seed: int) -> int:
    return seed if given is None else given


def _initialised(make: Any, told: Mapping[str, int], seed: int) -> torch.nn.Module:
    """A model with weights from a seed, torch's own randomness left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(told)
