"""GEMM epilogue fusion: y - lr (A B - c) is computed as y + lr c, in place, to which (-lr A) B is added.

A layer's gradient is the product of two thin matrices, [out, batch] and [batch, in].  Written out it is as large as the
layer itself, and on the way from the product to the update it goes through memory twice.  A matrix library adds a product
to what is there at no cost; the factor before it is taken to the thin side.

Gradients at two points on the same minibatch have the samples as a common matrix in the first layer: a A X + b A' X is one
product, (a A + b A') X.  A gradient that enters several vectors, each as a summand, is added to each.

Where y is moved by other vectors, too, such as control variates, these are added on the way to the product (products.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, Node

from undrift.compiler.graph import VIEWS, add_node, aten, copy, is_same_storage, reshape, scalar, storage_of, value_of
from undrift.compiler.kernels.gather import are_added, are_long, gather_rows, read_gathered
from undrift.compiler.kernels.products import summed_, weighted

convert_element_type = torch.ops.prims.convert_element_type.default  # TorchInductor has no program for _to_copy

Factor: TypeAlias = Any  # a number, or a node of one number or of one a row; None: one


@dataclass(frozen=True)
class Sum:
    """A value as factors times products, and the rest of it; None: no rest."""

    products: tuple[tuple[Factor, Node], ...]
    rest: Node | None


@dataclass(frozen=True)
class FusedUpdate:
    """A value as what is written first, and pairs of matrices whose products are then added to it."""

    first: Node | None
    pairs: tuple[tuple[Node, Node], ...]
    shape: list[int]  # of a product
    # in place of `first`, where products are our own: a vector that is added on the way to the first of them, and the
    # number before the old value; None: no vector, one
    summed: tuple[Node | None, Node | None] | None = None


def fuse(graph: Graph, new: Node, old: Node, summands: set[Node], written: Sequence[Node]) -> FusedUpdate | None:
    """How the value `new` can be made in the place of `old`; None if it is not a sum with products.

    `written` are all nodes whose places are written over: a product must not read them, and what of them is written first
    elsewhere is copied.
    """
    value = value_of(old)
    found = _sum(graph, new, value.shape[0], summands)
    read = {storage_of(matrix) for _, product in found.products for matrix in product.args}
    if not found.products or not value.is_contiguous() or read & {*written}:
        return None
    # the thin matrices that each other one is multiplied with, added up
    with_other: dict[Node, Node] = {}
    for factor, product in found.products:
        thin, other = _pair(graph, factor, product)
        also = with_other.get(other)
        with_other[other] = thin if also is None else add_node(graph, aten.add.Tensor, also, thin)
    pairs = tuple((thin, other) for other, thin in with_other.items())
    shape = list(value_of(found.products[0][1]).shape)
    if found.rest is None:
        return FusedUpdate(None, pairs, shape)
    vectors = _linear(graph, found.rest, value.shape[0])
    if vectors is not None and _is_summed(old, vectors, pairs, written):
        factor = vectors.pop(old)
        f = None if factor == 1.0 else _row(graph, [factor], old)
        v = None
        if vectors:
            v = add_node(graph, weighted, list(vectors), _row(graph, [*vectors.values()], old))
        return FusedUpdate(None, pairs, shape, (v, f))
    return FusedUpdate(copy_if_overwritten(graph, found.rest, old, written), pairs, shape)


def copy_if_overwritten(graph: Graph, new: Node, old: Node, written: Sequence[Node]) -> Node:
    """A new value that does not lie where something is written over before it is read."""
    safe = storage_of(new) not in written or is_same_storage(new, old)
    return new if safe else add_node(graph, copy._opoverload, new)


def summands_of(graph: Graph, values: Sequence[Node], rows: int) -> set[Node]:
    """The nodes of which nothing is made but sums that become new values, with numbers before them."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        used = node in values or len(node.users) > 0
        if used and all(_is_sum(user, node, rows) and user in found for user in node.users):
            found.add(node)
    return found


