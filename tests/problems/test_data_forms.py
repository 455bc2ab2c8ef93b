"""Data in the forms that people have: by client, trees of tensors, texts, tables; the same run whatever the form."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import undrift as ud
from tests.support.compiled import needs_compiler
from tests.support.everywhere import models, played
from undrift.problems.evaluation import evaluate_each

WORDS, CLASSES = 12, 3
SIZES = (4, 9, 7, 12, 8)
NAMES = ("ann", "bob", "cyd", "dan", "eve")


def texts() -> list[tuple[list[int], int]]:
    random = np.random.default_rng(0)
    return [(random.integers(1, WORDS, size=random.integers(2, 7)).tolist(), i % CLASSES) for i in range(sum(SIZES))]


def pad(samples: list[tuple[list[int], int]]) -> tuple[dict[str, Tensor], Tensor]:
    """As a tokenizer's collator does it."""
    ids = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids, _ in samples], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}, torch.tensor([y for _, y in samples])


def by_client(samples: list[Any]) -> dict[str, list[Any]]:
    edges = np.cumsum([0, *SIZES])
    return {name: samples[a:b] for name, a, b in zip(NAMES, edges, edges[1:], strict=False)}


class Text(nn.Module):
    """A mean of embeddings, a frozen layer, and an output in a dict, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.frozen, self.out = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        assert attention_mask is not None
        mask = attention_mask.unsqueeze(-1).to(self.out.weight.dtype)
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        return {"logits": self.out(self.frozen(mean).tanh()), "mean": mean}


class Positional(Text):
    def forward(self, ids: Tensor, mask: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Text.forward(self, ids, mask)


class Whole(Text):
    def forward(self, batch: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Text.forward(self, **batch)


def text_loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(output["logits"], target)


def language(data: Any, kind: type[nn.Module] = Text, **more: Any) -> Any:
    torch.manual_seed(0)
    return ud.federate(data, model=kind().double(), loss=text_loss, **more)


class Rows(Dataset[Any]):
    def __init__(self, rows: list[Any]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


INPUTS, TARGETS = pad(texts())
CLIENTS = np.repeat(np.arange(5), SIZES)


def test_frozen_parameters_stay_and_do_not_travel() -> None:
    problem = language((INPUTS, TARGETS), clients=CLIENTS)
    assert problem.flat.names == ["embedding.weight", "out.weight", "out.bias"]
    result = ud.run(ud.FedAvg(), problem, rounds=2, local=ud.Local(steps=2, batch=3, lr=0.5))
    made: Any = result.model()
    before: Any = problem.module(problem.x0)
    assert torch.equal(made.frozen.weight, before.frozen.weight)
    assert not torch.equal(made.out.weight, before.out.weight)
    assert result.history[-1].bytes_up == 5 * problem.x0.nbytes < 5 * 8 * sum(p.numel() for p in made.parameters())


FORMS: dict[str, Any] = {
    "dict of lists of texts": lambda: language(by_client(texts()), collate=pad),
    "list of datasets": lambda: language([Rows(each) for each in by_client(texts()).values()], collate=pad),
    "positions": lambda: language((tuple(INPUTS.values()), TARGETS), Positional, clients=CLIENTS),
    "one argument": lambda: language((INPUTS, TARGETS), Whole, clients=CLIENTS),
    "a batch with its target": lambda: language({**INPUTS, "labels": TARGETS}, clients=CLIENTS),
    "prepared": lambda: language(
        (INPUTS["input_ids"], TARGETS),
        clients=CLIENTS,
        prepare=lambda ids: {"input_ids": ids, "attention_mask": (ids > 0).long()},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_run_whatever_the_form(form: str) -> None:
    expected = models(played(ud.Scaffold(), "sequential", language((INPUTS, TARGETS), clients=CLIENTS)))
    assert np.array_equal(models(played(ud.Scaffold(), "sequential", FORMS[form]())), expected)


def check_trees(engine: str) -> None:
    problem = language((INPUTS, TARGETS), test=(INPUTS, TARGETS), clients=CLIENTS)
    expected = played(ud.Scaffold(), "sequential", problem)
    found = played(ud.Scaffold(), engine, problem)
    assert np.allclose(models(found), models(expected), rtol=1e-9, atol=1e-12)
    assert found[-1].metrics == pytest.approx(expected[-1].metrics, rel=1e-9)


@pytest.mark.parametrize("engine", ["batched", "events"])
def test_trees_in_every_engine(engine: str) -> None:
    check_trees(engine)


@needs_compiler
def test_trees_and_frozen_layers_are_compiled(caplog: pytest.LogCaptureFixture) -> None:
    check_trees("compiled")
    assert not [record.message for record in caplog.records if "compil" in record.message]


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_trees_on_ray(ray_workers: None) -> None:
    problem = language((INPUTS, TARGETS), clients=CLIENTS)
    expected = models(played(ud.FedAvg(), "sequential", problem))
    found = models(played(ud.FedAvg(), "ray", problem, workers=1))
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_many_runs_of_a_tree_at_once_are_those_of_each() -> None:
    problem, local = language((INPUTS, TARGETS), clients=CLIENTS), ud.Local(steps=2, batch=4, lr=0.1)
    trials = [ud.Trial(ud.FedAvg(), problem, local, seed) for seed in (0, 1)]
    together = ud.run_together(trials, rounds=3)
    for seed, result in enumerate(together):
        alone = ud.run(ud.FedAvg(), problem, rounds=3, local=local, seed=seed)
        assert torch.allclose(result.x, alone.x, rtol=1e-9)
    models = problem.x0.repeat(3, 1)
    assert evaluate_each(problem, models) == [problem.evaluate(x) for x in models]


# tables


def frame() -> pd.DataFrame:
    random = np.random.default_rng(1)
    X = random.normal(size=(sum(SIZES), 2))
    numbers = {"age": np.arange(40) % 7, "pressure": X[:, 0], "sugar": X[:, 1]}
    return pd.DataFrame({**numbers, "ill": X[:, 0] > 0, "hospital": np.repeat(NAMES, SIZES)})


def tabular(data: Any, test: Any = None, **more: Any) -> Any:
    torch.manual_seed(0)
    return ud.federate(data, test, model=nn.Linear(3, 2), loss=F.cross_entropy, **more)


def huggingface(rows: dict[str, Any]) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(rows)


def test_a_pandas_frame_with_the_column_of_its_clients() -> None:
    table = frame()
    X = torch.tensor(table[["age", "pressure", "sugar"]].to_numpy(), dtype=torch.float32)
    Y = torch.tensor(table["ill"].to_numpy()).long()
    expected = models(played(ud.FedAvg(), "batched", tabular((X, Y), clients=CLIENTS)))
    problem = tabular(table, table[::2], target="ill", clients="hospital", metrics=("test", "clients"))
    assert problem.client_names == NAMES and len(problem.test[1]) == 20
    assert {f"client: {name} accuracy" for name in NAMES} < set(problem.evaluate(problem.x0))
    frames = {name: part.drop(columns="hospital") for name, part in table.groupby("hospital")}
    for each in (problem, tabular(frames, target="ill"), tabular(list(frames.values()), target="ill")):
        assert np.array_equal(models(played(ud.FedAvg(), "batched", each)), expected)


@pytest.mark.parametrize(
    "change, more, message",
    [
        (lambda t: t, {"clients": "hospital"}, "say which column is the target, target=.*ill"),
        (lambda t: t, {"target": "il", "clients": "hospital"}, "unknown column 'il'; did you mean 'ill'"),
        (lambda t: t, {"target": "ill", "clients": "clinic"}, "unknown column 'clinic'"),
        (lambda t: t, {"target": "ill", "clients": ud.IID(3)}, "column 'hospital' holds .*not numbers: encode it"),
        (lambda t: t.assign(sugar=np.nan), {"target": "ill", "clients": "hospital"}, "train: 40 inputs have NaN"),
        (lambda t: t.assign(hospital=None), {"target": "ill", "clients": "hospital"}, "40 samples name no client"),
        (lambda t: t.drop(columns="hospital"), {"target": "ill"}, "clients: these data name none"),
    ],
)
def test_tables_gone_wrong(change: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        tabular(change(frame()), **more)


def test_a_hugging_face_dataset_of_texts() -> None:
    rows = {"input_ids": [ids for ids, _ in texts()], "label": [y for _, y in texts()]}
    ragged = huggingface({**rows, "who": np.repeat(NAMES, SIZES).tolist()})

    def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        inputs, labels = pad([(row["input_ids"], row["label"]) for row in samples])
        return {**inputs, "labels": labels}

    expected = models(played(ud.FedAvg(), "sequential", language((INPUTS, TARGETS), clients=CLIENTS)))
    padded = huggingface({**{k: v.tolist() for k, v in INPUTS.items()}, "label": rows["label"]})
    several = {name: ragged.filter(lambda row, who=name: row["who"] == who) for name in NAMES}
    for problem in (
        language(ragged, collate=collate, clients="who"),
        language(several, collate=collate),
        language(padded, clients=CLIENTS),
        language(padded.with_format("torch"), clients=CLIENTS),
    ):
        assert np.array_equal(models(played(ud.FedAvg(), "sequential", problem)), expected)
    with pytest.raises(ud.InvalidInput, match="column 'input_ids': its entries differ in length.*collate"):
        language(ragged, inputs=["input_ids"], clients="who")


# what is natural, and what is wrong


def test_natural_clients_are_the_default_where_data_have_them() -> None:
    data = ud.Data(
        "d", (torch.randn(6, 3), torch.arange(6) % 2), None, torch.tensor([0, 1, 1, 2, 2, 2]), None, ("a", "b", "c")
    )
    assert tabular(data).client_names == ("a", "b", "c")
    assert tabular(data, clients=ud.IID(2)).N == 2
    assert tabular(data, clients=ud.Natural(at_least=2)).client_names == ("b", "c")


PAIR = torch.zeros(4, 3), torch.arange(4) % 2


def wrong() -> Iterator[tuple[Any, dict[str, Any], str]]:
    yield PAIR, {}, "clients: these data name none: give a partition"
    yield PAIR, {"clients": "hospital"}, "clients='hospital' names a column of a table, and train is a tuple"
    yield {"a": PAIR, "b": 3}, {}, "client 'b' has a int: give it a pair"
    yield {"a": PAIR, "b": (torch.zeros(4, 2), PAIR[1])}, {}, "the clients' samples do not fit together"
    yield {"a": PAIR, "b": ({"x": PAIR[0]}, PAIR[1])}, {}, "not made of the same parts"
    yield [PAIR, (PAIR[0], PAIR[1][:2])], {}, "train, client '1': 4 inputs and 2 targets"
    yield {"a": Rows([(torch.zeros(3), 0)]), "b": Rows([])}, {}, "client 'b' has no samples: leave it out"
    yield Rows([(torch.zeros(3), 0), (torch.zeros(2), 1)]), {"clients": [0, 1]}, "cannot be stacked, give collate="
    yield (
        Rows([(torch.zeros(3), 0)] * 2),
        {"clients": [0, 1], "collate": lambda rows: 1 / 0},
        "collate failed: division",
    )
    yield Rows([torch.zeros(3)] * 2), {"clients": [0, 1]}, "train: a sample is"
    yield "mnist", {"clients": ud.IID(2)}, r"train must be \(inputs, targets\).*got str"


@pytest.mark.parametrize("data, more, message", list(wrong()))
def test_data_gone_wrong(data: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidInput, match=message):
        tabular(data, **more)


def test_keywords_that_the_model_does_not_take() -> None:
    with pytest.raises(ud.InvalidInput, match="the model takes .*attention_mask.*the inputs are input_ids, mask: "):
        language(({"input_ids": INPUTS["input_ids"], "mask": INPUTS["attention_mask"]}, TARGETS), clients=CLIENTS)


def test_tensor_datasets_by_client() -> None:
    parts = [TensorDataset(PAIR[0] + i, PAIR[1]) for i in range(3)]
    problem = tabular(parts)
    assert problem.client_names == ("0", "1", "2") and torch.equal(problem.X[8:], PAIR[0] + 2)


def linear_on(train: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    return ud.federate(train, model=model, loss=F.mse_loss, clients=ud.IID(4))


NUMBERS = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("names", [range(3), ["a", "b", "c"]], ids=str)
def test_a_frame_and_a_column_are_a_pair(names: Any) -> None:
    frame = pd.DataFrame(NUMBERS.numpy(), columns=list(names))
    expected = models(played(ud.FedAvg(), "batched", linear_on((NUMBERS, NUMBERS[:, 0]))))
    for target in (frame[names[0]], frame[names[0]].to_numpy()):
        assert (models(played(ud.FedAvg(), "batched", linear_on((frame, target)))) == expected).all()


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_inputs_that_were_trained_elsewhere_are_data(engine: str) -> None:
    learnt = NUMBERS.clone().requires_grad_()
    expected = models(played(ud.FedAvg(), engine, linear_on((NUMBERS, NUMBERS[:, 0]))))
    given = [(learnt, learnt[:, 0]), TensorDataset(learnt, learnt[:, 0]), ud.Data("x", (learnt, learnt[:, 0]), None)]
    for train in given:
        assert (models(played(ud.FedAvg(), engine, linear_on(train))) == expected).all()
    assert learnt.grad is None


def test_a_loader_is_asked_for_its_dataset() -> None:
    loader = DataLoader(TensorDataset(NUMBERS, NUMBERS[:, 0]))
    for train in (loader, [loader, loader], {"ann": loader}):
        with pytest.raises(ud.InvalidInput, match=r"give its dataset, loader\.dataset"):
            linear_on(train)
