"""Dropout whose units are chosen by key, so that engines agree and a minibatch seen twice drops the same units."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from undrift.compiler.inductor import DECOMPOSITIONS

WORD = (1 << 32) - 1
SIGN = 1 << 31
BITS = 24  # of the number that is compared with p


class KeyedDropout(nn.Module):
    """Drops unit j when a hash of (seed, layer, j) falls below p.  `seed` is set before each forward pass."""

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
        seed = self.seed + self.layer * 0x632BE5AB + self.calls * 0x2545F491
        return x * (draw_kept_units(seed, list(shape), self.p).to(x.dtype) / (1 - self.p))


@torch.library.custom_op("undrift::kept", mutates_args=())
def draw_kept_units(seed: Tensor, shape: Sequence[int], p: float) -> Tensor:
    """Which units stay, `[*seed.shape, *shape]`: those whose hash of 24 bits, as a number in [0, 1), is not below p.

    The hash (two rounds of multiply and shift in 32 bits, each with half of the seed) is plain arithmetic, so that it can be
    computed for several clients at once, each with its own seed.  It is an operator of its own because a compiler must
    not look inside: TorchInductor bounds such products as if they were indices, and gets other units.  For it there is
    `draw_kept_units_compiled`.
    """
    low, high = (half.to(torch.int32).unsqueeze(-1) for half in _halves(seed))
    z = _counters(math.prod(shape), seed.device) ^ low
    z.bitwise_xor_(z.bitwise_right_shift(16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    z.bitwise_xor_(z.bitwise_right_shift(15).bitwise_and_(0x1FFFF)).bitwise_xor_(high)
    z.mul_(-0x7B935975)
    z.bitwise_xor_(z.bitwise_right_shift(16)).bitwise_and_((1 << BITS) - 1)
    return (z >= math.ceil(p * (1 << BITS))).view(*seed.shape, *shape)


def draw_kept_units_compiled(seed: Tensor, shape: Sequence[int], p: float) -> Tensor:
    """The same for TorchInductor, in 64 bits, where no product of counters leaves its range."""
    low, high = ((half & WORD).unsqueeze(-1) for half in _halves(seed))
    z = (torch.arange(1, math.prod(shape) + 1, device=seed.device) * -0x61C88647 & WORD) ^ low
    z = (z ^ z >> 16) * 0x7FEB352D & WORD
    z = (z ^ z >> 15 ^ high) * -0x7B935975 & WORD
    z = (z ^ SIGN) - SIGN  # the last shift is that of a signed number
    return ((z ^ z >> 16) & (1 << BITS) - 1 >= math.ceil(p * (1 << BITS))).view(*seed.shape, *shape)


def _halves(seed: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves of a seed, mixed so that seeds that differ little differ in both."""
    mixed = (seed ^ (seed >> 32)) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return mixed & WORD, mixed >> 32


DECOMPOSITIONS[torch.ops.undrift.kept.default] = draw_kept_units_compiled


@draw_kept_units.register_fake
def _(seed: Tensor, shape: Sequence[int], p: float) -> Tensor:
    return torch.empty(*seed.shape, *shape, dtype=torch.bool, device=seed.device)


@draw_kept_units.register_vmap
def _(info: Any, in_dims: Any, seed: Tensor, shape: Sequence[int], p: float) -> tuple[Tensor, int]:
    return draw_kept_units(seed.movedim(in_dims[0], 0), shape, p), 0


@lru_cache(maxsize=16)
def _counters(units: int, device: torch.device) -> Tensor:
    return (torch.arange(units, device=device) + 1).to(torch.int32) * -0x61C88647


SHARED_AXES = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # dimensions that are dropped as one unit


def with_keyed_dropout(module: nn.Module) -> list[KeyedDropout]:
    """Put keyed dropout in place of torch's, inside the module; returns the new layers."""
    layers: list[KeyedDropout] = []
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # a layer used twice is there twice
            if isinstance(child, _DropoutNd) and type(child) in {nn.Dropout, *SHARED_AXES}:
                layer = KeyedDropout(child.p, len(layers) + 1, SHARED_AXES.get(type(child), 0))
                setattr(parent, name, layer)
                layers.append(layer)
    return layers
