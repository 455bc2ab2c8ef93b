"""A workload as FLGo asks for it: data, model and loss.  FLGo copies this file into a benchmark that it makes."""

from functools import partial
from typing import Any

from torch import nn
from torch.utils import data

from benchmarks.peers import shared
from benchmarks.peers.flgo_parts import compute_loss as compute_loss
from benchmarks.peers.flgo_parts import data_to_device as data_to_device
from benchmarks.peers.turns import work

X, Y = shared.data(work())
train_data = data.TensorDataset(X.flatten(0, 1), Y.flatten())
test_data = data.TensorDataset(X[0, :10], Y[0, :10])  # never evaluated
DataLoader = partial(data.DataLoader, shuffle=True)


def get_model() -> shared.Net:
    return shared.model(work().name)


def eval(model: nn.Module, loader: Any, device: Any) -> dict[str, float]:
    raise NotImplementedError("nothing is evaluated")
