"""What a federation is worth is seen beside training without one: all data in one place, every client alone, and the
federation's model fine-tuned by every client.

All three are one method, in which nothing travels and every client keeps a model of its own:

    y_i  <-  y_i - eta_l grad F_i(y_i; xi)        K times in every visit

centralised   one client that has all samples and makes, in every round, as many steps as a cohort does together
local-only    the same clients, cohorts and minibatches as in the federation, without the averaging
fine-tuned    a few visits of everyone, from the model that the federation has found
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from undrift.core import Cohort, Vec, Work, record
from undrift.core.errors import InvalidInput, known_name
from undrift.core.rng import Key
from undrift.data.assignment import ClientIndices
from undrift.data.trees import Tree, sample_count, take
from undrift.local.parameters import whole_model
from undrift.local.settings import Local
from undrift.metrics.registry import Probe
from undrift.problems.evaluation import evaluate, quality, quality_by_client, samples_by_client
from undrift.problems.model import ModelProblem
from undrift.simulation.api import RunConfig, collect, prepare
from undrift.simulation.participation import Everyone, Participation
from undrift.simulation.results import Result

KINDS = ("centralised", "local-only", "fine-tuned")
VISITS = 5  # of every client, in fine-tuning
LOOKED_AT = 100  # rounds whose steps are counted: however long the run, so that a longer one begins alike


@record
class Server:
    x: Vec


@record
class Nothing:
    """A message without numbers: no bytes travel."""


@record
class Client:
    y: Vec


class Alone:
    """Every client trains its own model."""

    def __repr__(self) -> str:
        return "every client alone"

    def server(self, x: Vec) -> Server:
        return Server(x)

    def client(self, x: Vec) -> Client:
        return Client(x)

    def send(self, server: Server) -> Nothing:
        return Nothing()

    def local(self, down: Nothing, client: Client, work: Work) -> tuple[Nothing, Client]:
        y = work.loop(lambda y: work.step(y, work.grad(y)), client.y)
        return Nothing(), Client(y)

    def update(self, server: Server, mean: Nothing, cohort: Cohort) -> Server:
        return server


def reference(
    kind: str,
    problem: ModelProblem,
    *,
    rounds: int,
    participation: Participation | None = None,
    local: Local | None = None,
    seed: int = 0,
    model: Tensor | None = None,
    metrics: Sequence[str] = ("test",),
) -> Result:
    """Training without a federation, to compare one with: "centralised", "local-only" or "fine-tuned".

    Everything else is as in the `ud.run` that it is compared with, whose minibatches and number of gradients it has.
    "fine-tuned" begins with `model`, the `result.x` of that run, and everyone trains it for five visits more.

    The metrics are those of a model, recorded in the last round.  With models of their own, clients are tested on their
    own test samples where the data say whose these are, each sample counting once; else every model is tested on all
    test samples, and the metrics are the mean over clients.

    >>> import torch, undrift as ud, torch.nn.functional as F
    >>> data = torch.randn(20, 2), torch.arange(20) % 3
    >>> problem = ud.federate(data, model=torch.nn.Linear(2, 3), loss=F.cross_entropy, clients=ud.IID(4))
    >>> alone = ud.reference("local-only", problem, rounds=3, local=ud.Local(steps=2, lr=0.1))
    >>> alone.history[-1].bytes_up, sorted(alone.history[-1].metrics)
    (0, ['accuracy', 'loss'])
    """
    config = RunConfig(
        Alone(), problem, rounds, participation or Everyone(), local or Local(), seed=seed, metrics=tuple(metrics)
    )
    config = reference_config(known_name("reference", kind, KINDS), config, model)
    return collect(prepare(config))


def reference_config(kind: str, config: RunConfig, model: Tensor | None = None) -> RunConfig:
    """The run of a reference, from that of a federation that it is compared with."""
    problem: Any = config.problem
    if not isinstance(problem, ModelProblem):
        raise InvalidInput(f"a reference needs a model on data (ud.federate), got {type(problem).__name__}")
    asked = [each for each in config.metrics or ("test",) if isinstance(each, str)]
    names = [each for each in asked if each in problem.metric_names and each != "gradient"]

    def reference_metrics(probe: Probe) -> dict[str, float]:
        if kind == "centralised":
            return _of_one(problem, names, _models(problem, probe)[0])
        return _of_each(problem, names, probe)

    if kind == "centralised":
        steps = max(1, round(steps_a_round(config)))
        config = replace(config, problem=pooled(problem), participation=Everyone())
        config = replace(config, local=replace(config.local, steps=steps, epochs=None))
    if kind == "fine-tuned":
        if model is None:
            raise InvalidInput("fine-tuned needs the model that it begins with: model=result.x")
        started = copy(problem)
        started.x0 = model.to(problem.x0)
        config = replace(config, problem=started, rounds=VISITS, participation=Everyone())
    return replace(
        config,
        algorithm=Alone(),
        engine="auto",
        evaluate_every=config.rounds,
        metrics=(reference_metrics,),
        population=None,
        server=None,
        codec=None,
        privacy=None,
    )


def steps_a_round(config: RunConfig) -> float:
    """The local steps of a cohort, together, on average over the first rounds."""
    problem, counted = config.problem, range(1, LOOKED_AT + 1)
    cohorts = [config.participation.draw(config.seed, t, problem.weights).clients for t in counted]
    each = [config.local.count(problem, Key(config.seed, t), who) for t, who in zip(counted, cohorts, strict=True)]
    return sum(map(sum, each)) / len(counted)


def pooled(problem: ModelProblem) -> ModelProblem:
    """The same samples, all of one client."""
    everything = np.flatnonzero(problem.parts.held(sample_count(problem.X)))
    return problem.with_parts(ClientIndices.from_lists([everything]), problem.test, np.ones(1), ("test",))


def _of_one(problem: ModelProblem, names: Sequence[str], x: Tensor) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in names:
        found |= evaluate(problem, name, x)
    return found


def _of_each(problem: ModelProblem, names: Sequence[str], probe: Probe) -> dict[str, float]:
    """The metrics of clients that have a model each."""
    models = _models(problem, probe)
    found: dict[str, float] = {}
    for name in names:
        if name == "clients":
            found |= quality_by_client(problem, lambda client: models[client])
        elif name == "train":
            mine = [(models[i], *_own(problem, i)) for i in range(problem.N)]
            found |= {
                f"train_{metric}": value for metric, value in quality(problem, mine, whose=range(problem.N)).items()
            }
        else:
            found |= _tested(problem, models, None if name == "test" else (name,))
    return found


def _models(problem: ModelProblem, probe: Probe) -> Tensor:
    """Everyone's model, whole; of pooled samples there is one."""
    states = probe.clients.gather(range(probe.problem.N))
    return whole_model(states.y, states, problem)


def _own(problem: ModelProblem, client: int) -> tuple[Tree, Tree]:
    which = problem.samples(client)
    return take(problem.X, which), take(problem.Y, which)


def _tested(problem: ModelProblem, models: Tensor, metrics: Sequence[str] | None) -> dict[str, float]:
    """On test samples: each by the model of the client whose it is; or, if that is not known, by all of them."""
    owned = problem.test_clients is not None and bool((problem.test_clients >= 0).any())
    if problem.test is None or owned:
        samples = samples_by_client(problem)
        found = quality(problem, [(models[i], *samples[i]) for i in samples], metrics, whose=list(samples))
    else:
        each = [quality(problem, [(model, *problem.test)], metrics, whose=[i]) for i, model in enumerate(models)]
        found = {name: float(np.mean([one[name] for one in each if name in one])) for name in each[0]}
    return found if metrics is None else {name: value for name, value in found.items() if name != "loss"}
