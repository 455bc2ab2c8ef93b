"""Whether model, loss and data fit together, found out before the first round, with what to do if they do not."""

import random as Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data.augment import CropFlip

if TYPE_CHECKING:
    from undrift.problems.model import ModelProblem


def check_model_fits_data(problem: "ModelProblem") -> bool:
    """Try model and loss on a few samples, and look what a training step does besides.

    Returns whether the model draws torch's random numbers, beside its nn.Dropout layers.
    """
    _check_inputs(problem)
    before = problem.flat.buffers()
    with torch.random.fork_rng(devices=[]):
        others, random = _other_randomness(), torch.get_rng_state()
        _try(problem, problem.X, problem.Y, "")
        draws = not torch.equal(random, torch.get_rng_state())
        if others != _other_randomness() and _draws_elsewhere(problem):
            raise InvalidInput(
                "the model draws from numpy's or Python's random numbers, which cannot be keyed: use torch's"
            )
        if problem.test is not None:
            _try(problem, *problem.test, "test ")
    for name, buffer in problem.flat.buffers().items():
        if not torch.equal(buffer, before[name]):
            raise InvalidInput(
                f"the model changes its buffer {name!r} in training, which is not a parameter and would be lost "
                "between clients: remove it or make it constant"
            )
    return draws


def _draws_elsewhere(problem: "ModelProblem") -> bool:
    """Whether a training step draws numpy's or Python's numbers every time: once it may be another thread that did."""
    for _ in range(5):
        before = _other_randomness()
        _try(problem, problem.X, problem.Y, "")
        if before == _other_randomness():
            return False
    return True


def _check_inputs(problem: "ModelProblem") -> None:
    """What makes inputs of stored samples must be repeatable, and augmentation must be given images."""
    some = problem.X[[0, len(problem.X) - 1]]
    once, again = problem.prepared(some), problem.prepared(some)
    if not torch.equal(once, again):
        raise InvalidInput("prepare must make the same of the same sample: use augment for chance")
    if problem.augment is None:
        return
    if not isinstance(problem.augment, CropFlip):
        raise InvalidInput(
            f"augment must be an object such as ud.CropFlip(), got {problem.augment!r}"
        )
    if once.dim() != 4:
        raise InvalidInput(
            f"ud.CropFlip needs images [channels, height, width], inputs are {list(once.shape[1:])}"
        )


def _try(problem: "ModelProblem", X: Tensor, Y: Tensor, which: str) -> None:
    for what, values in (("data", X), ("targets", Y)):
        prepared = what == "data" and problem.prepare is not None
        if values.is_floating_point() and values.dtype != problem.x0.dtype and not prepared:
            raise InvalidInput(
                f"the {which}{what} are {values.dtype} and the model {problem.x0.dtype}: "
                "convert one, e.g. data.float() or model.double()"
            )
    some = [0, len(X) - 1]
    if Y.dim() == 1:  # among them the extreme labels
        some += [int(Y.argmin()), int(Y.argmax())]
    try:
        inputs, targets = problem.prepared(X[some]), Y[some]
        value = problem.mean_loss(problem.x0, inputs, targets)
        if not isinstance(value, Tensor) or value.numel() != 1 or not bool(value.isfinite()):
            raise InvalidInput(
                f"loss(model(inputs), targets) must be one finite number, got {value}"
            )
        output = problem.flat(problem.x0, inputs)
        if targets.is_floating_point() and isinstance(output, Tensor):
            if output.shape != targets.shape and output.numel() == targets.numel():
                raise InvalidInput(
                    f"the model gives {list(output.shape)} for {which}targets {list(targets.shape)}: "
                    "they would be broadcast against each other; use y[:, None] or output.squeeze(1)"
                )
        problem.gradient(problem.x0, inputs, targets, torch.tensor(0))
    except InvalidInput:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            f"model and loss do not fit {which}data of shape {list(X.shape)} with targets of shape "
            f"{list(Y.shape)}, {Y.dtype}: {reason}"
        ) from error


def _other_randomness() -> Any:
    """Where numpy's and Python's own random numbers are."""
    _, numbers, *rest = np.random.get_state()
    return np.asarray(numbers).tobytes(), rest, Random.getstate()
