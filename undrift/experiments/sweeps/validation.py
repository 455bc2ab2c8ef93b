"""Data to choose by: a part of the training data that no client trains on, so that test data stay unseen."""

import numpy as np
import torch

from undrift.core.errors import InvalidInput
from undrift.core.rng import Key, Purpose, generator
from undrift.data.assignment import ClientIndices
from undrift.data.trees import sample_count, take
from undrift.problems.model import ModelProblem

SPLIT = 1  # the stream of Purpose.DATA that divides clients' data; stream 0 chooses test samples


def with_held_out(problem: ModelProblem, fraction: float, seed: int) -> ModelProblem:
    """The same federation, a fraction of every client's samples taken out and evaluated on in place of test data.

    A client keeps at least one sample; a sample that several clients hold is taken from all of them.  Weights stay.
    """
    held = _chosen(problem, fraction, seed)
    if not held.any():
        raise InvalidInput(
            f"validate = {fraction} holds out nothing: clients have at most {problem.parts.sizes.max()} samples; "
            "hold out more, or choose by test data with validate = 0"
        )
    mine = [problem.parts.of(client) for client in range(problem.N)]
    which = torch.as_tensor(np.flatnonzero(held))
    parts = ClientIndices.from_lists([samples[~held[samples]] for samples in mine])
    test = take(problem.X, which), take(problem.Y, which)
    return problem.with_parts(parts, test, problem.weights, problem.default_metrics)


def _chosen(problem: ModelProblem, fraction: float, seed: int) -> np.ndarray:
    """Whether each sample is held out: fraction * n of a client's n, rounded up or down by chance so that it adds up."""
    held = np.zeros(sample_count(problem.X), dtype=bool)
    for client in range(problem.N):
        samples = problem.parts.of(client)
        random = generator(Purpose.DATA, Key(seed, 0, exchange=SPLIT), client)
        count = min(int(fraction * len(samples) + random.random()), len(samples) - 1)
        held[random.permutation(samples)[:count]] = True
    for client in range(problem.N):  # where clients share samples, others may have taken the last
        samples = problem.parts.of(client)
        if held[samples].all():
            held[samples[0]] = False
    return held
