"""Codecs that send vectors in another precision."""

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.codecs.codec import Random, codec
from undrift.core.errors import InvalidInput

DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Cast:
    """Vectors rounded to a shorter floating-point type: half the bytes of float32.

    Numbers beyond the type's range are sent as its largest ones.

    >>> Cast("float16").decode(Cast("float16").encode(torch.tensor([1.0, 1e6]), None), torch.zeros(2))
    tensor([1.0000e+00, 6.5504e+04])
    """

    dtype: str = "float16"
    feedback: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidInput(f"Cast: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")

    def encode(self, v: Tensor, random: Random | None) -> Tensor:
        dtype = getattr(torch, self.dtype)
        largest = torch.finfo(dtype).max
        finite = v.isfinite()  # what is not finite must be seen by the server
        return torch.where(finite, v.clamp(-largest, largest), v).to(dtype)

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        return payload.to(like.dtype)


@codec("fp16")
def fp16(feedback: bool = False) -> Cast:
    """Half precision: 2 bytes per number, 11 bits of precision, up to 65504."""
    return Cast("float16", feedback)


@codec("bf16")
def bf16(feedback: bool = False) -> Cast:
    """Brain floating point: 2 bytes per number, 8 bits of precision, the range of float32."""
    return Cast("bfloat16", feedback)
