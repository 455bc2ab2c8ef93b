"""Flat vectors cut where the model's parameters begin and end.

Left flat, the gradients of layers would first be joined into one vector of [S, D] and then read again.  In pieces, a
layer's gradient goes from the matrix product straight into the update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from undrift.compiler.graph import add_node, aten, is_pointwise, reshape, value_of

MAX_PIECES = 24  # beyond that, more calls cost more than the copies they save

# of a flat vector, one per parameter; of anything else, the thing itself
Pieces: TypeAlias = list[Tensor]

ROW_VIEWS: dict[Any, Callable[[Graph, Node, list[int]], Node]] = {  # in which rows stay rows
    aten.view.default: reshape,
    aten._unsafe_view.default: reshape,
    aten.expand.default: lambda graph, node, shape: add_node(graph, aten.expand.default, node, shape),
}


@dataclass(frozen=True)
class Layout:
    """How vectors of D numbers are given to a program: in pieces, one per parameter."""

    D: int
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, D: int, sizes: Sequence[int]) -> "Layout":
        return cls(D, tuple(sizes) if len(sizes) <= MAX_PIECES else (D,))

    def is_flat(self, t: Tensor) -> bool:
        return t.dim() == 2 and t.shape[1] == self.D and len(self.sizes) > 1

    def split(self, t: Tensor) -> Pieces:
        return list(t.split(self.sizes, 1)) if self.is_flat(t) else [t]


def join(pieces: Sequence[Tensor]) -> Tensor:
    """The whole vector."""
    return torch.cat(list(pieces), 1) if len(pieces) > 1 else pieces[0]


def join_nodes(graph: Graph, pieces: Sequence[Node]) -> Node:
    """The whole vector as a node."""
    return add_node(graph, aten.cat.default, list(pieces), 1) if len(pieces) > 1 else pieces[0]


def split_nodes(module: GraphModule, layout: Layout, values: Sequence[Node]) -> list[list[Node]]:
    """Vectors as the pieces they are made of."""
    pieces, edges = cut(module, layout), [0, *accumulate(layout.sizes)]
    ends = list(zip(edges, edges[1:], strict=False))

    def split(value: Node) -> list[Node]:
        if value in pieces:
            return pieces[value]
        if not layout.is_flat(value_of(value)):
            return [value]
        return [add_node(module.graph, aten.slice.Tensor, value, 1, a, b) for a, b in ends]

    return [split(value) for value in values]


def cut(module: GraphModule, layout: Layout) -> dict[Node, list[Node]]:
    """Compute elementwise arithmetic on flat vectors piece by piece, wherever the pieces are known.

    Whole vectors that nobody needs any more are dead code afterwards.
    """
    graph, sizes = module.graph, list(layout.sizes)
    pieces: dict[Node, list[Node]] = {}

    def is_flat(node: Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, Tensor) and value.dim() > 0 and value.shape[-1] == layout.D

    def is_last(node: Node, rest: Sequence[Any]) -> bool:
        dim, dims = rest[0] if rest else 0, value_of(node).dim()
        return dim % dims == dims - 1

    for node in list(graph.nodes) if len(sizes) > 1 else []:
        if node.op != "call_function":
            continue
        if node.target is aten.cat.default and is_flat(node) and is_last(node, node.args[1:]):
            parts: Any = node.args[0]
            if [value_of(part).shape[-1] for part in parts] == sizes:
                pieces[node] = list(parts)
        elif node.target is aten.split_with_sizes.default and node.args[0] in pieces:
            if list(node.args[1]) == sizes and is_last(node.args[0], node.args[2:]):
                for user in list(node.users):  # each takes one piece by its number
                    user.replace_all_uses_with(pieces[node.args[0]][user.args[1]])
        elif node.target in ROW_VIEWS and node.args[0] in pieces and is_flat(node):
            lead = value_of(node).shape[:-1]  # rows of several runs, apart or one after another
            change = ROW_VIEWS[node.target]
            with graph.inserting_before(node):
                pieces[node] = [
                    change(graph, piece, [*lead, size]) for piece, size in zip(pieces[node.args[0]], sizes, strict=True)
                ]
        elif is_flat(node) and _is_elementwise(node):
            flat = [each for each in node.all_input_nodes if is_flat(each)]
            if all(each in pieces for each in flat):
                pieces[node] = _elementwise(graph, node, flat, pieces, len(sizes))
    return pieces


def _is_elementwise(node: Node) -> bool:
    """Whether numbers in a vector depend only on those in the same place: arithmetic, and sums over rows."""
    if node.target is aten.sum.dim_IntList:
        value, dims = value_of(node.args[0]), node.args[1]  # pyright: ignore[reportArgumentType]
        return all(dim % value.dim() < value.dim() - 1 for dim in dims)  # pyright: ignore
    return node.target is aten.clone.default or is_pointwise(node)


def _elementwise(graph: Graph, node: Node, flat: list[Node], pieces: dict[Node, list[Node]], count: int) -> list[Node]:
    found = []
    with graph.inserting_before(node):
        for j in range(count):
            mine = {each: pieces[each][j] for each in flat}
            args, kwargs = (
                map_arg(some, lambda each: mine.get(each, each))  # noqa: B023 (used at once)
                for some in (node.args, node.kwargs)
            )
            found.append(add_node(graph, node.target, *args, **kwargs))  # pyright: ignore[reportCallIssue]
    return found
