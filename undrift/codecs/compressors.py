"""The codecs that come with the package: shorter types, few bits for every number, or some of the numbers only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.codecs.codec import Random, codec
from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value

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


# few bits for every number


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


def pack_bits(numbers: Tensor, bits: int) -> Tensor:
    """Numbers from 0 to 2^bits - 1, `[..., n]`, as bytes `[..., ceil(n bits / 8)]`, lowest bits first.

    >>> pack_bits(torch.tensor([1, 2, 3, 0, 1]), 2)
    tensor([57,  1], dtype=torch.uint8)
    """
    if bits == 8:
        return numbers.to(torch.uint8)
    places = torch.arange(bits, device=numbers.device, dtype=numbers.dtype)
    each = ((numbers.unsqueeze(-1) >> places) & 1).to(torch.uint8).flatten(-2)
    each = torch.nn.functional.pad(each, (0, -each.shape[-1] % 8)).unflatten(-1, (-1, 8))
    weights = 1 << torch.arange(8, device=numbers.device, dtype=torch.uint8)
    return (each * weights).sum(-1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The numbers that `pack_bits` packed, so many in every row.

    >>> unpack_bits(torch.tensor([57, 1], dtype=torch.uint8), 2, 5)
    tensor([1, 2, 3, 0, 1])
    """
    if bits == 8:
        return packed.long()
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    each = ((packed.unsqueeze(-1) >> places) & 1).flatten(-2)[..., : count * bits].unflatten(-1, (count, bits))
    weights = 1 << torch.arange(bits, device=packed.device)
    return (each * weights).sum(-1)


# some of the numbers


@dataclass(frozen=True)
class SomeNumbers:
    """k of a vector's numbers, or that share of all if k is a fraction: values, and places in ceil(log2 D) bits."""

    k: float | int = 0.01
    feedback: bool = False

    def __post_init__(self) -> None:
        whole = isinstance(self.k, int) and not isinstance(self.k, bool)
        kind, within = (int, "[1, inf)") if whole else (float, "(0, 1]")
        check_value(type(self).__name__, "k", self.k, kind, within=within)

    def count(self, D: int) -> int:
        """How many of D numbers are sent."""
        if isinstance(self.k, int) and self.k > D:
            raise InvalidInput(
                f"k = {self.k} is more than the model has numbers, {D}: give at most {D}, or a share such as 0.01"
            )
        return self.k if isinstance(self.k, int) else max(1, round(self.k * D))

    def gather(self, v: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        places = places.sort(-1).values
        return v.gather(-1, places), pack_bits(places, _place_bits(v.shape[-1]))

    def decode(self, payload: tuple[Tensor, Tensor], like: Tensor) -> Tensor:
        values, packed = payload
        D = like.numel()
        places = unpack_bits(packed, _place_bits(D), values.shape[-1])
        return values.new_zeros(*values.shape[:-1], D).scatter(-1, places.clamp(max=D - 1), values)


def _place_bits(D: int) -> int:
    return max(1, (D - 1).bit_length())


@codec("top-k")
@dataclass(frozen=True)
class TopK(SomeNumbers):
    """The k numbers of largest magnitude, or that share of all if k is a fraction: values, and places in ceil(log2 D) bits.

    Biased: what is small is never sent, unless `feedback` adds it up until it is large.

    >>> two = TopK(2)
    >>> two.decode(two.encode(torch.tensor([3.0, 1.0, -4.0, 0.5]), None), torch.zeros(4))
    tensor([ 3.,  0., -4.,  0.])
    """

    def encode(self, v: Tensor, random: Random | None) -> tuple[Tensor, Tensor]:
        return self.gather(v, v.abs().topk(self.count(v.shape[-1]), dim=-1).indices)


@codec("random-k")
@dataclass(frozen=True)
class RandomK(SomeNumbers):
    """k numbers at random, or that share of all, times D/k, so that the mean is the vector itself.

    With `feedback` they are sent as they are: what is left out follows later.
    """

    def encode(self, v: Tensor, random: Random) -> tuple[Tensor, Tensor]:
        D = v.shape[-1]
        k = self.count(D)
        places = random(v.double(), "uniform").topk(k, dim=-1).indices
        values, packed = self.gather(v, places)
        values = values if self.feedback else values * (D / k)
        sound = v.isfinite().all(-1, keepdim=True)  # what is not finite must be seen by the server
        return torch.where(sound, values, torch.nan), packed
