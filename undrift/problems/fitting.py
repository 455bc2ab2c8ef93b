"""Whether model, loss and data fit together, found out before the first round, with what to do if they do not."""

import random as Random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data.transforms import CropFlip
from undrift.data.trees import Tree, equal, leaves, map_tree, sample_count, shapes, take
from undrift.problems.tasks import Task, recognise_task

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


def find_task(problem: "ModelProblem", said: str | None) -> tuple[Task | None, bool]:
    """What the model is for, as far as that can be told, and whether its output is one tensor."""
    which = torch.tensor([0, sample_count(problem.X) - 1])
    problem.flat.template.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        X, Y = problem.batch(which.to(problem.x0.device))
        output = problem.flat(problem.x0, X)
    return recognise_task(output, Y, problem.Y, problem.loss, said), isinstance(output, Tensor)


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
    some = take(problem.X, [0, sample_count(problem.X) - 1])
    once, again = problem.prepared(some), problem.prepared(some)
    if not equal(once, again):
        raise InvalidInput("prepare must make the same of the same sample: use augment for chance")
    if problem.augment is None:
        return
    if not isinstance(problem.augment, CropFlip):
        raise InvalidInput(f"augment must be an object such as ud.CropFlip(), got {problem.augment!r}")
    if not isinstance(once, Tensor) or once.dim() != 4:
        raise InvalidInput(f"ud.CropFlip needs images [channels, height, width], inputs are {shapes(once)}")


def _try(problem: "ModelProblem", X: Tree, Y: Tree, which: str) -> None:
    """What warns of what is then refused says the same less well; other warnings are passed on."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _try_samples(problem, X, Y, which)
    for each in said:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _try_samples(problem: "ModelProblem", X: Tree, Y: Tree, which: str) -> None:
    for what, values in [("data", t) for t in leaves(X)] + [("targets", t) for t in leaves(Y)]:
        prepared = what == "data" and problem.prepare is not None
        if values.is_floating_point() and values.dtype != problem.x0.dtype and not prepared:
            raise InvalidInput(
                f"the {which}{what} are {values.dtype} and the model {problem.x0.dtype}: "
                "convert one, e.g. data.float() or model.double()"
            )
    some = [0, sample_count(X) - 1]
    if isinstance(Y, Tensor) and Y.dim() == 1:  # among them the extreme labels
        labels = Y.byte() if Y.dtype == torch.bool else Y  # torch has no argmin of bools
        some += [int(labels.argmin()), int(labels.argmax())]
    try:
        inputs, targets = problem.prepared(take(X, some)), take(Y, some)
        value = problem.mean_loss(problem.x0, inputs, targets)
        if not isinstance(value, Tensor) or value.numel() != 1 or not bool(value.isfinite()):
            raise InvalidInput(f"loss(model(inputs), targets) must be one finite number, got {value}")
        output = problem.flat(problem.x0, inputs)
        if isinstance(targets, Tensor) and targets.is_floating_point() and isinstance(output, Tensor):
            fits = output.shape == targets.shape or output.numel() != targets.numel()
            if not fits and _broadcasts(problem, output, targets):
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
            f"model and loss do not fit {which}data of shape {_whole_shapes(X)} with targets of shape "
            f"{_whole_shapes(Y)}, {', '.join(dict.fromkeys(str(t.dtype) for t in leaves(Y)))}: {reason}"
        ) from error


def _broadcasts(problem: "ModelProblem", output: Tensor, targets: Tensor) -> bool:
    """Whether the loss mixes up samples: a loss that squeezes the output itself is the mean of those of single samples."""
    with torch.no_grad():
        whole = float(problem.loss(output, targets))
        each = [float(problem.loss(output[i : i + 1], targets[i : i + 1])) for i in range(len(output))]
    return abs(whole - sum(each) / len(each)) > 1e-4 * max(map(abs, each))


def _whole_shapes(tree: Tree) -> Any:
    return map_tree(lambda t: list(t.shape), tree)


def _other_randomness() -> Any:
    """Where numpy's and Python's own random numbers are."""
    _, numbers, *rest = np.random.get_state()
    return np.asarray(numbers).tobytes(), rest, Random.getstate()
