"""What a model is for, and how good it is at that: classes, yes or no, several labels, numbers.

A task is recognised from the model's output, the targets and the loss, or said by name (`task=` of `ud.federate`).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, unknown

TOP = (2, 3, 5, 10)
USUAL = {  # what is recorded of a task unless more is asked for; with two classes AUROC too
    "multi-class": ("accuracy",),
    "binary": ("accuracy", "auroc"),
    "multi-label": ("accuracy", "auroc", "f1"),
    "regression": ("r2", "mae"),
}
CLASSES = ("accuracy", "auroc", "f1")
ALLOWED = {
    "multi-class": (*CLASSES, *(f"top-{k}" for k in TOP)),
    "binary": CLASSES,
    "multi-label": CLASSES,
    "regression": ("r2", "mae"),
}
TASK_METRICS = tuple(dict.fromkeys(name for names in ALLOWED.values() for name in names))
LOWER = ("loss", "mae")  # is better
FAR = 20.0  # a logit as good as certain


@runtime_checkable
class HasLogits(Protocol):
    """An output as Hugging Face's models give it."""

    logits: Any


@dataclass(frozen=True)
class Task:
    """name        multi-class, binary (one score a sample), multi-label or regression
    threshold   above which a binary score says yes: 0 for logits, 0.5 for probabilities
    """

    name: str
    threshold: float = 0.0
    classes: int = 1  # or labels, or numbers that are predicted

    @property
    def usual(self) -> tuple[str, ...]:
        """The metrics that are recorded unless others are asked for."""
        return (*USUAL[self.name], *(("auroc",) if self.name == "multi-class" and self.classes == 2 else ()))

    @property
    def allowed(self) -> tuple[str, ...]:
        return tuple(m for m in ALLOWED[self.name] if not m.startswith("top-") or int(m[4:]) < self.classes)


