"""BlazeFL: the FedAvg that it ships, clients on a pool of threads, as many as the row has, each with a core.

A client's data comes from a torch DataLoader, as in BlazeFL's own examples.  An epoch in random order is w.steps batches;
the last one of W4 has 52 samples in place of 64.
"""
# pyright: reportMissingImports=false

from copy import deepcopy
from dataclasses import replace
from enum import StrEnum
from typing import Any

import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import shared
from benchmarks.peers.turns import Gate, Work, work


class Name(StrEnum):
    """BlazeFL names models."""

    NET = "net"


class Clients:
    """What BlazeFL's trainers ask for data."""

    def __init__(self, w: Work):
        X, Y = shared.data(w)
        self.sets = [TensorDataset(X[i], Y[i]) for i in range(w.clients)]

    def get_dataloader(self, type_: Any, cid: int, batch_size: int, generator: torch.Generator) -> DataLoader:
        return DataLoader(self.sets[cid], batch_size, shuffle=True, generator=generator)


class Models:
    """What BlazeFL asks for a model in every visit: a copy, which costs less than to draw weights that are overwritten."""

    def __init__(self, w: Work):
        self.net = shared.model(w.name)

    def select_model(self, model_name: Name) -> torch.nn.Module:
        return deepcopy(self.net)


def main() -> None:
    w = work()
    torch.set_num_threads(1)  # each of the pool's threads has a core
    common: dict[str, Any] = {
        "model_selector": Models(w), "model_name": Name.NET, "dataset": Clients(w), "num_clients": w.clients,
        "device": "cpu", "batch_size": w.batch, "seed": 0,
    }  # fmt: skip
    server = FedAvgBaseServerHandler(**common, global_round=10**6, sample_ratio=w.cohort / w.clients)
    trainer = FedAvgThreadPoolClientTrainer(**common, epochs=1, lr=w.lr, num_parallels=w.threads)
    trainer.progress_fn = iter
    test = None
    if w.evaluated:
        test = [t[0] for t in shared.data(replace(w, clients=1, samples=w.evaluated))]
    gate = Gate("blazefl", shared.counted())
    while not server.if_stop():
        sampled = server.sample_clients()
        trainer.local_process(server.downlink_package(), sampled)
        for package in trainer.uplink_package():
            server.load(package)
        if test is not None:
            shared.evaluate(server.model, *test)
        if not gate():
            break


if __name__ == "__main__":
    main()
