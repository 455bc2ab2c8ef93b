"""fluke: its FedAVG and SCAFFOLD, with its FastDataLoader.

An epoch in random order is w.steps batches; the last one of W4 has 52 samples in place of 64.  FedAVG's clients forget
their models after a round, as clients without state may; fluke's default keeps a model and an optimiser for every client
that was ever seen.  Every step reads the loss (`loss.item()`), which on a CPU costs next to nothing.
"""
# pyright: reportMissingImports=false
# ruff: noqa: E402

import torch

from benchmarks.peers import shared
from benchmarks.peers.turns import Gate, work

shared.torchvision_without_operators()

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.server import EarlyStopping
from fluke.utils import FederationObserver


class Turns(FederationObserver):
    def __init__(self, gate: Gate):
        self.gate = gate

    def end_round(self, round: int) -> None:
        if not self.gate():
            raise EarlyStopping(round)


def main() -> None:
    w = work()
    torch.set_num_threads(w.threads)
    environment = FlukeENV()
    environment.set_seed(2)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    n = shared.classes(w)
    X, Y = shared.data(w)
    loaders = [FastDataLoader(X[i], Y[i], num_labels=n, batch_size=w.batch, shuffle=True) for i in range(w.clients)]
    container = DummyDataContainer(loaders, [None] * w.clients, None, num_classes=n)
    client = DDict(
        batch_size=w.batch,
        local_epochs=1,
        loss=torch.nn.CrossEntropyLoss,
        optimizer=DDict(name="SGD", lr=w.lr),
        scheduler=DDict(name="StepLR", gamma=1.0, step_size=1),
    )
    method = SCAFFOLD if w.method == "scaffold" else FedAVG
    if w.method == "fedavg":
        client.update(persistency=False)
    settings = DDict(client=client, server=DDict(weighted=False), model=shared.model(w.name))
    federation = method(w.clients, DataSplitter(container), settings)
    federation.set_callbacks([Turns(Gate("fluke-fl", shared.counted()))])
    federation.run(10**6, w.cohort / w.clients)


if __name__ == "__main__":
    main()
