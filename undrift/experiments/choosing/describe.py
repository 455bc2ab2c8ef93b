"""What a federation is like, in the numbers that a choice depends on."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from undrift.data.assignment import ClientIndices
from undrift.experiments.runs.estimate import span_of_steps
from undrift.metrics.gradients import gradients_at
from undrift.problems.model import ModelProblem
from undrift.simulation.api import RunConfig
from undrift.simulation.participation import expected_size

LARGE = 100_000  # samples, from which on the gradients of some clients and samples stand for all
CLIENTS, SAMPLES = 100, 200


def describe_federation(config: RunConfig) -> dict[str, Any]:
    """Sizes, labels, gradients at the initial model, participation and local steps, as JSON holds them.

    gradient_dissimilarity   sum_i p_i |grad f_i - grad f|^2 / |grad f|^2 at x0: 0 if clients are alike
    """
    problem = config.problem
    assert isinstance(problem, ModelProblem)
    about = problem.summary()
    some = _some_of(problem)
    found = gradients_at(problem.x0, some, 0.0, None)
    steps = span_of_steps(config)
    return {
        **{name: about[name] for name in ("clients", "partition", "samples", "parameters")},
        **about["heterogeneity"],
        "gradient_dissimilarity": found.dissimilarity / float(found.mean.square().sum() or 1.0),
        "gradients_of": None if some is problem else some.N,
        "per_round": expected_size(config.participation, problem.N),
        "local_steps": steps and list(steps),
    }


def _some_of(problem: ModelProblem) -> ModelProblem:
    """Of a large federation some clients with some of their samples, the same ones every time."""
    if problem.parts.sizes.sum() <= LARGE:
        return problem
    who = np.sort(np.random.default_rng(0).permutation(problem.N)[:CLIENTS])
    held = [problem.parts.of(int(i)) for i in who]
    parts = ClientIndices.from_lists([each[:: -(-len(each) // SAMPLES)] for each in held])
    weights = problem.weights[who] / problem.weights[who].sum()
    return problem.with_parts(parts, problem.test, weights, problem.default_metrics)


def federation_in_words(f: Mapping[str, Any]) -> Iterator[str]:
    """The same in sentences."""
    least, most = f["smallest"], f["largest"]
    sizes = (
        f"{least:,} samples each" if least == most else f"{least:,} to {most:,} samples each, median {f['median']:g}"
    )
    yield f"{f['clients']:,} clients ({f['partition']}) with {sizes}; {f['parameters']:,} parameters"
    labels = "no labels to compare"
    if f["classes"] is not None:
        most = 1 - 1 / f["classes"]
        labels = (
            f"a client has {f['classes_held']:.1f} of {f['classes']} classes; label divergence {f['divergence']:.2f} "
            f"(0: alike, {most:.2f}: one class each)"
        )
    of = f.get("gradients_of")
    some = f" (of {of} clients and at most {SAMPLES} samples of each)" if of else ""
    size = f"{f['gradient_dissimilarity']:.3g} times the squared norm of the mean"
    yield f"{labels}; gradient dissimilarity at the start {size}{some}"
    share = f["per_round"] / f["clients"]
    steps = ""
    if f["local_steps"] is not None:
        least, usual, most = f["local_steps"]
        steps = f", {least} local steps each" if least == most else f", {least} to {most} local steps, median {usual:g}"
    who = "all" if share == 1 else f"{f['per_round']:,}"
    yield f"{who} of them a round ({share:.0%}){steps}"
    if f["local_steps"] is not None and f["local_steps"][2] == 1:
        yield "with one local step clients cannot drift, and methods against drift have nothing to show: take more"
