"""Matrix products so small that a loop in the compiled code is faster than a call of a library."""

from torch.fx import Graph

from undrift.compiler.graph import add_node, aten, value_of
from undrift.compiler.kernels.gather import adds_samples

SMALL = 2**17  # multiplications, up to which a loop is faster than a library


def write_small_products_as_loops(graph: Graph, fused_from: int) -> None:
    """Write small products as loops, but not those that will be fused with an update, of `fused_from` numbers or more."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        a, b = node.args
        (_, m, k), n = value_of(a).shape, value_of(b).shape[2]
        fused = value_of(node).numel() >= fused_from and adds_samples(node)
        if m * k * n > SMALL or fused:
            continue
        with graph.inserting_before(node):
            if k > 64:  # long sums run along memory
                along, b = 3, add_node(graph, aten.permute.default, b, [0, 2, 1])
                a, b = (add_node(graph, aten.unsqueeze.default, x, d) for x, d in ((a, 2), (b, 1)))
            else:
                along = 2
                a, b = (add_node(graph, aten.unsqueeze.default, x, d) for x, d in ((a, 3), (b, 1)))
            each = add_node(graph, aten.mul.Tensor, a, b)
            node.replace_all_uses_with(add_node(graph, aten.sum.dim_IntList, each, [along]))
            graph.erase_node(node)
