"""From stored samples to model inputs: what `Data.prepare` is made of, and augmentation, which is keyed as all that is random."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.core.hyper import check_fields, hyper


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
class CropFlip:
    """A random crop after padding with zeros, and a mirror image half of the time (images `[..., channels, H, W]`).

    >>> CropFlip(pad=4)
    CropFlip(pad=4, flip=True)
    """

    pad: int = hyper(default=4, within="[0, inf)")
    flip: bool = True

    __post_init__ = check_fields

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Where each image is cut and whether it is mirrored, `[*shape, 3]`."""
        drawn = random.integers(0, 2 * self.pad + 1, size=(*shape, 3))
        drawn[..., 2] = random.integers(0, 2, size=shape) if self.flip else 0
        return drawn

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The images, each cut and mirrored as drawn: `[..., C, H, W]` and `[..., 3]`."""
        *lead, C, H, W = images.shape
        flat = F.pad(images.reshape(-1, C, H, W), [self.pad] * 4)
        top, left, mirror = (c.unsqueeze(1) for c in drawn.reshape(-1, 3).to(images.device).T)
        device = images.device
        rows = top + torch.arange(H, device=device)
        across = torch.arange(W, device=device).expand(len(flat), W)
        columns = left + torch.where(mirror.bool(), W - 1 - across, across)
        which = torch.arange(len(flat), device=device)[:, None, None, None]
        channels = torch.arange(C, device=device)[None, :, None, None]
        cut = flat[which, channels, rows[:, None, :, None], columns[:, None, None, :]]
        return cut.reshape(*lead, C, H, W)
