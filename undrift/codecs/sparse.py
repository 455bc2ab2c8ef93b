"""Codecs that send some of a vector's numbers: those that are largest, or random ones."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.codecs.bits import pack_bits, unpack_bits
from undrift.codecs.codec import Random, codec
from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value

Sparse = tuple[Tensor, Tensor]  # values, and places packed into as many bits as a place takes


def check_count(self: Any) -> None:
    whole = isinstance(self.k, int) and not isinstance(self.k, bool)
    check_value(type(self).__name__, "k", self.k, int if whole else float, within="[1, inf)" if whole else "(0, 1]")


def count_of(self: Any, D: int) -> int:
    """How many of D numbers are sent."""
    if isinstance(self.k, int) and self.k > D:
        raise InvalidInput(
            f"k = {self.k} is more than the model has numbers, {D}: give at most {D}, or a share such as 0.01"
        )
    return self.k if isinstance(self.k, int) else max(1, round(self.k * D))


def place_bits(D: int) -> int:
    return max(1, (D - 1).bit_length())


def gather(v: Tensor, places: Tensor) -> Sparse:
    places = places.sort(-1).values
    return v.gather(-1, places), pack_bits(places, place_bits(v.shape[-1]))


def scatter(self: Any, payload: Sparse, like: Tensor) -> Tensor:
    values, packed = payload
    places = unpack_bits(packed, place_bits(like.numel()), values.shape[-1])
    return values.new_zeros(*values.shape[:-1], like.numel()).scatter(-1, places.clamp(max=like.numel() - 1), values)


@codec("top-k")
@dataclass(frozen=True)
class TopK:
    """The k numbers of largest magnitude, or that share of all if k is a fraction: values, and places in ceil(log2 D) bits.

    Biased: what is small is never sent, unless `feedback` adds it up until it is large.

    >>> two = TopK(2)
    >>> two.decode(two.encode(torch.tensor([3.0, 1.0, -4.0, 0.5]), None), torch.zeros(4))
    tensor([ 3.,  0., -4.,  0.])
    """

    k: float | int = 0.01
    feedback: bool = False

    __post_init__ = check_count

    def encode(self, v: Tensor, random: Random | None) -> Sparse:
        return gather(v, v.abs().topk(count_of(self, v.shape[-1]), dim=-1).indices)

    decode = scatter


@codec("random-k")
@dataclass(frozen=True)
class RandomK:
    """k numbers at random, or that share of all, times D/k, so that the mean is the vector itself.

    With `feedback` they are sent as they are: what is left out follows later.
    """

    k: float | int = 0.01
    feedback: bool = False

    __post_init__ = check_count

    def encode(self, v: Tensor, random: Random) -> Sparse:
        D = v.shape[-1]
        k = count_of(self, D)
        places = random(v.double(), "uniform").topk(k, dim=-1).indices
        values, packed = gather(v, places)
        values = values if self.feedback else values * (D / k)
        sound = v.isfinite().all(-1, keepdim=True)  # what is not finite must be seen by the server
        return torch.where(sound, values, torch.nan), packed

    decode = scatter
