"""FLamby's Fed-Heart-Disease: four hospitals, logistic regression, its eight strategies; accuracies by test set and seed.

The setting is that of owkin/FLamby: config_heart_disease.json, benchmarks/fed_benchmark.py, datasets/fed_heart_disease.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader

import undrift as ud
from undrift.core.rng import Key
from undrift.data import store
from undrift.data.datasets.uci import HOSPITALS, read_hospital
from undrift.problems.minibatches import Minibatches

SEEDS = range(42, 47)
ROUNDS, STEPS, BATCH = 15, 100, 4
METHODS: dict[str, tuple[Any, float]] = {
    "FedAvg": (ud.FedAvg(), 0.001),
    "FedProx": (ud.FedProx(mu=0.01), 0.001),
    "SCAFFOLD": (ud.Scaffold(), 0.001),
    "FedAdam": (ud.FedAdam(eta=0.01, beta2=0.999, tau=1e-8, v0=0.0), 0.01),
    "FedYogi": (ud.FedYogi(eta=0.01, beta2=0.999, tau=1e-8, v0=0.0), 0.003162),
    "FedAdagrad": (ud.FedAdagrad(eta=0.316228, beta1=0.9, tau=1e-8, v0=0.0), 0.003162),
}


COLUMNS = [0, 1, 5, 6, 7, 10, 11, 12, 2, 3, 4, 8, 9]  # FLamby has the one-hot columns last: initial weights meet others
PUBLISHED = {  # rows classified right, by seed: all hospitals' 254, then 104, 89, 16, 45
    "FedAvg": [
        (191, 79, 62, 11, 28),
        (194, 75, 66, 12, 30),
        (194, 77, 67, 8, 26),
        (178, 76, 60, 12, 28),
        (193, 73, 65, 9, 32),
    ],
    "FedProx": [
        (191, 79, 62, 11, 28),
        (194, 75, 66, 12, 30),
        (194, 77, 67, 8, 26),
        (178, 76, 60, 12, 28),
        (193, 73, 65, 9, 32),
    ],
    "SCAFFOLD": [
        (191, 78, 62, 11, 28),
        (194, 75, 66, 12, 30),
        (194, 77, 67, 8, 26),
        (178, 75, 60, 12, 28),
        (193, 73, 65, 9, 32),
    ],
    "FedAdam": [
        (197, 79, 67, 12, 28),
        (195, 75, 65, 12, 29),
        (198, 79, 66, 12, 33),
        (204, 79, 65, 12, 31),
        (195, 79, 69, 11, 29),
    ],
    "FedYogi": [
        (199, 79, 68, 12, 28),
        (195, 76, 65, 12, 30),
        (199, 80, 67, 12, 33),
        (203, 79, 66, 12, 31),
        (193, 81, 69, 11, 30),
    ],
    "FedAdagrad": [
        (199, 79, 68, 12, 28),
        (195, 76, 65, 12, 30),
        (199, 80, 67, 12, 33),
        (203, 79, 66, 12, 31),
        (193, 81, 69, 11, 30),
    ],
    "Cyclic": [
        (197, 79, 68, 12, 28),
        (204, 79, 66, 12, 30),
        (200, 77, 69, 9, 28),
        (200, 81, 69, 13, 29),
        (196, 78, 67, 11, 29),
    ],
    "Pooled": [
        (201, 83, 68, 12, 29),
        (202, 81, 68, 12, 29),
        (202, 82, 68, 12, 29),
        (203, 81, 68, 12, 29),
        (202, 80, 68, 12, 29),
    ],
}


@dataclass(frozen=True)
class Split:
    """One hospital, or all of them: standardised by the statistics of its own training rows."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def standardised(X: np.ndarray, y: np.ndarray, test: np.ndarray) -> Split:
    features, labels = (
        torch.tensor(X[:, COLUMNS], dtype=torch.float32),
        torch.tensor(y, dtype=torch.float32).unsqueeze(1),
    )
    known = features[~test]
    features = (features - known.mean(0)) / (known.std(0) + 1e-9)
    return Split((features[~test], labels[~test]), (features[test], labels[test]))


def load() -> tuple[list[Split], Split]:
    """Every hospital, and all of them pooled."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for hospital in HOSPITALS:
        name = f"processed.{hospital}.data"
        X, y = read_hospital(store.find("heart", name, url="", aliases=("heart_{}", "tabular/heart_{}")))
        enough = min(np.bincount(y, minlength=2)) > 2
        _, held = train_test_split(
            np.arange(len(y)), test_size=0.34, train_size=0.66, random_state=43, stratify=y if enough else None
        )
        parts.append((X, y, np.isin(np.arange(len(y)), held)))
    whole = [np.concatenate(each) for each in zip(*parts, strict=True)]
    return [standardised(*part) for part in parts], standardised(*whole)


def initial(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(13, 1)


def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(((model(test[0]) > 0) == (test[1] > 0)).double().mean())


class Loader:
    """FLamby's endless loader: torch's DataLoader, begun anew whenever it is exhausted."""

    def __init__(self, count: int):
        self.loader = DataLoader(range(count), batch_size=BATCH, shuffle=True)  # pyright: ignore[reportArgumentType]
        self.batches = iter(self.loader)

    def take(self, count: int) -> list[Tensor]:
        found: list[Tensor] = []
        while len(found) < count:
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.loader)
            else:
                found.append(batch)
        return found


def visits(hospitals: list[Split], order: list[int], seed: int) -> list[list[Tensor]]:
    """The minibatches of one visit after another, drawn as FLamby draws them: all loaders share torch's generator."""
    loaders = [Loader(len(hospital.train[0])) for hospital in hospitals]
    torch.manual_seed(seed)
    return [loaders[i].take(STEPS) for i in order]


