"""Whole numbers of a few bits each, packed into bytes."""

import torch
from torch import Tensor


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
