"""Helpers for traced graphs: new nodes that know the shape of their values as traced ones do, views and copies."""

import math
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from undrift.compiler.inductor import force_contiguous

aten = torch.ops.aten
VIEWS = (aten.view.default, aten.permute.default, aten.expand.default, aten.unsqueeze.default)


@torch.library.custom_op("undrift::copy", mutates_args=())
def copy(x: Tensor) -> Tensor:
    """A copy that stays one: TorchInductor takes `clone` for nothing, also where what is cloned is written over later."""
    return x.clone(memory_format=torch.contiguous_format)


@copy.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def value_of(node: Node) -> Any:
    """A fake tensor with the shape, strides and dtype of what the node computes."""
    return node.meta["val"]


def add_node(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node, inserted where the graph's insertion point is."""
    node = graph.call_function(target, args, kwargs)
    mode = value_of(node.all_input_nodes[0]).fake_mode
    given, named = (map_arg(some, value_of) for some in (args, kwargs))
    with mode:
        node.meta["val"] = target(*given, **named)  # pyright: ignore[reportCallIssue]
    return node


def is_pointwise(node: Node) -> bool:
    """Whether numbers in its value depend only on those in the same place."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def scalar(graph: Graph, value: float, like: Node) -> Node:
    """A number of the same dtype, as a node."""
    return _new(graph, aten.full.default, ([], value), like)


def arange(graph: Graph, count: int, like: Node) -> Node:
    """0, 1, ..., count - 1 of the same dtype."""
    return _new(graph, aten.arange.start_step, (0, count, 1), like)


def _new(graph: Graph, target: Any, args: tuple[Any, ...], like: Node) -> Node:
    value = value_of(like)
    kind = {"dtype": value.dtype, "device": value.device}
    node = graph.call_function(target, args, kind)
    with value.fake_mode:
        node.meta["val"] = target(*args, **kind)
    return node


def materialise(graph: Graph, node: Node) -> Node:
    """The same value, stored in the order of its dimensions rather than computed again wherever it is used."""
    strides = [math.prod(value_of(node).shape[d + 1 :]) for d in range(value_of(node).dim())]
    return add_node(graph, *force_contiguous(node, strides))


def reshape(graph: Graph, node: Node, shape: list[int]) -> Node:
    """The same numbers in another shape, copied only if they do not lie so."""
    value = value_of(node)
    try:
        with value.fake_mode:
            value.view(shape)
    except (RuntimeError, ValueError):
        node = add_node(graph, aten.clone.default, node, memory_format=torch.contiguous_format)
    return add_node(graph, aten.view.default, node, shape)


def storage_of(node: Any) -> Any:
    """The node whose storage a view shows, whole or in part; a plain copy counts as a view."""
    while isinstance(node, Node) and _is_view(node.target):
        node = node.args[0]
    return node


def is_same_storage(node: Node, old: Node) -> bool:
    """Whether a node is `old`, number by number, perhaps in another shape."""
    same = (aten.view.default, aten.unsqueeze.default, aten.detach.default, aten.clone.default)
    while node is not old and node.target in same:
        node = node.args[0]  # pyright: ignore[reportAssignmentType]
    return node is old


def _is_view(target: Any) -> bool:
    """Whether an operation returns a view: its schema says so of all but these two."""
    if target in (aten.clone.default, getitem):
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)