def as_minibatches(visits: Sequence[list[Tensor]], begins: Sequence[int]) -> Minibatches:
    """The minibatches of several hospitals, whose first rows have the numbers `begins`."""
    rows = [[F.pad(begin + k, (0, BATCH - len(k))) for k in visit] for begin, visit in zip(begins, visits, strict=True)]
    counts = torch.tensor([[len(k) for k in visit] for visit in visits])
    return Minibatches(torch.stack([torch.stack(row) for row in rows]), counts, None, None, whole=False)


def federated(hospitals: list[Split], name: str, seed: int, rounds: int) -> nn.Module:
    """One of FLamby's strategies: all hospitals in every round, weighted by their training rows."""
    X, y = (torch.cat([hospital.train[k] for hospital in hospitals]) for k in (0, 1))
    begins = np.cumsum([0, *(len(hospital.train[0]) for hospital in hospitals)]).tolist()
    clients = [list(range(a, b)) for a, b in zip(begins, begins[1:], strict=False)]
    problem = ud.federate(
        (X, y), model=initial(seed), loss=F.binary_cross_entropy_with_logits, clients=clients, weights="samples"
    )
    N = len(hospitals)
    drawn = visits(hospitals, [*range(N)] * rounds, seed)

    def draw(key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None) -> Minibatches:
        return as_minibatches([drawn[(key.round - 1) * N + i] for i in clients], [begins[i] for i in clients])

    problem.draw = draw
    method, lr = METHODS[name]
    local = ud.Local(steps=STEPS, batch=BATCH, lr=lr)
    result = ud.run(method, problem, rounds=rounds, local=local, seed=seed, evaluate_every=rounds, engine="batched")
    return result.model()


def trained(model: nn.Module, train: tuple[Tensor, Tensor], batches: Iterable[Tensor], optimiser: Any) -> nn.Module:
    X, y = train
    for k in batches:
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(model(X[k]), y[k]).backward()
        optimiser.step()
    return model


def in_turn(hospitals: list[Split], seed: int, rounds: int, passed_on: bool) -> nn.Module:
    """Cyclic: a hospital per round trains 100 steps, in a new order every cycle.

    FLamby's code gives every hospital a copy of the model and does not pass it on, so the model that it evaluates has been
    trained by the first hospital alone; `passed_on` is the method as it is meant, in which it travels.
    """
    models, random = [initial(seed) for _ in hospitals], np.random.default_rng(seed)
    cycles = -(-rounds // len(hospitals))
    order = [int(i) for _ in range(cycles) for i in random.permutation(len(hospitals))][:rounds]
    for i, visit in zip(order, visits(hospitals, order, seed), strict=True):
        model = models[0 if passed_on else i]
        trained(model, hospitals[i].train, visit, torch.optim.SGD(model.parameters(), lr=0.01))
    return models[0]


def pooled(whole: Split, seed: int, epochs: int) -> nn.Module:
    """All data in one place: Adam, 50 epochs."""
    model = initial(seed)
    torch.manual_seed(seed)
    loader = DataLoader(range(len(whole.train[0])), batch_size=BATCH, shuffle=True)  # pyright: ignore[reportArgumentType]
    return trained(
        model, whole.train, (k for _ in range(epochs) for k in loader), torch.optim.Adam(model.parameters(), lr=0.001)
    )


def heart(quick: bool) -> dict[str, list[float]]:
    """Accuracies of every strategy on the pooled test set and on each hospital's, and how many are FLamby's own."""
    hospitals, whole = load()
    rounds = 1 if quick else ROUNDS
    tests = {"pooled": whole.test} | {h: s.test for h, s in zip(HOSPITALS, hospitals, strict=True)}
    numbers: dict[str, list[float]] = {}
    for at, seed in enumerate(list(SEEDS)[: 1 if quick else None]):
        models = {name: federated(hospitals, name, seed, rounds) for name in METHODS}
        models["Cyclic"] = in_turn(hospitals, seed, rounds, passed_on=False)
        models["Cyclic, passed on"] = in_turn(hospitals, seed, rounds, passed_on=True)
        models["Pooled"] = pooled(whole, seed, 1 if quick else 50)
        for name, model in models.items():
            found = {place: accuracy(model, test) for place, test in tests.items()}
            for place, value in found.items():
                numbers.setdefault(f"{name}, {place}", []).append(value)
            if name in PUBLISHED:
                rows = [round(value * len(tests[place][0])) for place, value in found.items()]
                same = sum(a == b for a, b in zip(rows, PUBLISHED[name][at], strict=True))
                numbers.setdefault(f"{name}, as published", []).append(same)
    return numbers
