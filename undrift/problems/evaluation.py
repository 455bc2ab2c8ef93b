"""Metrics of a model: its quality on held-out data and on those of clients, and the objective's gradient."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from undrift.compiler.kernels.dense import fast_layers
from undrift.data.assignment import group_by_client

if TYPE_CHECKING:
    from undrift.problems.model import ModelProblem

EVALUATION_BATCH = 2048
MODELS_AT_ONCE = 8  # whose outputs are in memory together
MODEL_METRICS = ("test", "train", "clients", "gradient")


def in_batches(n: int) -> list[slice]:
    """Samples 0 to n - 1, as many at a time as are evaluated at once."""
    return [slice(i, min(i + EVALUATION_BATCH, n)) for i in range(0, n, EVALUATION_BATCH)]


def evaluate(problem: "ModelProblem", name: str, x: Tensor) -> dict[str, float]:
    """One of MODEL_METRICS, of one model."""
    if name == "test":
        return _quality(problem, x, *(problem.test or problem.held))
    if name == "train":
        quality = _quality(problem, x, *problem.held)
        return {f"train_{metric}": value for metric, value in quality.items()}
    if name == "clients":
        return _by_client(problem, x)
    return {"grad_norm": _gradient_norm(problem, x)}


def evaluate_each(problem: "ModelProblem", x: Tensor) -> list[dict[str, float]]:
    """The default metrics of several models, `[models, D]`: all of them on a batch at once where that is possible."""
    X, Y = problem.test or problem.held
    ignored = not Y.is_floating_point() and bool((Y < 0).any())
    if problem.default_metrics != ("test",) or len(x) == 1 or ignored:
        return [problem.evaluate(row) for row in x]
    if len(x) > MODELS_AT_ONCE:
        parts = [evaluate_each(problem, some) for some in x.split(MODELS_AT_ONCE)]
        return [metrics for part in parts for metrics in part]
    flat, total, right = problem.flat, torch.zeros(len(x), dtype=torch.float64), 0
    flat.template.eval()
    classified = False
    with torch.no_grad(), fast_layers(several=True):
        for some in in_batches(len(X)):
            inputs, target = problem.prepared(X[some]), Y[some]
            output = vmap(lambda row: flat(row, inputs))(x)  # noqa: B023 (used at once)
            losses = vmap(lambda out: problem.loss(out, target))(output)  # noqa: B023
            total += losses.double().cpu() * len(target)
            classified = _is_classification(output[0], target)
            if classified:
                right = right + (output.argmax(2) == target).flatten(1).sum(1)
    n = len(X)
    found = [{"loss": each / n} for each in total.tolist()]
    if not classified:
        return found
    rates = [count / Y.numel() for count in torch.as_tensor(right).tolist()]
    return [{**loss, "accuracy": rate} for loss, rate in zip(found, rates, strict=True)]


def _quality(problem: "ModelProblem", x: Tensor, X: Tensor, Y: Tensor) -> dict[str, float]:
    """Loss, and accuracy if there is one, on these samples."""
    problem.flat.template.eval()
    total, weight, right, counted = 0.0, 0, 0, 0
    with torch.no_grad(), fast_layers(several=False):
        for some in in_batches(len(X)):
            output, target = problem.flat(x, problem.prepared(X[some])), Y[some]
            # negative integers are targets to be ignored
            count = len(target) if target.is_floating_point() else int((target >= 0).sum())
            if count == 0:
                continue
            total, weight = total + float(problem.loss(output, target)) * count, weight + count
            if _is_classification(output, target):
                right += int((output.argmax(1) == target).sum())
                counted += count
    return {"loss": total / max(weight, 1)} | ({"accuracy": right / counted} if counted else {})


def _by_client(problem: "ModelProblem", x: Tensor) -> dict[str, float]:
    """Quality client by client: on its test samples where the data say whose they are, else on its own."""
    X, Y, parts = problem.X, problem.Y, problem.parts
    if problem.test is not None and problem.test_clients is not None:
        known = problem.test_clients >= 0
        if known.any():
            X, Y = problem.test[0][known], problem.test[1][known]
            parts = group_by_client(problem.test_clients[known].numpy())
    found = [_quality(problem, x, X[part], Y[part]) for part in map(parts.of, range(parts.N))]
    metrics = _mean_and_worst("client_loss", [f["loss"] for f in found], worst="high")
    if "accuracy" in found[0]:
        rates = [f["accuracy"] for f in found]
        metrics |= _mean_and_worst("client_accuracy", rates, worst="low")
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


def _is_classification(output: Any, target: Tensor) -> bool:
    """Whether output is scores [n, classes, ...] for integer targets [n, ...], beyond doubt."""
    if not isinstance(output, Tensor) or target.is_floating_point() or output.dim() < 2:
        return False
    fits = output.shape[:1] + output.shape[2:] == target.shape
    return fits and output.shape[1] > 1 and output.shape[1] not in target.shape[1:]
