"""Max pooling as arithmetic on windows, which a compiler joins with what comes before and after it.

torch's kernel fills the gradient with zeros and scatters into it, and so does TorchInductor.  Where windows do not overlap,
the pixels that have one place in their windows are a strided slice; the maximum of these slices is the pooled image.  Which
slice is the first to have it, the winner, is written down; a window's gradient goes to its winner:

    s_ij = x[i::k, j::k]        p = max_ij s_ij        dx[i::k, j::k] = dp where ij is the winner, else 0

A ReLU before the pooling is moved behind it, since max relu(s) = relu(max s): there are k^2 times fewer numbers.  Results
are the same to the bit, gradients too: no pixel of a window without a positive one has any.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch.fx import Graph, Node

from undrift.compiler.graph import add_node, arange, aten, materialise, scalar, value_of

POOL, BACKWARD = aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
LARGEST = 64  # pixels of a window: each is an operation of the program
CONVOLUTION = aten.convolution_backward.default


def pool_by_windows(graph: Graph) -> bool:
    """Write all max pooling in the graph so; false if some cannot be, and nothing was done."""
    pools = graph.find_nodes(op="call_function", target=POOL)
    if not all(map(_has_windows, pools)):
        return False
    for pool in pools:
        _rewrite(graph, pool)
    graph.eliminate_dead_code()
    return True


def _has_windows(pool: Node) -> bool:
    """Whether windows are small and do not overlap, images lie channels last, and only gradients ask where maxima were."""
    x, kernel, stride, padding, dilation, ceil = _settings(pool)
    value = value_of(x)
    small = 1 < kernel[0] * kernel[1] <= LARGEST
    apart = kernel == stride and padding == [0, 0] and dilation == [1, 1] and not ceil
    channels_last = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
    return small and apart and channels_last and all(user.target is BACKWARD for user in _backs(pool))


def _settings(pool: Node) -> tuple[Any, list[int], list[int], list[int], list[int], bool]:
    x, kernel, *others = pool.args
    stride, padding, dilation, ceil = [*others, *([], [0], [1], False)[len(others) :]]
    lists: Any = (kernel, stride or kernel, padding, dilation)
    kernel, stride, padding, dilation = (list(each) * (2 // len(each)) for each in lists)
    return x, kernel, stride, padding, dilation, bool(ceil)


def _results(pool: Node, number: int) -> list[Node]:
    return [user for user in pool.users if user.args[1] == number]


def _backs(pool: Node) -> list[Node]:
    """The nodes of its gradient, which are told where the maxima were."""
    return [user for indices in _results(pool, 1) for user in indices.users]


def _rewrite(graph: Graph, pool: Node) -> None:
    x, (high, wide), *_ = _settings(pool)
    masked = _masked(x, pool)
    with graph.inserting_before(pool):
        # pixel by pixel, [images, rows, columns, channels], as they lie in memory
        pixels = add_node(graph, aten.permute.default, x.args[0] if masked else x, [0, 2, 3, 1])
        rows, columns = (side // k for side, k in zip(value_of(x).shape[2:], (high, wide), strict=True))
        slices = [
            _every(graph, _every(graph, pixels, 1, i, high, rows), 2, j, wide, columns)
            for i in range(high)
            for j in range(wide)
        ]
        largest = reduce(partial(add_node, graph, aten.maximum.default), slices)
        pooled = add_node(graph, aten.relu.default, largest) if masked else largest
        pooled, winner = _together(graph, pooled, _winner(graph, slices, largest))
        out = add_node(graph, aten.permute.default, pooled, [0, 3, 1, 2])
    for values in _results(pool, 0):
        values.replace_all_uses_with(out)
    for back in _backs(pool):
        with graph.inserting_before(back):
            g = add_node(graph, aten.permute.default, back.args[0], [0, 2, 3, 1])
            none = scalar(graph, 0, g)
            if masked:
                g = add_node(graph, aten.where.self, add_node(graph, aten.le.Scalar, pooled, 0), none, g)
            g = materialise(graph, g)
            total = add_node(graph, aten.sum.dim_IntList, g, [0, 1, 2])
            gradient = _spread(graph, g, winner, high, wide, value_of(x).shape[2:])
        for user in masked.get(back, ()) if masked else [back]:
            user.replace_all_uses_with(gradient)
        _give_sum(gradient, total)


def _give_sum(gradient: Node, total: Node) -> None:
    """Let convolutions not add up over all pixels, for the gradient of their bias, what is zero in all but one of a window."""
    for user in list(gradient.users):
        if user.target is CONVOLUTION and user.args[0] is gradient:
            *others, wanted = user.args
            of_input, of_weight, _ = wanted  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
            for result in _results(user, 2):
                result.replace_all_uses_with(total)
            user.args = (*others, [of_input, of_weight, False])


def _together(graph: Graph, *values: Node) -> list[Node]:
    """Values of one shape, written down in one go, so that what they are made of is read once."""
    apart = [add_node(graph, aten.unsqueeze.default, each, 0) for each in values]
    whole = materialise(graph, add_node(graph, aten.cat.default, apart))
    return [add_node(graph, aten.select.int, whole, 0, j) for j in range(len(values))]


def _winner(graph: Graph, slices: Sequence[Node], largest: Node) -> Node:
    """The number of the first slice that has the maximum, as a number of the same kind."""
    found = scalar(graph, len(slices) - 1, largest)
    for j in reversed(range(len(slices) - 1)):
        here = add_node(graph, aten.eq.Tensor, slices[j], largest)
        found = add_node(graph, aten.where.self, here, scalar(graph, j, largest), found)
    return found


def _spread(graph: Graph, g: Node, winner: Node, high: int, wide: int, size: Sequence[int]) -> Node:
    """Each window's gradient in the place of its winner; pixels that no window has are zero."""
    images, rows, columns, channels = value_of(g).shape
    apart = [images, rows, 1, columns, 1, channels]
    g, winner = (add_node(graph, aten.view.default, each, apart) for each in (g, winner))
    places = arange(graph, high * wide, g)
    places = add_node(graph, aten.view.default, places, [1, 1, high, 1, wide, 1])
    here = add_node(graph, aten.eq.Tensor, winner, places)
    whole = add_node(graph, aten.where.self, here, g, scalar(graph, 0, g))
    pixels = add_node(graph, aten.view.default, whole, [images, rows * high, columns * wide, channels])
    below, beside = size[0] - rows * high, size[1] - columns * wide
    if below or beside:
        pixels = add_node(graph, aten.constant_pad_nd.default, pixels, [0, 0, 0, beside, 0, below], 0)
    return add_node(graph, aten.permute.default, pixels, [0, 3, 1, 2])


def _masked(x: Node, pool: Node) -> dict[Node, list[Node]] | None:
    """If x is a ReLU's that only this pooling uses: for the nodes of the pooling's gradient, those of the ReLU's."""
    if x.target is not aten.relu.default:
        return None
    backs, found = _backs(pool), {}
    masks = [user for user in x.users if user is not pool and user not in backs]
    if not all(mask.target is aten.le.Scalar and mask.args[1] == 0 for mask in masks):
        return None
    for mask in masks:
        for where in mask.users:
            if where.target is not aten.where.self or where.args[0] is not mask or where.args[2] not in backs:
                return None
            found.setdefault(where.args[2], []).append(where)
    alone = all(set(back.users) == set(found.get(back, ())) for back in backs)
    return found if alone else None


def _every(graph: Graph, node: Node, dim: int, start: int, step: int, count: int) -> Node:
    return add_node(graph, aten.slice.Tensor, node, dim, start, start + step * (count - 1) + 1, step)
