"""What FLGo asks of a task that is the same in all of ours."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def data_to_device(batch: Any, device: Any) -> Any:
    return batch


def compute_loss(model: nn.Module, batch: Any, device: Any) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"loss": F.cross_entropy(model(inputs), targets)}
