"""The problem as the two sides see it: a node has its own samples and nobody else's, the server has none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core.algorithm import Exchange
from undrift.core.errors import InvalidInput
from undrift.core.rng import Key
from undrift.core.work import Ones, Solver, Work
from undrift.data.assignment import ClientIndices
from undrift.data.registry import Data
from undrift.data.trees import sample_count, shapes, take
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import data_of, federation, initial_model
from undrift.experiments.config.parts import default_loss, infer_model_kwargs
from undrift.problems.flat import FlatModel
from undrift.problems.heterogeneity import summarise_heterogeneity
from undrift.problems.model import ModelProblem

KNOWN_TO_SERVER = ("test", "chi2", "tau_eff")  # metrics that need nothing of what stays on nodes


def data_of_client(experiment: Experiment, part: int) -> Data:
    """The samples that client number `part` has in the simulation of an experiment: for trying things out."""
    problem, whole = federation(experiment, experiment.seeds[0]).problem, data_of(experiment)
    if not 0 <= part < problem.N:
        raise InvalidInput(f"part must be from 0 to {problem.N - 1}, got {part}")
    mine = problem.samples(part)
    samples = take(problem.X, mine), take(problem.Y, mine)
    return Data(whole.name, samples, None, classes=whole.classes, prepare=whole.prepare)


def as_client(experiment: Experiment, data: Data, told: Mapping[str, int], client: int, N: int) -> ModelProblem:
    """A node's problem.  It has its samples as one of N clients, so that it draws the minibatches of that client."""
    n = sample_count(data.train[0])
    sizes = np.zeros(N, dtype=np.int64)
    sizes[client] = n
    return ModelProblem(
        FlatModel(initial_model(experiment, experiment.seeds[0], told), local=experiment.model.local_parameters),
        default_loss(data),
        *data.train,
        ClientIndices(np.arange(n), np.zeros(N, dtype=np.int64), sizes),
        None,
        np.full(N, 1 / N),
        data.prepare,
    )


def of_server(experiment: Experiment) -> tuple[ModelProblem, dict[str, Any]]:
    """The server's own problem, for its model and its test samples; and what the model was inferred from."""
    unknown_there = [name for name in experiment.evaluation.metrics if name not in KNOWN_TO_SERVER]
    if unknown_there:
        raise InvalidInput(
            f"evaluation.metrics: the server of a deployed run sees no client's samples, local models or states, so it "
            f"cannot record {', '.join(map(repr, unknown_there))}; it can record {', '.join(map(repr, KNOWN_TO_SERVER))}"
        )
    alone = type(experiment.clients)(partition="iid", number=1, seed=experiment.clients.seed)
    made = federation(experiment.model_copy(update={"clients": alone}), experiment.seeds[0])
    data = data_of(experiment)
    return made.problem, {**infer_model_kwargs(data), "labels": data.classes}


@dataclass(frozen=True)
class Reported:
    """The federation as the server knows it: what nodes reported of themselves, and a model to evaluate."""

    own: ModelProblem
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    weights: np.ndarray

    @staticmethod
    def of(own: ModelProblem, samples: Mapping[str, int], weights: str) -> "Reported":
        """Clients are numbered in the order of their names."""
        names = tuple(sorted(samples))
        sizes = tuple(samples[name] for name in names)
        n = np.array(sizes)
        p = n / n.sum() if weights == "samples" else np.full(len(n), 1 / len(n))
        return Reported(own, names, sizes, p)

    @property
    def N(self) -> int:
        return len(self.names)

    @property
    def x0(self) -> Tensor:
        return self.own.x0

    @property
    def flat(self) -> FlatModel:
        return self.own.flat

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1 if batch is None else -(-self.sizes[client] // batch)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        return self.own.evaluate(x)

    def module(self, x: Tensor, client: int | None = None) -> nn.Module:
        return self.own.module(x)

    def named_parameters(self, x: Tensor) -> dict[str, Tensor]:
        return self.own.named_parameters(x)

    def draw(self, *_: Any) -> Any:
        raise RuntimeError("the server of a deployed run has no client's samples")

    grad = full_grad = draw_with_replacement = draw

    def summary(self) -> dict[str, Any]:
        """What the federation is made of, as far as it is known here."""
        sizes = np.array(self.sizes)
        parts = ClientIndices(np.arange(0), np.zeros(self.N, dtype=np.int64), sizes)
        about = {"clients": self.N, "samples": int(sizes.sum()), "names": list(self.names)}
        model = {"inputs": shapes(self.own.X), "parameters": self.x0.numel()}
        return about | model | summarise_heterogeneity(parts, None)


@torch.no_grad()
def form_of_answer(exchange: Exchange, down: Any, client: Any, solver: Solver, x: Tensor) -> Any:
    """An Up of the form that clients must answer with."""
    problem: Any = Ones(x)  # gradients without data
    up, _ = exchange.visit(down, client, Work(problem, solver, [0], [1], Key(0, 1), single=True))
    return up
