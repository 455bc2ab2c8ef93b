"""fluke, the whole experiment: its FedAVG, evaluated by its server every round."""
# pyright: reportMissingImports=false
# ruff: noqa: E402

from typing import Any

import torch

from benchmarks.peers import shared
from benchmarks.peers.whole import BATCH, COHORT, LR, federations, rounds

shared.torchvision_without_operators()

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver


class Last(FederationObserver):
    found: Any = None

    def server_evaluation(self, round: int, eval_type: Any, evals: Any, **kwargs: Any) -> None:
        self.found = evals


def main() -> None:
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_evaluator(ClassificationEval(1, 10))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    for f in federations():
        environment.set_seed(f.seed)
        load = lambda X, Y, batch, shuffle: FastDataLoader(
            torch.from_numpy(X), torch.from_numpy(Y), num_labels=10, batch_size=batch, shuffle=shuffle
        )
        loaders = [load(X, Y, BATCH, True) for X, Y in zip(f.X, f.Y, strict=True)]
        test = load(f.test_X, f.test_Y, 2048, False)
        container = DummyDataContainer(loaders, [None] * len(loaders), test, num_classes=10)
        client = DDict(
            batch_size=BATCH, local_epochs=1, loss=torch.nn.CrossEntropyLoss, optimizer=DDict(name="SGD", lr=LR),
            scheduler=DDict(name="StepLR", gamma=1.0, step_size=1), persistency=False,
        )  # fmt: skip
        settings = DDict(client=client, server=DDict(weighted=False), model=shared.model("W2"))
        federation, last = FedAVG(len(loaders), DataSplitter(container), settings), Last()
        federation.set_callbacks([last])
        federation.run(rounds(), COHORT / len(loaders))
        print("seed", f.seed, last.found)


if __name__ == "__main__":
    main()
