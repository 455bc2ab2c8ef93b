"""The workloads of `make bench`, on synthetic tensors of the right shape: no data files are needed."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from undrift import models


@dataclass(frozen=True)
class Workload:
    name: str
    clients: int
    samples: int  # a client
    cohort: int
    steps: int
    batch: int
    method: str = "fedavg"
    lr: float = 0.05
    evaluated: int = 0  # test samples, after every round

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return {
            "W1": lambda: models.logistic(784, 10),
            "V1": lambda: models.logistic(784, 10),
            "W2": lambda: models.mlp(784, 200, 10),
            "W5": lambda: models.mlp(784, 200, 10),
            "W3": lambda: models.cnn_pfl(10),
            "W4": lambda: models.lenet(10),
            "LSTM": lambda: models.char_lstm(),
        }[self.name]()

    def data(self) -> tuple[Tensor, Tensor]:
        return self._draw(self.clients * self.samples, 1)

    def test(self) -> tuple[Tensor, Tensor]:
        """What a round is evaluated on; without evaluation, a few samples that nobody looks at."""
        return self._draw(self.evaluated or 10, 3)

    def _draw(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(seed)
        if self.name == "LSTM":
            return torch.randint(80, (n, 80), generator=random), torch.randint(80, (n,), generator=random)
        shape = (3, 32, 32) if self.name in ("W3", "W4") else (784,)
        return torch.rand(n, *shape, generator=random), torch.randint(10, (n,), generator=random)

    def problem(self) -> Any:
        X, Y = self.data()
        net = self.model()
        return ud.federate((X, Y), self.test(), model=net, loss=F.cross_entropy, clients=ud.IID(self.clients))

    def settings(self) -> dict[str, Any]:
        virtual: dict[str, Any] = {}
        if self.name == "V1":
            pace = ud.LogNormal(0.1, sigma=0.5)
            virtual = {
                "population": ud.Population(pace=pace),
                "server": ud.Buffer(self.cohort, concurrency=2 * self.cohort),
            }
        return virtual | {
            "participation": ud.Uniform(self.cohort),
            "local": ud.Local(steps=self.steps, batch=self.batch, lr=self.lr),
            "evaluate_every": 1 if self.evaluated else 10**9,
        }


WORKLOADS = (
    Workload("W1", 1000, 60, 10, 6, 10),
    Workload("W2", 100, 512, 10, 16, 32),
    Workload("W5", 100, 512, 10, 16, 32, method="scaffold"),
    Workload("W3", 1000, 50, 50, 5, 10),
    Workload("W4", 100, 500, 10, 8, 64),
    Workload("LSTM", 100, 2000, 10, 20, 100),
)

# In virtual time: a round is a server step, one for every `cohort` answers.
VIRTUAL = Workload("V1", 1000, 60, 10, 6, 10, method="fedbuff")

DENSE = ("W1", "W2", "W5")  # whose steps are a few matrix products
