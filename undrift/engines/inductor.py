"""What TorchInductor is told when it makes machine code of ours, and that it may find it on disk the next time."""

from contextlib import AbstractContextManager
from typing import Any

from torch.fx import GraphModule

# numbers in a model's frozen parts, up to which its programs are kept: they would be read one by one, and kept with it
MOST_CONSTANTS = 2**16


def settings(**more: Any) -> AbstractContextManager[Any]:
    """TorchInductor's settings, for as long as the context lasts."""
    from torch._inductor import config

    common: dict[str, Any] = {"compile_threads": 1}  # a pool of compilers would outlive the run
    if config.cpp.vec_isa_ok is None:
        # what the processor says of itself is enough: to try it out takes a second in every process
        common["cpp.vec_isa_ok"] = True
    return config.patch({**common, **more})


def may_be_kept(graph: GraphModule) -> bool:
    """Whether a program is kept on disk for later runs, which then start sooner."""
    constants = [getattr(graph, node.target) for node in graph.graph.find_nodes(op="get_attr")]
    return sum(each.numel() for each in constants) <= MOST_CONSTANTS
