"""Products of our own, for the thin matrices that a step of many clients consists of (products.cpp).

    outputs    X W'                  samples times the rows of a layer
    summed_    y <- f y + v + A X    SCAFFOLD's step, with its correction as v and the gradient as product

A matrix library needs the samples gathered, which is a pass over memory, and adds a product to what is there, but no vector,
which is another.  Here samples are read by number where the data lie, and v is added on the way.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from undrift.compiler.inductor import load_cpp
from undrift.core.errors import first_line

log = logging.getLogger("undrift")

C_TYPES = {torch.float32: "float", torch.float64: "double"}

_library = torch.library.Library("undrift", "FRAGMENT")
_library.define("outputs(Tensor x, Tensor? numbers, Tensor w) -> Tensor")
_library.define("summed_(Tensor(a!) y, Tensor? v, Tensor? factor, Tensor a, Tensor x, Tensor? numbers) -> ()")
_library.define("weighted(Tensor[] vectors, Tensor factors) -> Tensor")
outputs = torch.ops.undrift.outputs.default
summed_ = torch.ops.undrift.summed_.default
weighted = torch.ops.undrift.weighted.default


@dataclass(frozen=True)
class Functions:
    """The compiled code for a kind of number."""

    outputs: Callable[..., None]
    summed: Callable[..., None]


@cache
def compiled_products() -> dict[torch.dtype, Functions]:
    """The compiled code for each kind of number; empty if there is no C++ compiler."""
    source = files("undrift.compiler.kernels").joinpath("products.cpp").read_text()
    try:
        code: Any = load_cpp(source)
    except Exception as error:  # torch raises many kinds for what it cannot compile
        log.info("products are a library's, which takes more passes over memory: %s", first_line(error))
        return {}

    def function(name: str, places: int) -> Callable[..., None]:
        found = getattr(code, name)
        found.argtypes, found.restype = [ctypes.c_void_p] * (places + 1), None
        return found

    return {
        dtype: Functions(function(f"outputs_{name}", 4), function(f"summed_{name}", 6))
        for dtype, name in C_TYPES.items()
    }


def _outputs(x: Tensor, numbers: Tensor | None, w: Tensor) -> Tensor:
    """`[clients, samples, n]` from w `[clients, n, k]` and samples of k numbers each: x `[clients, samples, k]`, or those
    of x with these `[clients, samples]` numbers."""
    w = w if w.stride(2) == 1 else w.contiguous()
    x, where = _samples(x, numbers)
    out = w.new_empty(w.shape[0], where[0], w.shape[1])
    _call(compiled_products()[w.dtype].outputs, (x, numbers, w, out), (*w.shape, *w.stride()[:2], *where))
    return out


def _summed(y: Tensor, v: Tensor | None, factor: Tensor | None, a: Tensor, x: Tensor, numbers: Tensor | None) -> None:
    """y `[rows, length]`, whole in memory; v like it, or one row for all; the factor f of all rows or of each; a
    `[clients, n, samples]`, where each client has as many rows of y as fit, and samples as in `outputs`."""
    x, (k, *where) = _samples(x, numbers)
    clients, n, _ = a.shape
    runs, each = len(y) // clients, factor is not None and len(factor) > 1
    m, v_step = y.shape[1] * runs // n, 0 if v is None else v.stride(0)
    if not each and (v is None or v_step == y.shape[1]):  # as if they were rows of one run
        runs, v_step = 1, v_step * runs
    sizes = (clients, runs, n // runs, m, k, v_step, each, *a.stride(), *where)
    _call(compiled_products()[y.dtype].summed, (y, v, factor, a, x, numbers), sizes)


def _samples(x: Tensor, numbers: Tensor | None) -> tuple[Tensor, tuple[int, int, int, int]]:
    """Samples, each in one stretch; how many a client has, how far clients and samples are apart, how many there are."""
    if numbers is not None:
        return x, (numbers.shape[1], 0, x.stride(0), x.shape[0])
    x = x if x.stride(2) == 1 else x.contiguous()
    return x, (x.shape[1], x.stride(0), x.stride(1), 0)


def _call(function: Callable[..., None], given: Sequence[Tensor | None], sizes: Sequence[int]) -> None:
    places = (None if t is None else t.data_ptr() for t in given)
    function(*places, (ctypes.c_int64 * len(sizes))(*sizes))


def _weighted(vectors: Sequence[Tensor], factors: Tensor) -> Tensor:
    """The sum of vectors `[rows, length]`, each times its factor, for all rows or for each."""
    if len(factors) > 1:
        first, *others = (f * v for v, f in zip(vectors, factors.split(1, 1), strict=True))
        return sum(others, first)
    # first those that all rows have in common, which are small
    pairs = sorted(zip(vectors, factors[0].tolist(), strict=True), key=lambda pair: pair[0].stride(0))
    total = torch.zeros_like(vectors[0][:1])
    for v, factor in pairs:
        total = torch.add(total, v if v.stride(0) else v[:1], alpha=factor)
    return total.expand_as(vectors[0])


_library.impl("outputs", _outputs, "CPU")
_library.impl("summed_", _summed, "CPU")
_library.impl("weighted", _weighted, "CPU")
torch.library.register_fake(
    "undrift::outputs",
    lambda x, numbers, w: w.new_empty(len(w), (x if numbers is None else numbers).shape[1], w.shape[1]),
)  # fmt: skip
torch.library.register_fake("undrift::summed_", lambda y, v, factor, a, x, numbers: None)
torch.library.register_fake("undrift::weighted", lambda vectors, factors: torch.empty_like(vectors[0]))
