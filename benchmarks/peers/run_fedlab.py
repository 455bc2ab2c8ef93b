"""FedLab: its standalone pipeline with the serial trainers of FedAvg and SCAFFOLD.

A client's data comes from a torch DataLoader, as in FedLab's own datasets.  An epoch in random order is w.steps batches;
the last one of W4 has 52 samples in place of 64.
"""
# pyright: reportMissingImports=false
# ruff: noqa: E402

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import shared
from benchmarks.peers.turns import Gate, Work, work

shared.torchvision_without_operators()

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.core.standalone import StandalonePipeline


class Clients:
    """What FedLab's trainers ask for data."""

    def __init__(self, w: Work):
        X, Y = shared.data(w)
        self.sets = [TensorDataset(X[i], Y[i]) for i in range(w.clients)]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        return DataLoader(self.sets[id], batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    def __init__(self, handler, trainer, gate: Gate):
        super().__init__(handler, trainer)
        self.gate = gate

    def evaluate(self) -> None:
        """FedLab calls this after every round."""
        if not self.gate():
            self.handler.global_round = self.handler.round


def main() -> None:
    w = work()
    torch.set_num_threads(w.threads)
    scaffold = w.method == "scaffold"
    net = shared.model(w.name)
    handler = (ScaffoldServerHandler if scaffold else FedAvgServerHandler)(net, 10**6, w.cohort / w.clients)
    trainer = (ScaffoldSerialClientTrainer if scaffold else FedAvgSerialClientTrainer)(net, w.clients)
    trainer.setup_dataset(Clients(w))
    trainer.setup_optim(epochs=1, batch_size=w.batch, lr=w.lr)
    if scaffold:
        handler.setup_optim(lr=1.0)
    Pipeline(handler, trainer, Gate("fedlab", shared.counted())).main()


if __name__ == "__main__":
    main()
