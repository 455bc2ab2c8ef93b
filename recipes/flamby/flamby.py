"""FLamby's Fed-Heart-Disease: four hospitals, logistic regression, its eight strategies; accuracies by test set and seed.

The setting is that of owkin/FLamby: config_heart_disease.json, benchmarks/fed_benchmark.py, datasets/fed_heart_disease.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import undrift as ud
from undrift.data import store
from undrift.data.datasets.uci import HOSPITALS, read_hospital

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


@dataclass(frozen=True)
class Split:
    """One hospital, or all of them: standardised by the statistics of its own training rows."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def standardised(X: np.ndarray, y: np.ndarray, test: np.ndarray) -> Split:
    features, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(1)
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
        return float(((model(test[0]) > 0) == (test[1] > 0)).float().mean())


def federated(hospitals: list[Split], name: str, seed: int, rounds: int) -> nn.Module:
    """One of FLamby's strategies: all hospitals in every round, weighted by their training rows."""
    X, y = (torch.cat([hospital.train[k] for hospital in hospitals]) for k in (0, 1))
    ends = np.cumsum([0, *(len(hospital.train[0]) for hospital in hospitals)])
    clients = [list(range(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
    problem = ud.federate(
        (X, y), model=initial(seed), loss=F.binary_cross_entropy_with_logits, clients=clients, weights="samples"
    )
    method, lr = METHODS[name]
    local = ud.Local(steps=STEPS, batch=BATCH, lr=lr)
    return ud.run(
        method, problem, rounds=rounds, local=local, seed=seed, evaluate_every=rounds, engine="batched"
    ).model()


def in_turn(hospitals: list[Split], seed: int, rounds: int, passed_on: bool) -> nn.Module:
    """Cyclic: a hospital per round trains 100 steps, in a new order every cycle.

    FLamby's code gives every hospital a copy of the model and does not pass it on, so the model that it evaluates has been
    trained by the first hospital alone; `passed_on` is the method as it is meant, in which it travels.
    """
    models, random = [initial(seed) for _ in hospitals], np.random.default_rng(seed)
    cycles = -(-rounds // len(hospitals))
    order = [i for _ in range(cycles) for i in random.permutation(len(hospitals))][:rounds]
    for i in order:
        model, (X, y) = models[0 if passed_on else i], hospitals[i].train
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for k in _batches(len(X), random):
            optimiser.zero_grad()
            F.binary_cross_entropy_with_logits(model(X[k]), y[k]).backward()
            optimiser.step()
    return models[0]


def _batches(count: int, random: np.random.Generator) -> list[Tensor]:
    """STEPS minibatches, pass after pass, each in a new order."""
    found: list[Tensor] = []
    while len(found) < STEPS:
        found += torch.tensor(random.permutation(count)).split(BATCH)
    return found[:STEPS]


def pooled(whole: Split, seed: int, epochs: int) -> nn.Module:
    """All data in one place: Adam, 50 epochs."""
    model, random = initial(seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.001)
    X, y = whole.train
    for _ in range(epochs):
        for k in torch.randperm(len(X), generator=random).split(BATCH):
            optimiser.zero_grad()
            F.binary_cross_entropy_with_logits(model(X[k]), y[k]).backward()
            optimiser.step()
    return model


def heart(quick: bool) -> dict[str, list[float]]:
    """Accuracies of every strategy on the pooled test set and on each hospital's."""
    hospitals, whole = load()
    rounds = 1 if quick else ROUNDS
    numbers: dict[str, list[float]] = {}
    for seed in list(SEEDS)[: 1 if quick else None]:
        models = {name: federated(hospitals, name, seed, rounds) for name in METHODS}
        models["Cyclic"] = in_turn(hospitals, seed, rounds, passed_on=False)
        models["Cyclic, passed on"] = in_turn(hospitals, seed, rounds, passed_on=True)
        models["Pooled"] = pooled(whole, seed, 1 if quick else 50)
        for name, model in models.items():
            tests = {"pooled": whole.test} | {h: s.test for h, s in zip(HOSPITALS, hospitals, strict=True)}
            for place, test in tests.items():
                numbers.setdefault(f"{name}, {place}", []).append(accuracy(model, test))
    return numbers
