"""Loop-invariant code motion: what stays the same during all steps of a visit is computed once, before them.

Of SCAFFOLD's y - lr (g - c_i + c) that is lr (c_i - c), which a step then reads as one vector in place of two.  A compiler
sees one step at a time and cannot know.
"""

from collections.abc import Sequence

from torch.fx import Graph, GraphModule, Node

from undrift.compiler.graph import value_of
from undrift.compiler.kernels.products import summed_


def hoist_invariants(module: GraphModule, steady: Sequence[Node], enabled: bool = True) -> GraphModule:
    """Take out of a step's graph the sums of vectors, and the numbers before them, that are made of steady placeholders.

    They become its last placeholders.  Returned is a graph that computes them from the steady ones.
    """
    graph = module.graph
    made_of = dict.fromkeys(steady)
    for node in graph.nodes:  # in the order in which they are computed
        if node.op == "call_function" and all(each in made_of for each in node.all_input_nodes):
            made_of[node] = None
    sums = graph.find_nodes(op="call_function", target=summed_) if enabled else []
    taken = [n for n in dict.fromkeys(n for s in sums for n in s.args[1:3]) if n in made_of]
    apart, twins = Graph(), {}
    for node in made_of:
        twins[node] = apart.node_copy(node, twins.__getitem__)
    apart.output([twins[node] for node in taken])
    apart.eliminate_dead_code()
    for node in taken:
        with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
            given = graph.placeholder(f"ready_{node.name}")
        given.meta["val"] = value_of(node)
        node.replace_all_uses_with(given)
    graph.eliminate_dead_code()
    module.recompile()
    return GraphModule(module, apart)
