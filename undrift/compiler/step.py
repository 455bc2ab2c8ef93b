"""The body of a local loop as a program that overwrites what it carries.

A step that returned new vectors would pay for fresh memory, page by page; so the graph ends in copies into its own inputs,
and where an update is a sum with matrix products, those are added in place (kernels/fuse_update.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

from undrift.compiler import inductor, kernels
from undrift.compiler.graph import add_node, aten, value_of
from undrift.compiler.kernels.fuse_update import copy_if_overwritten, fuse, summands_of, write
from undrift.compiler.kernels.gather import multiply_by_rows
from undrift.compiler.kernels.hoist import hoist_invariants
from undrift.compiler.kernels.products import outputs, summed_, weighted
from undrift.compiler.kernels.shared_products import share_models, share_products
from undrift.compiler.kernels.small_products import write_small_products_as_loops
from undrift.compiler.layout import Layout, split_nodes

LARGE = 2**17  # numbers in a chunk's vectors, from which on products are added to pieces in place


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step, and what makes ready, once for all steps, what stays the same in them."""

    _prepare: GraphModule
    _step: Callable[[list[Tensor]], Any]

    def prepare(self, captured: list[Tensor]) -> list[Tensor]:
        """What the step takes after all else."""
        return self._prepare(*captured)

    def __call__(self, inputs: list[Tensor]) -> None:
        """Overwrite the first of [*carried, *captured, *minibatch, *prepared]."""
        self._step(inputs)


def build_step(module: GraphModule, layout: Layout, carried: int, captured: int, mode: Any) -> CompiledStep:
    """A program from the graph of a loop's body, which returns the new values of what it carries.

    Its inputs are pieces: first `carried` that it overwrites, then `captured` that stay the same in all steps, then the
    minibatch.
    """
    module = inductor.eliminate_common_subexpressions(module)
    graph = module.graph
    _write_as_batches(graph)
    if kernels.enabled("share-products"):
        share_products(graph)
    on_cpu = value_of(graph.find_nodes(op="placeholder")[0]).device.type == "cpu"
    if on_cpu:
        multiply_by_rows(graph)
    if on_cpu and kernels.enabled("small-products"):
        write_small_products_as_loops(graph, fused_from=LARGE)
    _write_back(module, layout, carried)
    steady = graph.find_nodes(op="placeholder")[carried : carried + captured]
    prepare = hoist_invariants(module, steady, kernels.enabled("hoist"))
    return CompiledStep(
        prepare, inductor.compile_graph(module, mode, (aten.baddbmm_.default, outputs, summed_, weighted))
    )


def _write_as_batches(graph: Graph) -> None:
    """Write products of two matrices, which a step of one client has, as batches of one."""
    for node in graph.find_nodes(op="call_function", target=aten.mm.default):
        with graph.inserting_before(node):
            a, b = (add_node(graph, aten.unsqueeze.default, each, 0) for each in node.args)
            product = add_node(graph, aten.bmm.default, a, b)
            shape = list(value_of(node).shape)
            node.replace_all_uses_with(add_node(graph, aten.view.default, product, shape))
        graph.erase_node(node)


def _write_back(module: GraphModule, layout: Layout, carried: int) -> None:
    """Let the graph overwrite its first inputs with what it returned, piece by piece where it can."""
    graph = module.graph
    inputs = graph.find_nodes(op="placeholder")[:carried]
    output = graph.output_node()
    with graph.inserting_before(output):
        values: Any = output.args[0]
        new = [piece for pieces in split_nodes(module, layout, values) for piece in pieces]
        output.args = (new,)
        graph.eliminate_dead_code()  # whole vectors, which would still use their pieces
        if kernels.enabled("share-products"):
            share_models(graph)
        output.args = ((),)
        # An old value that is carried on elsewhere must be kept before it is overwritten.
        pairs = zip(inputs, new, strict=True)
        new = [copy_if_overwritten(graph, n, old, inputs) for old, n in pairs]
        _overwrite(graph, inputs, new)
    graph.set_codegen(CodeGen())
    graph.eliminate_dead_code()
    module.recompile()


def _overwrite(graph: Graph, inputs: Sequence[Node], new: Sequence[Node]) -> None:
    fused: list[Any] = [None] * len(inputs)
    if kernels.enabled("fuse-updates"):
        summands = summands_of(graph, new, len(value_of(inputs[0])))
        pairs = zip(inputs, new, strict=True)
        fused = [fuse(graph, n, old, summands, inputs) for old, n in pairs]
    for old, n, update in zip(inputs, new, fused, strict=True):
        if update is not None:
            write(graph, old, update)
        elif n is not old:
            graph.call_function(aten.copy_.default, (old, n))
