"""Codecs that send every number in a few bits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.codecs.bits import pack_bits, unpack_bits
from undrift.codecs.codec import Random, codec
from undrift.core.hyper import check_value


@codec("quantised")
@dataclass(frozen=True)
class Quantised:
    """Every number as one of 2^bits evenly spaced ones between -s and s, s being the vector's largest magnitude.

    A number goes to the nearest of them or, `stochastic`, to one of its two neighbours at random, so that its mean is the
    number itself.  A vector takes bits / 8 bytes per number and s.

    >>> four = Quantised(bits=2)
    >>> four.decode(four.encode(torch.tensor([-3.0, 0.8, 3.0]), None), torch.zeros(3)).round(decimals=3)
    tensor([-3.,  1.,  3.])
    """

    bits: int = 8
    stochastic: bool = False
    feedback: bool = False

    def __post_init__(self) -> None:
        check_value("Quantised", "bits", self.bits, int, within="[1, 8]")

    def encode(self, v: Tensor, random: Random | None) -> tuple[Tensor, Tensor]:
        largest = v.abs().amax(-1, keepdim=True)  # NaN or Inf if v has one, which the server then sees
        unit = torch.where(largest > 0, v / largest, 0 * v)
        level = (unit + 1) / 2 * (2**self.bits - 1)
        if self.stochastic:
            assert random is not None
            level = (level + random(v, "uniform")).floor()
        level = level.round().nan_to_num().clamp(0, 2**self.bits - 1)
        return pack_bits(level.to(torch.uint8), self.bits), largest

    def decode(self, payload: tuple[Tensor, Tensor], like: Tensor) -> Tensor:
        packed, largest = payload
        level = unpack_bits(packed, self.bits, like.numel()).to(like.dtype)
        return (2 * level / (2**self.bits - 1) - 1) * largest