def _is_sum(user: Node, node: Node, rows: int) -> bool:
    """Whether `user` is a sum with this node in it, or shows it in another shape."""
    if user.target in (*VIEWS, aten.neg.default):
        return True
    if user.target in (aten.add.Tensor, aten.sub.Tensor):
        return not user.kwargs
    others = [each for each in user.args if each is not node]
    product = user.target in (aten.mul.Tensor, aten.mul.Scalar)
    return product and len(others) == 1 and _is_factor(others[0], rows)


def write(graph: Graph, old: Node, new: FusedUpdate) -> None:
    """Let the graph make a value in the place of `old`, after all that reads it."""
    if new.summed is not None:
        added = new.summed
        for a, b in new.pairs:
            graph.call_function(summed_, (old, *added, a, *read_gathered(graph, b)))
            added = None, None
        return
    if new.first is None:
        graph.call_function(aten.fill_.Scalar, (old, 0))
    elif new.first is not old:
        graph.call_function(aten.copy_.default, (old, new.first))
    for a, b in new.pairs:
        whole = graph.call_function(aten.view.default, (old, new.shape))
        graph.call_function(aten.baddbmm_.default, (whole, a, b))


def _is_summed(
    old: Node, vectors: dict[Node, Factor], pairs: Sequence[tuple[Node, Node]], written: Sequence[Node]
) -> bool:
    """Whether a value becomes a sum of itself, other vectors and products that are our own: with vectors that are added
    on the way, or with samples that need not be gathered."""
    others = [each for each in vectors if each is not old]
    read_again = {node for _, b in pairs for node in gather_rows(b) or ()}
    return (
        old in vectors
        and (len(others) > 0 or all(are_long(b) for _, b in pairs))
        and not read_again & {*written}
        and all(_is_like(each, old) and storage_of(each) not in written for each in others)
        and all(len(value_of(old)) % len(value_of(a)) == 0 for a, _ in pairs)  # whole rows in each
        and all(are_added(b, a, old) for a, b in pairs)
    )


def _is_like(vector: Node, old: Node) -> bool:
    """Whether the program is given it, in rows like those of `old`."""
    value, like = value_of(vector), value_of(old)
    return (
        storage_of(vector).op == "placeholder"
        and (value.shape, value.dtype) == (like.shape, like.dtype)
        and value.stride(1) == 1
    )


def _linear(graph: Graph, node: Any, rows: int) -> dict[Node, Factor] | None:
    """A sum of vectors that a program is given, with the number before each; None if it is none."""
    if not isinstance(node, Node):
        return None
    if storage_of(node).op == "placeholder":
        return {node: 1.0}
    if node.target in (aten.add.Tensor, aten.sub.Tensor) and not node.kwargs:
        a, b = (_linear(graph, each, rows) for each in node.args)
        if a is None or b is None:
            return None
        sign = -1.0 if node.target is aten.sub.Tensor else 1.0
        for each, factor in b.items():
            factor = _times(graph, factor, sign)
            a[each] = _plus(graph, a[each], factor) if each in a else factor
        return a
    if node.target is aten.neg.default:
        node, factor = node.args[0], -1.0
    elif node.target in (aten.mul.Tensor, aten.mul.Scalar):
        pairs = (node.args, node.args[::-1])
        node, factor = next((pair for pair in pairs if _is_factor(pair[1], rows)), (None, None))
    else:
        return None
    found = _linear(graph, node, rows)
    return found and {each: _times(graph, f, factor) for each, f in found.items()}


