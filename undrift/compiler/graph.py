"""New nodes in a traced graph, which know the shape of their values as traced ones do."""

import math
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
VIEWS = (aten.view.default, aten.permute.default, aten.expand.default, aten.unsqueeze.default)


@torch.library.custom_op("undrift::copied", mutates_args=())
def copied(x: Tensor) -> Tensor:
    """A copy that stays one: TorchInductor takes `clone` for nothing, also where what is cloned is written over later."""
    return x.clone(memory_format=torch.contiguous_format)


@copied.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def value_of(node: Node) -> Any:
    """A tensor without numbers that has the shape, strides and dtype of what the node computes."""
    return node.meta["val"]


def made(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
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


def number(graph: Graph, value: float, like: Node) -> Node:
    """A number of the same kind."""
    return _new(graph, aten.full.default, ([], value), like)


def numbers(graph: Graph, count: int, like: Node) -> Node:
    """0, 1, ..., count - 1 of the same kind."""
    return _new(graph, aten.arange.start_step, (0, count, 1), like)


def _new(graph: Graph, target: Any, args: tuple[Any, ...], like: Node) -> Node:
    value = value_of(like)
    kind = {"dtype": value.dtype, "device": value.device}
    node = graph.call_function(target, args, kind)
    with value.fake_mode:
        node.meta["val"] = target(*args, **kind)
    return node


def written(graph: Graph, node: Node) -> Node:
    """The same, written down in the order of its dimensions rather than computed again wherever it is used."""
    from torch._inductor import inductor_prims

    strides = [math.prod(value_of(node).shape[d + 1 :]) for d in range(value_of(node).dim())]
    return made(graph, inductor_prims.force_stride_order, node, strides)


def reshaped(graph: Graph, node: Node, shape: list[int]) -> Node:
    """The same numbers in another shape, copied only if they do not lie so."""
    value = value_of(node)
    try:
        with value.fake_mode:
            value.view(shape)
    except (RuntimeError, ValueError):
        node = made(graph, aten.clone.default, node, memory_format=torch.contiguous_format)
    return made(graph, aten.view.default, node, shape)


def root_of(node: Any) -> Any:
    """What a node shows, whole or in part, or is a mere copy of."""
    while isinstance(node, Node) and _shows(node.target):
        node = node.args[0]
    return node


def is_place_of(node: Node, old: Node) -> bool:
    """Whether it is `old`, number by number, if perhaps in another shape."""
    same = (aten.view.default, aten.unsqueeze.default, aten.detach.default, aten.clone.default)
    while node is not old and node.target in same:
        node = node.args[0]  # pyright: ignore[reportAssignmentType]
    return node is old


def _shows(target: Any) -> bool:
    """Whether an operation only shows what is there: its schema says so of all but these two."""
    if target in (aten.clone.default, getitem):
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)
