"""The whole experiment as FLGo asks for it.  FLGo copies this file into a benchmark that it makes."""

import os
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import data

from benchmarks.peers import shared
from benchmarks.peers.flgo_parts import compute_loss as compute_loss
from benchmarks.peers.flgo_parts import data_to_device as data_to_device
from benchmarks.peers.whole import federation

SEED = "UNDRIFT_WHOLE_SEED"
if SEED in os.environ:
    f = federation(int(os.environ[SEED]))
    train_data = data.TensorDataset(*(torch.from_numpy(np.concatenate(each)) for each in (f.X, f.Y)))
    test_data = data.TensorDataset(torch.from_numpy(f.test_X), torch.from_numpy(f.test_Y))
DataLoader = partial(data.DataLoader, shuffle=True)


def get_model() -> shared.Net:
    return shared.model("W2")


def eval(model: nn.Module, loader: Any, device: Any) -> dict[str, float]:
    total, right, count = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            out = model(inputs)
            total += float(F.cross_entropy(out, targets, reduction="sum"))
            right, count = right + int((out.argmax(1) == targets).sum()), count + len(targets)
    model.train()
    return {"loss": total / count, "accuracy": right / count}
