"""What `Data.prepare` is made of: from stored samples to model inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalise:
    """Stored numbers [..., C, H, W] to float32: over `scale`, minus mean, over std, channel by channel.

    >>> Normalise((0.5,), (0.5,))(torch.tensor([[[0, 255]]], dtype=torch.uint8))
    tensor([[[-1.,  1.]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0

    def __call__(self, batch: Tensor) -> Tensor:
        mean, std = (
            torch.tensor(v, dtype=torch.float32, device=batch.device)[:, None, None] for v in (self.mean, self.std)
        )
        return (batch.float() / self.scale - mean) / std


@dataclass(frozen=True)
class ToInt64:
    """Codes stored in few bytes to int64, which an embedding takes."""

    def __call__(self, batch: Tensor) -> Tensor:
        return batch.long()
