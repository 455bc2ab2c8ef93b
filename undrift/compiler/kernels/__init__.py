"""What makes compiled visits faster than TorchInductor alone: passes over traced graphs, and kernels in C++.

None of them is needed for a right result.  Each has a name and can be switched off, for a measurement
(`python -m benchmarks.kernels`) or to find a bug: `UNDRIFT_KERNELS_OFF=fuse-updates,max-pool`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

KERNELS = (
    "fuse-updates",  # fuse_update.py: the update is the epilogue of the gradient's matrix product
    "own-products",  # products.py: products in C++ that read samples where the data lie (gather.py)
    "hoist",  # hoist.py: what stays the same in all steps is computed once
    "small-products",  # small_products.py: tiny products as loops of the compiled code
    "share-products",  # shared_products.py: one product for what several runs or clients share
    "max-pool",  # max_pool.py: pooling as arithmetic on windows
)

_off = {name.strip() for name in os.environ.get("UNDRIFT_KERNELS_OFF", "").split(",")} - {""}


def enabled(name: str) -> bool:
    """Whether a kernel is switched on.

    >>> with without("hoist"):
    ...     enabled("hoist")
    False
    """
    if name not in KERNELS:
        raise ValueError(f"there is no kernel {name!r}: {', '.join(KERNELS)}")
    return name not in _off and "all" not in _off


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Switch kernels off for programs that are built meanwhile."""
    global _off
    before, _off = _off, _off | set(names)
    try:
        yield
    finally:
        _off = before
