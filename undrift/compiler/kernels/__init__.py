"""What makes compiled visits faster than TorchInductor alone: passes over traced graphs, and kernels in C++.

None of them is needed for a right result.  Each has a name and can be switched off, for a measurement
(`python -m benchmarks.kernels`) or to find a bug: `UNDRIFT_KERNELS_OFF=fuse-updates,max-pool`.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from undrift.core.errors import InvalidInput, unknown

KERNELS = (
    "fuse-updates",  # fuse_update.py: the update is the epilogue of the gradient's matrix product
    "own-products",  # products.py: products in C++ that read samples where the data lie (gather.py)
    "hoist",  # hoist.py: what stays the same in all steps is computed once
    "small-products",  # small_products.py: tiny products as loops of the compiled code
    "share-products",  # shared_products.py: one product for what several runs or clients share
    "max-pool",  # max_pool.py: pooling as arithmetic on windows
)


def _known(names: Iterable[str], where: str) -> frozenset[str]:
    """These kernels, or all of them for "all"; raises InvalidInput for others."""
    found = frozenset(names)
    for name in sorted(found - {*KERNELS, "all"}):
        raise InvalidInput(f"{where}: {unknown('kernel', name, (*KERNELS, 'all'))}")
    return frozenset(KERNELS) if "all" in found else found


_off: frozenset[str] = frozenset()  # of all threads


def switched_off() -> frozenset[str]:
    """The kernels that are switched off; raises InvalidInput if the environment names one that is not there."""
    given = os.environ.get("UNDRIFT_KERNELS_OFF", "")
    if not given:
        return _off
    return _off | _known({name.strip() for name in given.split(",")} - {""}, "UNDRIFT_KERNELS_OFF")


def enabled(name: str) -> bool:
    """Whether a kernel is switched on.

    >>> with without("hoist"):
    ...     enabled("hoist")
    False
    """
    if name not in KERNELS:
        raise ValueError(f"there is no kernel {name!r}: {', '.join(KERNELS)}")
    return name not in switched_off()


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Switch kernels off meanwhile.

    >>> with without("hoits"):
    ...     pass
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: without: unknown kernel 'hoits'; did you mean 'hoist'? ...
    """
    global _off
    before, _off = _off, _off | _known(names, "without")
    try:
        yield
    finally:
        _off = before