def scores_of(output: Any) -> Tensor | None:
    """The tensor that answers: the output itself, its `logits`, or all that there is in a dict."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        inside = output.get("logits", next(iter(output.values())) if len(output) == 1 else None)
    else:
        inside = output.logits if isinstance(output, HasLogits) else None
    return inside if isinstance(inside, Tensor) else None


def recognise_task(
    output: Any, target: Any, targets: Any, loss: Callable[..., Tensor], said: str | None = None
) -> Task | None:
    """The task of a model from what it gave for a few samples; `targets` are those of all samples.

    >>> loss = torch.nn.functional.binary_cross_entropy_with_logits
    >>> y = torch.tensor([0.0, 1.0])
    >>> recognise_task(torch.zeros(2), y, y, loss)
    Task(name='binary', threshold=0.0, classes=1)
    >>> recognise_task(torch.zeros(2), y, y, torch.nn.functional.mse_loss).name
    'regression'
    """
    if said is not None and said not in USUAL:
        raise unknown("task", said, USUAL)
    scores = scores_of(output)
    if scores is None or not isinstance(target, Tensor):
        if said is not None:
            raise InvalidInput(
                f"task={said!r} needs one tensor of outputs (or a dict with 'logits') and one of targets, "
                f"got {type(output).__name__} and {type(target).__name__}: record a function of your own (@ud.metric)"
            )
        return None
    found = _recognise(output, scores, target, targets, loss)
    if said is None or (found is not None and found.name == said):
        return found
    classes = scores.shape[1] if scores.dim() > 1 else 1
    fits = {
        "multi-class": is_multi_class(scores, target),
        "binary": _same_shape(scores, target) and scores[0].numel() == 1,
        "multi-label": _same_shape(scores, target) and scores.dim() > 1,
        "regression": _same_shape(scores, target),
    }
    if not fits[said]:
        raise InvalidInput(
            f"task={said!r} does not fit outputs {list(scores.shape)} with targets {list(target.shape)}: "
            "multi-class has a score a class and one integer a sample, others an output a target"
        )
    threshold = 0.0 if said in ("multi-class", "regression") else _threshold(output, scores, target, loss)
    return Task(said, 0.5 if threshold is None else threshold, classes)


def _recognise(
    output: Any, scores: Tensor, target: Tensor, targets: Tensor, loss: Callable[..., Tensor]
) -> Task | None:
    classes = scores.shape[1] if scores.dim() > 1 else 1
    if is_multi_class(scores, target):
        return Task("multi-class", classes=classes)
    if not _same_shape(scores, target):
        return None
    if not bool(((targets == 0) | (targets == 1)).all()):
        return Task("regression", classes=classes)
    if targets.dim() == 2 and classes > 1 and bool((targets.sum(1) == 1).all()):
        return Task("multi-class", classes=classes)  # one-hot
    threshold = _threshold(output, scores, target, loss)
    if threshold is None:
        return Task("regression", classes=classes)
    return Task("binary" if scores[0].numel() == 1 else "multi-label", threshold, classes)


def is_multi_class(scores: Any, target: Tensor) -> bool:
    """Whether these are scores [n, classes, ...] for integer targets [n, ...], beyond doubt."""
    if not isinstance(scores, Tensor) or target.is_floating_point() or scores.dim() < 2:
        return False
    fits = scores.shape[:1] + scores.shape[2:] == target.shape
    return fits and scores.shape[1] > 1 and scores.shape[1] not in target.shape[1:]


def _same_shape(scores: Tensor, target: Tensor) -> bool:
    return scores.shape == target.shape or (scores.shape[-1:] == (1,) and scores.shape[:-1] == target.shape)


def _threshold(output: Any, scores: Tensor, target: Tensor, loss: Callable[..., Tensor]) -> float | None:
    """Where yes begins for outputs that a loss takes against 0 and 1; None if it takes them for numbers.

    A loss of logits is least far out, one of probabilities at the target; of the two with 0.5 only the one of
    probabilities punishes a certain mistake without measure.
    """
    right = target.reshape(scores.shape).to(scores.dtype)
    far, there, opposite = (
        _loss_at(output, value, target, loss) for value in (FAR * (2 * right - 1), right, 1 - right)
    )
    if far < there:
        return 0.0
    return 0.5 if opposite > 10 else None


def _loss_at(output: Any, scores: Tensor, target: Tensor, loss: Callable[..., Tensor]) -> float:
    """The loss if the scores were these; infinite where it refuses them."""
    given = scores
    if not isinstance(output, Tensor):
        given = copy(output)
        if isinstance(given, Mapping):
            given["logits" if "logits" in given else next(iter(given))] = scores  # pyright: ignore[reportIndexIssue]
        else:
            given.logits = scores
    try:
        with torch.no_grad():
            return float(loss(given, target))
    except Exception:  # of any kind: what a user's loss does with outputs that the model never gives
        return float("inf")


class Accumulator:
    """Adds up what the metrics of a task need, batch by batch."""

    def __init__(self, task: Task | None, metrics: Sequence[str] | None = None):
        self.task = task
        self.metrics = (task.usual if metrics is None else tuple(metrics)) if task else ()
        self.right = self.counted = 0
        self.hits = dict.fromkeys((int(m[4:]) for m in self.metrics if m.startswith("top-")), 0)
        self.confusion: np.ndarray | None = None
        self.kept: list[tuple[Tensor, Tensor]] = []  # scores and targets, where all must be seen at once

    def add(self, output: Any, target: Any) -> None:
        scores = scores_of(output)
        if self.task is None or scores is None or not self.metrics:
            return
        if self.task.name != "multi-class":
            columns = scores.reshape(-1, self.task.classes)
            self.kept.append((columns.cpu(), target.reshape(columns.shape).cpu()))
            return
        if target.is_floating_point() or target.shape == scores.shape:  # one-hot
            target = target.argmax(1)
        found = scores.argmax(1)
        self.right += int((found == target).sum())
        self.counted += int((target >= 0).sum())  # negative integers are targets to be ignored
        if self.metrics == ("accuracy",):
            return
        seen = (target >= 0).flatten()
        rows, labels = scores.movedim(1, -1).reshape(-1, scores.shape[1])[seen], target.flatten()[seen]
        for k in self.hits:
            self.hits[k] += int((rows.topk(k, dim=1).indices == labels[:, None]).any(1).sum())
        if "f1" in self.metrics:
            C = scores.shape[1]
            pairs = (labels * C + found.flatten()[seen]).cpu().numpy()
            counts = np.bincount(pairs, minlength=C * C).reshape(C, C)
            self.confusion = counts if self.confusion is None else self.confusion + counts
        if "auroc" in self.metrics:
            self.kept.append((rows.cpu(), labels.cpu()))

    def result(self) -> dict[str, float]:
        """The metrics, without those that are not defined here, as AUROC is where all targets are the same."""
        if self.task is None or not (self.counted or self.kept):
            return {}
        scores = targets = np.zeros(0)
        if self.kept:
            scores, targets = (torch.cat(each).double().numpy() for each in zip(*self.kept, strict=True))
        made = {_key(name): self._metric(name, scores, targets) for name in self.metrics}
        return {name: value for name, value in made.items() if np.isfinite(value)}

    def _metric(self, name: str, scores: np.ndarray, targets: np.ndarray) -> float:
        task = self.task
        assert task is not None
        if name == "r2":
            return r2(scores, targets)
        if name == "mae":
            return float(np.abs(scores - targets).mean())
        if task.name == "multi-class":
            if name == "accuracy":
                return self.right / self.counted
            if name == "auroc":
                return multi_class_auroc(scores, targets.astype(int))
            if name == "f1" and self.confusion is not None:
                return f1_of(self.confusion)
            return self.hits[int(name[4:])] / self.counted
        said = scores > task.threshold
        if name == "accuracy":
            return float((said == (targets > 0.5)).mean())
        if name == "auroc":
            return float(_mean([auroc(s, t > 0.5) for s, t in zip(scores.T, targets.T, strict=True)]))
        yes = [_f1(s & t, s, t) for s, t in zip(said.T, targets.T > 0.5, strict=True)]
        if task.name == "binary":  # macro: of both answers
            no = ~said[:, 0], targets[:, 0] < 0.5
            yes.append(_f1(no[0] & no[1], *no))
        return float(np.mean(yes))


def _key(name: str) -> str:
    """What a metric is recorded as."""
    return f"top{name[4:]}_accuracy" if name.startswith("top-") else name


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The share of pairs (positive, negative) in which the positive has the higher score, ties counting half.

    NaN unless there are both.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    n, m = int(positive.sum()), int((~positive).sum())
    if n == 0 or m == 0:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # those with equal scores share the mean of theirs
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def multi_class_auroc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Each class against the rest by its softmax probability, mean over the classes that occur."""
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    shares = shifted / shifted.sum(1, keepdims=True)
    if scores.shape[1] == 2:  # the logit, which does not round to 1
        return auroc(scores[:, 1] - scores[:, 0], labels == 1)
    return float(_mean([auroc(shares[:, c], labels == c) for c in range(scores.shape[1])]))


def f1_of(confusion: np.ndarray) -> float:
    """Macro F1 from counts [label, answer]: the mean over classes that occur as a label or an answer."""
    hits, answered, there = np.diag(confusion), confusion.sum(0), confusion.sum(1)
    known = answered + there > 0
    return float((2 * hits[known] / (answered + there)[known]).mean())


def _f1(both: np.ndarray, said: np.ndarray, true: np.ndarray) -> float:
    total = said.sum() + true.sum()
    return float(2 * both.sum() / total) if total else 0.0


def r2(predicted: np.ndarray, targets: np.ndarray) -> float:
    """1 - residual over total sum of squares, mean over outputs; NaN where targets do not vary.

    >>> r2(np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [4.0]]))
    0.7857142857142857
    """
    total = ((targets - targets.mean(0)) ** 2).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.mean(1 - ((targets - predicted) ** 2).sum(0) / total))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
