"""A workload as FLGo asks for it: data, model and loss.  FLGo copies this file into a benchmark that it makes."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import data

from benchmarks.peers import shared
from benchmarks.peers.turns import work

X, Y = shared.data(work())
train_data = data.TensorDataset(X.flatten(0, 1), Y.flatten())
test_data = data.TensorDataset(X[0, :10], Y[0, :10])  # never evaluated
DataLoader = partial(data.DataLoader, shuffle=True)


def get_model() -> shared.Net:
    return shared.model(work().name)


def data_to_device(batch: Any, device: Any) -> Any:
    return batch


def compute_loss(model: nn.Module, batch: Any, device: Any) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"loss": F.cross_entropy(model(inputs), targets)}


def eval(model: nn.Module, loader: Any, device: Any) -> dict[str, float]:
    raise NotImplementedError("nothing is evaluated")