def _row(graph: Graph, factors: Sequence[Factor], like: Node) -> Node:
    """Numbers side by side, of the same kind as a vector: a row, or as many as there are of them."""
    nodes = [f if isinstance(f, Node) else scalar(graph, f, like) for f in factors]
    rows = max(len(value_of(node)) if value_of(node).dim() else 1 for node in nodes)
    wide = [add_node(graph, aten.expand.default, node, [rows, 1]) for node in nodes]
    dtype = value_of(like).dtype
    cast = lambda node: add_node(graph, convert_element_type, node, dtype)
    alike = [node if value_of(node).dtype == dtype else cast(node) for node in wide]
    return add_node(graph, aten.cat.default, alike, 1)


def _pair(graph: Graph, factor: Factor, product: Node) -> tuple[Node, Node]:
    """The matrices of a product, the first of them times a factor."""
    thin, other = product.args
    if isinstance(factor, Node) and value_of(factor).dim() == 2:
        # one a row: where runs share samples, a matrix holds several rows
        batch, height, samples = value_of(thin).shape  # pyright: ignore[reportArgumentType]
        runs = len(value_of(factor)) // batch
        apart = reshape(graph, thin, [batch, runs, height // runs, samples])  # pyright: ignore[reportArgumentType]
        each = add_node(graph, aten.view.default, factor, [batch, runs, 1, 1])
        scaled = add_node(graph, aten.mul.Tensor, apart, each)
        thin = reshape(graph, scaled, [batch, height, samples])
    elif factor is not None:
        thin = add_node(graph, aten.mul.Tensor, thin, factor)
    return thin, other  # pyright: ignore[reportReturnType]


def _sum(graph: Graph, node: Any, rows: int, summands: set[Node]) -> Sum:
    """A node as a sum; one that is used for something else, too, stays as it is."""
    if node not in summands or "val" not in node.meta:
        return Sum((), node)
    product = _product(node)
    if product in summands:
        return Sum(((None, product),), None)
    if node.target in (aten.add.Tensor, aten.sub.Tensor) and not node.kwargs:
        a, b = (_sum(graph, each, rows, summands) for each in node.args)
        if a.products or b.products:
            b = _scaled(graph, b, -1) if node.target is aten.sub.Tensor else b
            rests = [rest for rest in (a.rest, b.rest) if rest is not None]
            rest = add_node(graph, aten.add.Tensor, *rests) if len(rests) == 2 else next(iter(rests), None)
            return Sum((*a.products, *b.products), rest)
    elif node.target is aten.neg.default:
        return _scaled(graph, _sum(graph, node.args[0], rows, summands), -1)
    elif node.target in (aten.mul.Tensor, aten.mul.Scalar):
        for each, factor in (node.args, node.args[::-1]):
            found = _sum(graph, each, rows, summands)
            if found.products and _is_factor(factor, rows):
                return _scaled(graph, found, factor)
    return Sum((), node)


def _scaled(graph: Graph, found: Sum, factor: Factor) -> Sum:
    rest = None if found.rest is None else add_node(graph, aten.mul.Tensor, found.rest, factor)
    return Sum(tuple((_times(graph, f, factor), p) for f, p in found.products), rest)


def _times(graph: Graph, a: Factor, b: Factor) -> Factor:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Node) or isinstance(b, Node):
        return add_node(graph, aten.mul.Tensor, *((a, b) if isinstance(a, Node) else (b, a)))
    return a * b


def _plus(graph: Graph, a: Factor, b: Factor) -> Factor:
    if isinstance(a, Node) or isinstance(b, Node):
        return add_node(graph, aten.add.Tensor, *((a, b) if isinstance(a, Node) else (b, a)))
    return a + b


def _is_factor(value: Any, rows: int) -> bool:
    """Whether it is one number, or one a row."""
    if not isinstance(value, Node):
        return isinstance(value, int | float)
    return tuple(value_of(value).shape) in ((), (rows, 1))


def _product(node: Node) -> Node | None:
    """The batched product whose numbers these are, in the same order."""
    if not value_of(node).is_contiguous():
        return None
    while node.target in VIEWS:
        node = node.args[0]  # pyright: ignore[reportAssignmentType]
    return node if node.target is aten.bmm.default else None
