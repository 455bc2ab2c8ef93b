"""A small convolutional network on images."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud


def images(*layers: nn.Module, dtype: torch.dtype = torch.float64, side: int = 8) -> Any:
    """A small convolutional network on clients of unequal size; pixels have few values, so maxima are often ties."""
    torch.manual_seed(5)
    X = torch.randint(0, 2, (40, 2, side, side)).to(dtype)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), *layers, nn.Flatten(), nn.LazyLinear(3)).to(dtype)
    net(X)
    sizes = np.cumsum([0, 5, 12, 8, 15])
    clients = [list(range(a, b)) for a, b in zip(sizes, sizes[1:], strict=False)]
    return ud.federate((X, torch.arange(40) % 3), model=net, loss=F.cross_entropy, clients=clients)


NETS = {
    "relu, pool": (nn.ReLU(), nn.MaxPool2d(2)),
    "pool": (nn.MaxPool2d(2),),
    "pool, relu": (nn.MaxPool2d(2), nn.ReLU()),
    "rows that no window has": (nn.ReLU(), nn.MaxPool2d((4, 3))),
    "a window of one row": (nn.ReLU(), nn.MaxPool2d((1, 2))),
    "two": (nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.MaxPool2d(2)),
    "overlapping windows": (nn.ReLU(), nn.MaxPool2d(3, stride=2)),
    "padding": (nn.ReLU(), nn.MaxPool2d(2, padding=1)),
    "up to the edge": (nn.ReLU(), nn.MaxPool2d(4, ceil_mode=True)),
    "dropout": (nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)),
    "no pool": (nn.Sigmoid(),),
}
