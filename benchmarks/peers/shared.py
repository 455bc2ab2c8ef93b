"""The workloads in plain PyTorch, for peers that know nothing of Undrift: the same models, data and local training.

`tests/benchmarks/test_peers.py` checks the models against `benchmarks.workloads`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.peers.turns import Work


class Net(nn.Sequential):
    """A whole model; its name tells it from its layers."""


class LastStep(nn.Module):
    """The hidden state after the last token, of an LSTM's output."""

    def forward(self, found: tuple[Tensor, Any]) -> Tensor:
        return found[0][:, -1]


def model(name: str) -> Net:
    torch.manual_seed(0)
    layers: dict[str, Callable[[], list[nn.Module]]] = {
        "W1": lambda: [nn.Flatten(), nn.Linear(784, 10)],
        "W2": lambda: [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)],
        "W3": lambda: [
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
            *(nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
        ],
        "W4": lambda: [
            *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()),
            nn.Linear(192, 10),
        ],
        "LSTM": lambda: [
            nn.Embedding(80, 8),
            nn.LSTM(8, 100, num_layers=2, batch_first=True),
            LastStep(),
            nn.Linear(100, 80),
        ],
    }
    layers |= {"V1": layers["W1"], "W5": layers["W2"]}
    return Net(*layers[name]())


def data(w: Work) -> tuple[Tensor, Tensor]:
    """Inputs [clients, samples, ...] and labels [clients, samples]."""
    n, random = (w.clients, w.samples), torch.Generator().manual_seed(1)
    if w.name == "LSTM":
        return (
            torch.randint(80, (*n, 80), generator=random),
            torch.randint(80, n, generator=random),
        )
    shape = (3, 32, 32) if w.name in ("W3", "W4") else (784,)
    return torch.rand(*n, *shape, generator=random), torch.randint(10, n, generator=random)


def classes(w: Work) -> int:
    return 80 if w.name == "LSTM" else 10


def train(net: nn.Module, X: Tensor, Y: Tensor, w: Work) -> int:
    """Local training of one client, where a peer leaves it to its user: an epoch in random order, which is w.steps.

    Returns the number of samples trained on.
    """
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=w.lr)
    for batch in torch.randperm(len(X)).split(w.batch):
        optimiser.zero_grad()
        F.cross_entropy(net(X[batch]), Y[batch]).backward()
        optimiser.step()
    return len(X)


@torch.no_grad()
def evaluate(net: nn.Module, X: Tensor, Y: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    scores = net.eval()(X)
    net.train()
    return float(F.cross_entropy(scores, Y)), float((scores.argmax(1) == Y).float().mean())


def counted() -> Callable[[], int]:
    """Counts from now on the samples that pass through a `Net` in training; calling the result ends it and tells how many."""
    seen = [0]

    def count(module: nn.Module, inputs: Any) -> None:
        if isinstance(module, Net) and module.training:
            seen[0] += len(inputs[0])

    hook = register_module_forward_pre_hook(count)

    def done() -> int:
        hook.remove()
        return seen[0]

    return done


def torchvision_without_operators() -> None:
    """Lets torchvision be imported where it was built for another torch than the one installed.

    The one on PyPI is built for CUDA's, and beside the CPU's it lacks its operators and does not import.  Peers import
    it for datasets that are not used here, so the two operators that it insists on are declared and never called.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
