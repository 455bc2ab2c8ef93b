"""Tasks are recognised, or said; their metrics are scikit-learn's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import undrift as ud
from undrift.problems.evaluation import evaluate_each
from undrift.problems.tasks import Accumulator, Task, auroc

bce = F.binary_cross_entropy_with_logits


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = normal(60, 4)
YES = (X[:, 0] + 0.5 * normal(60, seed=1) > 0).double()
LABELS = (X[:, :3] + 0.5 * normal(60, 3, seed=2) > 0).double()
CLASSES = (X[:, :3] + 0.5 * normal(60, 3, seed=3)).argmax(1)
NUMBERS = X @ normal(4, 2, seed=4) + normal(60, 2, seed=5)


class Wrapped(nn.Module):
    """A linear model with its output in a dict, beside something else."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"hidden": x, "logits": self.linear(x)}


@dataclass
class Output:
    """As libraries return it: neither a tensor nor a dict."""

    logits: Tensor


class Attribute(Wrapped):
    def forward(self, x: Tensor) -> Any:
        return Output(self.linear(x))


def federate(Y: Tensor, loss: Any, outputs: int = 1, model: nn.Module | None = None, **more: Any) -> Any:
    torch.manual_seed(0)
    model = (model or nn.Linear(4, outputs)).double()
    return ud.federate((X[:40], Y[:40]), (X[40:], Y[40:]), model=model, loss=loss, clients=ud.IID(4), **more)


PROBABLE = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
FLAT_BCE = lambda o, t: bce(o.squeeze(1), t)
CASES: list[tuple[str, Tensor, Any, dict[str, Any]]] = [
    ("multi-class", CLASSES, F.cross_entropy, {"outputs": 3}),
    ("multi-class", F.one_hot(CLASSES).double(), F.cross_entropy, {"outputs": 3}),
    ("binary", YES, FLAT_BCE, {}),
    ("binary", YES[:, None], bce, {}),
    ("binary", YES.long(), lambda o, t: bce(o.squeeze(1), t.double()), {}),
    ("binary", YES, lambda o, t: F.softplus(-(2 * t - 1) * o.squeeze(1)).mean(), {}),
    ("binary", YES, lambda o, t: F.binary_cross_entropy(o.squeeze(1), t), {"model": PROBABLE}),
    ("binary", YES, lambda o, t: bce(o["logits"].squeeze(1), t), {"model": Wrapped()}),
    ("binary", YES, lambda o, t: bce(o.logits.squeeze(1), t), {"model": Attribute()}),
    ("multi-label", LABELS, bce, {"outputs": 3}),
    ("multi-label", LABELS, lambda o, t: F.binary_cross_entropy(o.sigmoid(), t), {"outputs": 3}),
    ("regression", NUMBERS, F.mse_loss, {"outputs": 2}),
    ("regression", NUMBERS[:, 0], lambda o, t: F.l1_loss(o.squeeze(1), t), {}),
    ("regression", YES[:, None], F.mse_loss, {}),
]


