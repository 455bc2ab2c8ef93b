"""Dropout whose units are chosen by key, so that engines agree and a minibatch seen twice drops the same units."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

MASK = (1 << 63) - 1


class KeyedDropout(nn.Module):
    """Drops unit j when a hash of (seed, layer, j) falls below p.  `seed` is set before each forward pass.

    The hash is plain tensor arithmetic: unlike torch's generator it can be computed for several clients at once, each
    with its own seed.
    """

    def __init__(self, p: float, layer: int, shared: int):
        super().__init__()
        self.p, self.layer, self.shared = p, layer, shared
        self.seed: Any = None
        self.calls = 0  # in this forward pass: a layer used twice draws twice

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or self.seed is None:
            return x
        if self.p == 1:
            return 0 * x
        self.calls += 1
        shape = x.shape[: x.dim() - self.shared] + (1,) * self.shared
        units = torch.arange(shape.numel(), device=x.device).reshape(shape)
        kept = (
            uniform(self.seed + self.layer * 0x632BE5AB + self.calls * 0x2545F491, units) >= self.p
        )
        return x * kept / (1 - self.p)


def uniform(seed: Any, counter: Tensor) -> Tensor:
    """Numbers in [0, 1) from a seed and a counter: two rounds of multiply and shift (after SplitMix64)."""
    z = (counter + 1) * 0x1E3779B97F4A7C15 + seed
    z = (z ^ ((z & MASK) >> 30)) * 0x3F58476D1CE4E5B9
    z = (z ^ ((z & MASK) >> 27)) * 0x14D049BB133111EB
    return ((z ^ (z >> 31)) & ((1 << 24) - 1)).to(torch.float32) / (1 << 24)


SHARED = {
    nn.Dropout1d: 1,
    nn.Dropout2d: 2,
    nn.Dropout3d: 3,
}  # dimensions that are dropped as one unit


def keyed(module: nn.Module) -> list[KeyedDropout]:
    """Put keyed dropout in place of torch's, inside the module; returns the new layers."""
    layers: list[KeyedDropout] = []
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # a layer used twice is there twice
            if isinstance(child, _DropoutNd) and type(child) in {nn.Dropout, *SHARED}:
                layer = KeyedDropout(child.p, len(layers) + 1, SHARED.get(type(child), 0))
                setattr(parent, name, layer)
                layers.append(layer)
    return layers
