"""What TorchInductor is told when it makes machine code of ours, and that it may find it on disk the next time."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

# The minor versions of torch with which the compiler's tests have passed (`make test-torch`).  TorchInductor is no public
# interface: other versions compiled some methods into something else without a word (2.7 to 2.11), or not at all.
TESTED = ("2.12", "2.13", "2.14", "2.15")

# numbers in a model's frozen parts, up to which its programs are kept: they would be read one by one, and kept with it
MOST_CONSTANTS = 2**16


@cache
def untested() -> str | None:
    """Why nothing is compiled under this version of torch, if so."""
    minor = ".".join(torch.__version__.split(".")[:2])
    if minor in TESTED:
        return None
    return (
        f"torch {torch.__version__} has not been tested with the compiler, torch "
        f"{', '.join(TESTED)} have: install one of them for more speed"
    )


def settings(**more: Any) -> AbstractContextManager[Any]:
    """TorchInductor's settings, for as long as the context lasts."""
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    common: dict[str, Any] = {"compile_threads": 1}  # a pool of compilers would outlive the run
    if config.cpp.vec_isa_ok is None:
        # to try whether the compiler knows the processor's instructions takes a second in every process; if it does not,
        # programs cannot be made, and steps are computed as they are
        common["cpp.vec_isa_ok"] = True
    # what machine code depends on besides, by which programs on disk must be told apart: it may be another machine's
    with config.patch(common):
        common["cpp.simdlen"] = pick_vec_isa().bit_width() or 1
    common["cpp.threads"] = torch.get_num_threads()
    return config.patch({**common, **more})


def may_be_kept(graph: GraphModule) -> bool:
    """Whether a program is kept on disk for later runs, which then start sooner."""
    constants = [getattr(graph, node.target) for node in graph.graph.find_nodes(op="get_attr")]
    return sum(each.numel() for each in constants if isinstance(each, Tensor)) <= MOST_CONSTANTS
