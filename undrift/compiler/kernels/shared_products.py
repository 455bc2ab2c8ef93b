"""Products with samples that several runs share: X times the layers of all runs at once, in place of one run after another.

A gradient of R runs on one minibatch is traced as a product for each run, for which the samples are copied R times.  Side
by side the runs' layers are one matrix, [R out, in], and the samples are read once:

    [v r, m, k] [v r, k, n]   with X repeated over r is   [v, m, k] [v, k, r n]        outputs
    [v r, n, m] [v r, m, k]   with X repeated over r is   [v, r n, m] [v, m, k]        gradients

A model that all clients are sent, such as the last round's in variance-reduced methods, is shared by their samples:

    [v, m, k] [v, k, n]       with W the same for all v is   [v m, k] [k, n]
"""

from typing import Any

import torch
from torch.fx import Graph, Node

from undrift.compiler.graph import add_node, aten, reshape, value_of


def share_products(graph: Graph) -> None:
    """Multiply what is repeated for several runs with all of them at once."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        first, second = map(_in_four, node.args)
        if first is None or second is None or value_of(first).shape[:2] != value_of(second).shape[:2]:
            continue
        with graph.inserting_before(node):
            if _is_repeated(first) and not _is_repeated(second):
                new = _outputs(graph, first, second)
            elif _is_repeated(second) and not _is_repeated(first):
                new = _gradients(graph, first, second)
            else:
                continue
            for user in list(node.users):  # which mostly ask for runs apart again
                if user.target is aten.view.default and value_of(user).shape == value_of(new).shape:
                    user.replace_all_uses_with(new)
                    graph.erase_node(user)
            if node.users:
                node.replace_all_uses_with(reshape(graph, new, list(value_of(node).shape)))
    graph.eliminate_dead_code()


def share_models(graph: Graph) -> None:
    """Multiply samples of all clients at once with what is the same for all of them."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        X, W = node.args
        (v, m, k), n = value_of(X).shape, value_of(node).shape[2]
        if not _is_one(W):
            continue
        with graph.inserting_before(node):
            rows, one = reshape(graph, X, [v * m, k]), add_node(graph, aten.select.int, W, 0, 0)
            product = add_node(graph, aten.mm.default, rows, one)
            node.replace_all_uses_with(add_node(graph, aten.view.default, product, [v, m, n]))
        graph.erase_node(node)


def _outputs(graph: Graph, X: Node, W: Node) -> Node:
    """`[v, r, m, n]` from X `[v, r, m, k]`, the same for all r, and W `[v, r, k, n]`."""
    v, r, k, n = value_of(W).shape
    m = value_of(X).shape[2]
    rows = reshape(graph, add_node(graph, aten.permute.default, W, [0, 1, 3, 2]), [v, r * n, k])
    columns = add_node(graph, aten.permute.default, rows, [0, 2, 1])
    product = add_node(graph, aten.bmm.default, add_node(graph, aten.select.int, X, 1, 0), columns)
    apart = add_node(graph, aten.view.default, product, [v, m, r, n])
    ordered = add_node(graph, aten.permute.default, apart, [0, 2, 1, 3])
    # as contiguous as what it stands for, because others may look at it in other shapes
    return add_node(graph, aten.clone.default, ordered, memory_format=torch.contiguous_format)


def _gradients(graph: Graph, D: Node, X: Node) -> Node:
    """`[v, r, n, k]` from D `[v, r, n, m]` and X `[v, r, m, k]`, the same for all r."""
    v, r, n, m = value_of(D).shape
    k = value_of(X).shape[3]
    rows = reshape(graph, D, [v, r * n, m])
    product = add_node(graph, aten.bmm.default, rows, add_node(graph, aten.select.int, X, 1, 0))
    return add_node(graph, aten.view.default, product, [v, r, n, k])


def _in_four(node: Any) -> Node | None:
    """A batch of matrices with visitors and runs apart, not yet copied for each run; None if it is none."""
    if node.target is not aten.view.default:
        return None
    four = node.args[0]
    if four.target is aten.clone.default:
        four = four.args[0]
    value = value_of(four)
    return four if value.dim() == 4 and value.shape[2:] == value_of(node).shape[1:] else None


def _is_one(W: Any) -> bool:
    """Whether all matrices are one that is given to the program as the same row for every client."""
    while W.target in (aten.view.default, aten.expand.default, aten.permute.default):
        if W.target is aten.permute.default and W.args[1][0] != 0:
            return False
        W = W.args[0]
    value = value_of(W)
    return W.op == "placeholder" and value.dim() == 2 and len(value) > 1 and value.stride(0) == 0


def _is_repeated(node: Node) -> bool:
    value = value_of(node)
    return value.shape[1] > 1 and value.stride(1) == 0
