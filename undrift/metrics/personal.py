"""Clients' own models: with parameters of their own, after a few local steps, and what averaging does to their adapters.

clients       the quality of each client's model, x with the parameters that are its own; recorded by problems that have
              local parameters (all others have a metric of this name for the one model x)
fine-tuned    the same after some steps of each client from there, on its training samples
lora_bias     |mean B_i A_i - (mean B_i)(mean A_i)| / |mean B_i A_i - B A| after some steps of all clients from adapters
              A, B, over all adapted layers: what averaging factors adds to the step that averaging products would make
"""

from typing import Any

import torch
from torch import Tensor

from undrift.core.rng import Key
from undrift.core.work import Work
from undrift.local.parameters import initial_of
from undrift.metrics.registry import Probe, metric
from undrift.problems.adapters import lora_pairs
from undrift.problems.evaluation import quality_by_client
from undrift.problems.model import ModelProblem

STEPS = 5  # of fine-tuning
APART = 2**20  # exchanges are numbered from 0: these minibatches are no run's


@metric("clients")
def clients(probe: Probe) -> dict[str, float]:
    return quality_by_client(_problem(probe), lambda client: client_model(probe, client))


@metric("fine-tuned")
def fine_tuned(probe: Probe, steps: int = STEPS) -> dict[str, float]:
    found = quality_by_client(_problem(probe), lambda client: trained(probe, client, steps))
    names = ((name.partition("client_"), value) for name, value in found.items())
    return {f"fine_tuned_{name}": value for (before, it, name), value in names if it and not before}


@metric("lora_bias")
def lora_bias(probe: Probe, steps: int = STEPS) -> dict[str, float]:
    problem, weights = _problem(probe), torch.as_tensor(probe.problem.weights)
    models = (problem.named_parameters(trained(probe, i, steps)) for i in range(problem.N))
    start = problem.named_parameters(probe.x_after)
    mean = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    frozen = problem.flat.frozen()
    pairs = lora_pairs([*start, *frozen])
    product: dict[tuple[str, str], Any] = dict.fromkeys(pairs, 0.0)
    both = lambda named, a, b: (
        (named if b in named else frozen)[b].double() @ (named if a in named else frozen)[a].double()
    )
    for p, named in zip(weights, models, strict=True):
        for name, value in named.items():
            mean[name] += p * value
        for a, b in pairs:
            product[a, b] = product[a, b] + p * both(named, a, b)
    bias = sum(float((product[a, b] - both(mean, a, b)).square().sum()) for a, b in pairs)
    step = sum(float((product[a, b] - both(start, a, b)).square().sum()) for a, b in pairs)
    return {"lora_bias": (bias / step) ** 0.5 if step else 0.0}


def client_model(probe: Probe, client: int) -> Tensor:
    """The model after the round with the parameters that are the client's own."""
    if initial_of(probe.problem) is None:
        return probe.x_after
    (row,) = probe.clients.gather([client]).local_parameters
    return torch.cat([probe.x_after, row])


def trained(probe: Probe, client: int, steps: int) -> Tensor:
    """The same after some local steps, as the run's clients make them."""
    key = Key(0, probe.round, exchange=APART)
    work = Work(probe.problem, probe.solver, [client], [steps], key, single=True)
    return work.loop(lambda y: work.step(y, work.grad(y)), client_model(probe, client))


def _problem(probe: Probe) -> ModelProblem:
    assert isinstance(probe.problem, ModelProblem), "refused before"
    return probe.problem


def not_of_clients(name: str, run: Any) -> str | None:
    """Why clients' models cannot be evaluated in a run, or None."""
    kind = type(run.problem).__name__
    return None if isinstance(run.problem, ModelProblem) else f"{kind} has no samples of clients: use ud.federate(...)"


def not_of_adapters(name: str, run: Any) -> str | None:
    """Why there is no bias of averaged adapters, or None."""
    problem = run.problem
    if not isinstance(problem, ModelProblem) or lora_pairs([*problem.flat.names, *problem.flat.frozen()]):
        return not_of_clients(name, run)
    return "the model has no LoRA adapters, parameters called ...lora_A... and ...lora_B..."
