"""Metrics of a model: its quality on held-out data and on those of clients, and the objective's gradient."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from undrift.compiler.kernels.dense import fast_layers
from undrift.core.errors import unknown
from undrift.data.assignment import group_by_client
from undrift.data.trees import Tree, leaves, sample_count, take
from undrift.problems.tasks import LOWER, TASK_METRICS, Accumulator, Task

if TYPE_CHECKING:
    from undrift.problems.model import ModelProblem

EVALUATION_BATCH = 2048  # samples that are computed at once, of models in general and for full gradients
MOST_BATCHES, DENSE_WIDTH = 8, 256  # of them at once where a dense model is narrower than this
PREPARED_BYTES = 2**27  # of a test set whose model inputs are kept
MODELS_AT_ONCE = 8  # whose outputs are in memory together
OF_MODEL = ("test", "train", "clients", "gradient")
MODEL_METRICS = (*OF_MODEL, *TASK_METRICS)
IGNORED = -100  # what torch's losses leave out
NAMED = 50  # clients that have lines of their own, at most


def in_batches(n: int, most: int | None = None) -> list[slice]:
    """Samples 0 to n - 1, at most so many at a time."""
    most = most or EVALUATION_BATCH
    return [slice(i, min(i + most, n)) for i in range(0, n, most)]


def batch_of_width(width: int | None) -> int:
    """How many samples are evaluated at once, by the widest layer of a dense model: to call a narrow one takes longer than
    it takes to compute a batch.

    >>> batch_of_width(10), batch_of_width(200), batch_of_width(None)
    (16384, 2048, 2048)
    """
    return EVALUATION_BATCH * (1 if width is None else max(1, min(MOST_BATCHES, DENSE_WIDTH // width)))


def batches(problem: "ModelProblem", X: Tree, Y: Tree) -> Iterator[tuple[Any, Any]]:
    """Model inputs and targets of samples, batch by batch; those of the test set are prepared once, if they fit."""
    parts = in_batches(sample_count(X), problem.evaluation_batch)
    kept = problem.prepared_test if problem.test is not None and X is problem.test[0] else []
    inputs = kept or (problem.prepared(take(X, some)) for some in parts)
    for each, some in zip(inputs, parts, strict=True):
        versions = [t._version for t in leaves(each)]
        yield each, take(Y, some)
        if kept and versions != [t._version for t in leaves(each)]:  # the model writes over its inputs
            problem.prepared_test = []


def evaluate(problem: "ModelProblem", name: str, x: Tensor) -> dict[str, float]:
    """One of MODEL_METRICS, of one model."""
    if name == "test":
        return quality(problem, [(x, *(problem.test or problem.held))])
    if name == "train":
        found = quality(problem, [(x, *problem.held)])
        return {f"train_{metric}": value for metric, value in found.items()}
    if name == "clients":
        return quality_by_client(problem, lambda client: x)
    if name == "gradient":
        return {"grad_norm": _gradient_norm(problem, x)}
    if problem.task is None or name not in problem.task.allowed:
        raise unknown("metric", name, problem.metric_names)
    found = quality(problem, [(x, *(problem.test or problem.held))], (name,))
    return {metric: value for metric, value in found.items() if metric != "loss"}


def evaluate_each(problem: "ModelProblem", x: Tensor) -> list[dict[str, float]]:
    """The default metrics of several models, `[models, D]`: all of them on a batch at once where that is possible."""
    X, Y = problem.test or problem.held
    usual = problem.default_metrics == ("test",) and problem.gives_tensors and isinstance(Y, Tensor)
    if not usual or len(x) == 1 or (not Y.is_floating_point() and bool((Y < 0).any())):
        return [problem.evaluate(row) for row in x]
    if len(x) > MODELS_AT_ONCE:
        parts = [evaluate_each(problem, some) for some in x.split(MODELS_AT_ONCE)]
        return [metrics for part in parts for metrics in part]
    flat, total = problem.flat, torch.zeros(len(x), dtype=torch.float64)
    tallies = [Accumulator(problem.task) for _ in x]
    flat.template.eval()
    with torch.no_grad(), fast_layers(several=True):
        for inputs, target in batches(problem, X, Y):
            output = vmap(lambda row: flat(row, inputs))(x)  # noqa: B023 (used at once)
            losses = vmap(lambda out: problem.loss(out, target))(output)  # noqa: B023
            total += losses.double().cpu() * len(target)
            for tally, own in zip(tallies, output, strict=True):
                tally.add(own, target)
    return [{"loss": loss / len(Y), **tally.result()} for loss, tally in zip(total.tolist(), tallies, strict=True)]


def quality(
    problem: "ModelProblem",
    models: Iterable[tuple[Tensor, Tree, Tree]],
    metrics: Sequence[str] | None = None,
    whose: Sequence[int] | None = None,
) -> dict[str, float]:
    """Loss, and the metrics of the task if there is one: of models, each on its own samples, all samples counted alike.

    `whose` they are: BatchNorm layers have the statistics of that client's training samples, else of everyone's.
    """
    score = problem.score if problem.flat.norms else problem.scored  # a capture would hold the statistics of one time
    total, weight, tally = 0.0, 0, Accumulator(problem.task, metrics)
    with torch.no_grad():
        for (x, X, Y), client in zip(models, whose or repeat(None), strict=whose is not None):
            with problem.statistics(x, client):
                for inputs, target in batches(problem, X, Y):
                    n = _counted(problem.task, target)
                    if n == 0:
                        continue
                    output, loss = score(x, inputs, target)
                    total, weight = total + float(loss) * n, weight + n
                    tally.add(output, target)
    return {"loss": total / max(weight, 1), **tally.result()}


def _counted(task: Task | None, target: Tree) -> int:
    """How many targets a batch has, without those that a loss ignores: no class is negative, and -100 is no target anywhere."""
    one = leaves(target)[0]
    if one.is_floating_point() or (task is not None and task.name != "multi-class"):
        return len(one)
    return int((one >= 0 if task is not None else one != IGNORED).sum())


def samples_by_client(problem: "ModelProblem") -> dict[int, tuple[Tree, Tree]]:
    """What each client is evaluated on: its test samples where the data say whose they are, else its own."""
    X, Y, parts = problem.X, problem.Y, problem.parts
    numbers = list(range(parts.N))
    if problem.test is not None and problem.test_clients is not None:
        known = problem.test_clients >= 0
        if known.any():
            X, Y = take(problem.test[0], known), take(problem.test[1], known)
            parts = group_by_client(problem.test_clients[known].numpy())
            assert parts.names is not None
            numbers = parts.names.tolist()
    which = [torch.as_tensor(parts.of(i)) for i in range(parts.N)]
    return {client: (take(X, mine), take(Y, mine)) for client, mine in zip(numbers, which, strict=True)}


def quality_by_client(problem: "ModelProblem", model: Callable[[int], Tensor]) -> dict[str, float]:
    """Of each client's model on its samples: mean and worst tenth, and a line a client where these have names."""
    each = samples_by_client(problem).items()
    found = {i: quality(problem, [(model(i), *samples)], whose=[i]) for i, samples in each}
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for each in found.values() for name in each):
        values = [each[name] for each in found.values() if name in each]
        metrics |= _mean_and_worst(f"client_{name}", values, worst="high" if name in LOWER else "low")
    names = problem.parts.names
    if names is not None and len(names) <= NAMED:
        metrics |= {f"client: {names[i]} {name}": value for i, each in found.items() for name, value in each.items()}
    return metrics


def _gradient_norm(problem: "ModelProblem", x: Tensor) -> float:
    """Of the whole objective sum_i p_i f_i."""
    total = torch.zeros_like(x)
    for i, p in enumerate(problem.weights):
        total += float(p) * problem.full_grad(x, [i])
    return float(total.norm())


def _mean_and_worst(name: str, values: Sequence[float], worst: str) -> dict[str, float]:
    each = np.sort(values)
    tenth = max(1, len(each) // 10)
    of_worst = each[:tenth] if worst == "low" else each[-tenth:]
    return {name: float(each.mean()), f"{name}_worst_tenth": float(of_worst.mean())}