@pytest.mark.parametrize("task, Y, loss, more", CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_task_is_recognised_and_its_metrics_are_those_of_scikit_learn(
    task: str, Y: Tensor, loss: Any, more: dict[str, Any]
) -> None:
    problem = federate(Y, loss, **more)
    assert problem.task.name == task
    extra = [name for name in problem.metric_names if name not in ("test", "train", "clients", "gradient")]
    found = problem.evaluate(problem.x0)
    for name in extra:
        found |= problem.evaluate_metric(name, problem.x0)
    output = problem.module(problem.x0)(X[40:])
    output = output["logits"] if isinstance(output, dict) else output.logits if isinstance(output, Output) else output
    scores, target = output.detach().numpy(), Y[40:].numpy()
    if task == "regression":
        target = target.reshape(scores.shape)
        expected = {"r2": sk.r2_score(target, scores), "mae": sk.mean_absolute_error(target, scores)}
    elif task == "multi-class":
        target = target.argmax(1) if target.ndim > 1 else target
        shares = torch.softmax(torch.as_tensor(scores), 1).numpy()
        expected = {
            "accuracy": sk.accuracy_score(target, scores.argmax(1)),
            "f1": sk.f1_score(target, scores.argmax(1), average="macro"),
            "auroc": sk.roc_auc_score(target, shares, multi_class="ovr"),
            "top2_accuracy": sk.top_k_accuracy_score(target, scores, k=2),
        }
    else:
        target, flat = target.reshape(scores.shape), scores.shape[1] == 1
        said = scores > (0.5 if more.get("model") is PROBABLE else 0)
        pair = (target[:, 0], said[:, 0]) if flat else (target, said)
        expected = {
            "accuracy": (said == target).mean(),
            "f1": sk.f1_score(*pair, average="macro"),
            "auroc": sk.roc_auc_score(target, scores),
        }
    assert set(found) == {"loss", *expected}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_a_loss_that_makes_probabilities_of_the_output_itself_is_one_of_logits() -> None:
    assert federate(YES, lambda o, t: F.binary_cross_entropy(o.sigmoid().squeeze(1), t)).task == Task("binary", 0.0, 1)


def test_a_task_that_is_said_is_the_task() -> None:
    problem = federate(YES[:, None], F.mse_loss, task="binary")
    assert problem.task == Task("binary", 0.5, 1) and {"accuracy", "auroc"} <= set(problem.evaluate(problem.x0))
    assert federate(LABELS, bce, outputs=3, task="regression").task.name == "regression"
    with pytest.raises(ud.InvalidInput, match="unknown task 'ranking'.*regression"):
        federate(YES, FLAT_BCE, task="ranking")
    with pytest.raises(ud.InvalidInput, match=r"task='multi-class' does not fit outputs \[2, 1\] with targets \[2\]"):
        federate(YES, FLAT_BCE, task="multi-class")


def test_a_metric_of_another_task_is_refused_with_those_there_are() -> None:
    with pytest.raises(ud.InvalidInput, match="unknown metric of a task that is binary: 'r2'.*auroc"):
        federate(YES, FLAT_BCE, metrics=("test", "r2"))
    problem = federate(YES, FLAT_BCE)
    with pytest.raises(ud.InvalidInput, match="unknown metric 'r2'"):
        ud.run(ud.FedAvg(), problem, rounds=1, local=ud.Local(steps=1, lr=0.1), metrics=("test", "r2"))


@pytest.mark.parametrize("task, Y, loss, more", CASES[:6] + CASES[9:], ids=lambda v: v if isinstance(v, str) else "")
def test_several_models_have_the_metrics_of_each(task: str, Y: Tensor, loss: Any, more: dict[str, Any]) -> None:
    problem = federate(Y, loss, **more)
    models = problem.x0 + normal(5, problem.x0.numel(), seed=6)
    alone = [problem.evaluate(x) for x in models]
    assert [pytest.approx(each, rel=1e-9) for each in alone] == evaluate_each(problem, models)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auroc_with_ties(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([float(s) for s, _ in pairs]), np.array([p for _, p in pairs])
    if positive.all() or not positive.any():
        assert np.isnan(auroc(scores, positive))
    else:
        assert auroc(scores, positive) == pytest.approx(sk.roc_auc_score(positive, scores), rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_f1_of_classes_that_may_be_missing(pairs: list[tuple[int, int]]) -> None:
    said, true = np.array(pairs).T
    tally = Accumulator(Task("multi-class", classes=5), ("f1",))
    tally.add(F.one_hot(torch.as_tensor(said), 5).double(), torch.as_tensor(true))
    expected = sk.f1_score(true, said, average="macro", zero_division=0)  # pyright: ignore[reportArgumentType]
    assert tally.result()["f1"] == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_targets_to_be_ignored_are_in_no_metric() -> None:
    scores, target = normal(4, 3, 5), torch.randint(0, 3, (4, 5), generator=torch.Generator().manual_seed(0))
    target[:, 3:] = -100
    tally = Accumulator(Task("multi-class", classes=3), ("accuracy", "f1", "auroc", "top-2"))
    tally.add(scores, target)
    rows, labels = scores[:, :, :3].movedim(1, -1).reshape(-1, 3), target[:, :3].flatten()
    assert tally.result() == pytest.approx(
        {
            "accuracy": sk.accuracy_score(labels, rows.argmax(1)),
            "f1": sk.f1_score(labels, rows.argmax(1), average="macro"),
            "auroc": sk.roc_auc_score(labels, rows.softmax(1), multi_class="ovr"),
            "top2_accuracy": sk.top_k_accuracy_score(labels, rows, k=2),
        }
    )


def test_a_client_with_one_answer_has_no_auroc_and_clients_have_their_names() -> None:
    hospitals = {"a": (X[:20], YES[:20]), "b": (X[20:40], torch.ones(20).double())}
    tests = {"b": (X[50:], torch.ones(10).double()), "a": (X[40:50], YES[40:50])}
    model = nn.Linear(4, 1).double()
    problem = ud.federate(hospitals, tests, model=model, loss=FLAT_BCE, metrics=("test", "clients"))
    found = problem.evaluate(problem.x0)
    assert problem.client_names == ("a", "b")
    assert {name for name in found if name.startswith("client: ")} == {
        "client: a loss", "client: a accuracy", "client: a auroc", "client: b loss", "client: b accuracy",
    }  # fmt: skip
    scores = problem.module(problem.x0)(X[40:50]).detach()
    assert found["client: a auroc"] == found["client_auroc"] == pytest.approx(sk.roc_auc_score(YES[40:50], scores))
    right = (problem.module(problem.x0)(X[50:]) > 0).double().mean()
    assert found["client: b accuracy"] == pytest.approx(float(right.detach()))
    assert found["client_accuracy"] == pytest.approx((found["client: a accuracy"] + found["client: b accuracy"]) / 2)


def test_which_direction_is_better() -> None:
    from undrift.metrics.quality import higher_is_better

    better = ["accuracy", "auroc", "f1", "r2", "top5_accuracy", "train_auroc", "client_r2", "client: f1 st. auroc"]
    worse = ["loss", "mae", "client_mae_worst_tenth", "client: accuracy clinic loss", "fine_tuned_loss", "grad_norm"]
    worse += ["gap", "drift", "tau_error:10", "train_loss", "epsilon"]
    assert {*map(higher_is_better, better)} == {True} and {*map(higher_is_better, worse)} == {False}
    nobody_said = ["error2", "fid_score", "dice", "kappa", "my_acc", "accuracy_of_the_clock", "client: auroc dice"]
    assert {*map(higher_is_better, nobody_said)} == {None}
