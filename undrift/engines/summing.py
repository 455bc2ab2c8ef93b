"""y <- f y + v + A B in one go, for all clients: SCAFFOLD's step, with its correction as v and the gradient as product.

A matrix library adds a product to what is there, but no vector; that would take a pass over memory of its own in every
step.  Here (summing.cpp) v is added on the way.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("undrift")

# of the second matrix, which is read again and again: beyond that a library, which takes it apart, is faster
MOST_BYTES = 2**18
FUNCTIONS = {torch.float32: "summed_float", torch.float64: "summed_double"}

_library = torch.library.Library("undrift", "FRAGMENT")
_library.define("summed_(Tensor(a!) y, Tensor v, Tensor factor, Tensor a, Tensor b) -> ()")
_library.define("weighted(Tensor[] vectors, Tensor factors) -> Tensor")
summed_ = torch.ops.undrift.summed_.default
weighted = torch.ops.undrift.weighted.default


@cache
def functions() -> dict[torch.dtype, Callable[..., None]]:
    """The compiled code for each kind of number; empty if there is no C++ compiler."""
    from torch._inductor import config
    from torch._inductor.codecache import CppCodeCache

    source = files("undrift.engines").joinpath("summing.cpp").read_text()
    try:
        with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
            code: Any = CppCodeCache.load(source)
    except Exception as error:  # torch raises many kinds for what it cannot compile
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        log.info("vectors are added apart from products, which takes a pass more: %s", reason)
        return {}
    found = {dtype: getattr(code, name) for dtype, name in FUNCTIONS.items()}
    for function in found.values():
        function.argtypes, function.restype = [ctypes.c_void_p] * 6, None
    return found


def _summed(y: Tensor, v: Tensor, factor: Tensor, a: Tensor, b: Tensor) -> None:
    """y `[rows, length]`, whole in memory; v like it, or one row for all; the factor f of all rows or of each; a
    `[clients, n, k]` and b `[clients, k, m]`, where each client has as many rows of y as fit."""
    if b.stride(2) != 1:
        b = b.contiguous()
    clients, n, k = a.shape
    runs, m = len(y) // clients, b.shape[2]
    sizes = (
        clients, runs, n // runs, m, k, v.stride(0), int(len(factor) > 1),
        *a.stride(), *b.stride()[:2],
    )  # fmt: skip
    places = (t.data_ptr() for t in (y, v, factor, a, b))
    functions()[y.dtype](*places, (ctypes.c_int64 * len(sizes))(*sizes))


def _weighted(vectors: Sequence[Tensor], factors: Tensor) -> Tensor:
    """The sum of vectors `[rows, length]`, each times its factor, for all rows or for each."""
    if len(factors) > 1:
        first, *others = (f * v for v, f in zip(vectors, factors.split(1, 1), strict=True))
        return sum(others, first)
    # first those that all rows have in common, which are small
    pairs = sorted(
        zip(vectors, factors[0].tolist(), strict=True), key=lambda pair: pair[0].stride(0)
    )
    total = torch.zeros_like(vectors[0][:1])
    for v, factor in pairs:
        total = torch.add(total, v if v.stride(0) else v[:1], alpha=factor)
    return total.expand_as(vectors[0])


_library.impl("summed_", _summed, "CPU")
_library.impl("weighted", _weighted, "CPU")
torch.library.register_fake("undrift::summed_", lambda y, v, factor, a, b: None)
torch.library.register_fake(
    "undrift::weighted", lambda vectors, factors: torch.empty_like(vectors[0])
)
