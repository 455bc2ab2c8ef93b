"""A vector that is still in pieces, as gradients of layers come: joined only if somebody needs the whole of it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

aten = torch.ops.aten
ARITHMETIC: dict[Any, Callable[..., Tensor]] = {
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
}


class Joined(Tensor):
    """The pieces of a vector, end to end.  Arithmetic with another vector is done piece by piece, which saves a copy.

    >>> g = Joined([torch.ones(2), torch.zeros(1)])
    >>> torch.arange(3.0) - 2 * g, g.sum()
    (tensor([-2., -1.,  2.]), tensor(2.))
    """

    pieces: Sequence[Tensor]

    @staticmethod
    def __new__(cls, pieces: Sequence[Tensor]) -> "Joined":
        first, size = pieces[0], sum(piece.numel() for piece in pieces)
        found = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, (size,), dtype=first.dtype, device=first.device
        )
        found.pieces = [piece.flatten() for piece in pieces]
        return found

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return repr(torch.cat(list(self.pieces)))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        whole = [a for a in args if isinstance(a, Tensor) and a.dim() > 0]
        mine = next((a for a in args if isinstance(a, Joined)), None)
        if func in ARITHMETIC and mine is not None and all(_fits(a, mine) for a in whole):
            return _by_pieces(ARITHMETIC[func], mine, args, kwargs or {})
        flat = lambda a: torch.cat(list(a.pieces)) if isinstance(a, Joined) else a
        return func(*tree_map(flat, args), **tree_map(flat, kwargs or {}))


def _fits(a: Tensor, mine: Joined) -> bool:
    return a.shape == mine.shape and a.dtype == mine.dtype


def _by_pieces(f: Callable[..., Tensor], mine: Joined, args: Any, kwargs: Any) -> Tensor:
    sizes = [piece.numel() for piece in mine.pieces]
    apart = [_apart(a, sizes) for a in args]
    found = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
    for piece, *given in zip(found.split(sizes), *apart, strict=True):
        f(*given, **kwargs, out=piece)
    return found


def _apart(a: Any, sizes: list[int]) -> Sequence[Any]:
    if isinstance(a, Joined):
        return a.pieces
    return a.split(sizes) if isinstance(a, Tensor) and a.dim() > 0 else [a] * len(sizes)
