"""Products with samples that are read where the data lie (products.py), rather than gathered for a matrix library."""

from typing import Any

import torch
from torch.fx import Graph, Node

from undrift.compiler.graph import VIEWS, add_node, aten, value_of
from undrift.compiler.kernels import enabled
from undrift.compiler.kernels.products import compiled_products, outputs

# where products of our own are faster than a library's:
LONG = 256  # along samples of so many numbers or more
MANY = 128  # and of so many or fewer of them to a client
# to add up samples of so many bytes a client, which are read again and again; a library takes more of them apart
MOST_BYTES = 2**18
# multiplications of all clients, from which on a call is faster than a loop in the compiled code
WORTH = 2**20


def are_ours(*matrices: Any) -> bool:
    """Whether there is code for matrices of this kind, and it is switched on."""
    if not enabled("own-products"):
        return False
    kinds = {(value_of(matrix).device.type, value_of(matrix).dtype) for matrix in matrices}
    (device, dtype), *others = kinds
    return not others and device == "cpu" and dtype in compiled_products()


def multiply_by_rows(graph: Graph) -> None:
    """Multiply samples with rows of a layer, both along memory, where these are long."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        X, W = node.args
        _, samples, length = value_of(X).shape
        fit = length >= LONG and samples <= MANY and value_of(W).stride(1) == 1
        if not fit or multiplications(node) < WORTH or not are_ours(W, X):
            continue
        with graph.inserting_before(node):
            rows = add_node(graph, aten.permute.default, W, [0, 2, 1])
            node.replace_all_uses_with(add_node(graph, outputs, *read_gathered(graph, X), rows))
        graph.erase_node(node)


def are_added(X: Any, *others: Any) -> bool:
    """Whether samples `[clients, samples, length]` can be added up by code of our own, with other matrices beside them."""
    return value_of(X)[0].nbytes <= MOST_BYTES and are_ours(X, *others)


def adds_samples(product: Any) -> bool:
    """Whether it is a sum of long samples that need not be gathered, large enough for a call: a layer's gradient."""
    A, X = product.args
    return are_long(X) and multiplications(product) >= WORTH and are_added(X, A)


def are_long(X: Any) -> bool:
    """Whether samples are worth reading where they lie."""
    return value_of(X).shape[2] >= LONG and gather_rows(X) is not None


def multiplications(product: Any) -> int:
    """In all matrices of a batch."""
    return value_of(product).numel() * value_of(product.args[0]).shape[2]


def read_gathered(graph: Graph, X: Node) -> tuple[Node, Node | None]:
    """Samples `[clients, samples, length]` as products of our own take them: with their numbers, if they are gathered."""
    found = gather_rows(X)
    if found is None:
        return X, None
    data, numbers = found
    return data, add_node(graph, aten.view.default, numbers, list(value_of(X).shape[:2]))


def gather_rows(X: Node) -> tuple[Node, Node] | None:
    """The data that samples are gathered from, and by which numbers, both given; None if they are computed."""
    node: Any = X
    while node.target in VIEWS or _is_one_of_many(node):
        if node.target is aten.permute.default:
            return None
        node = node.args[0]
    if node.target is not aten.index.Tensor:
        return None
    data, (numbers, *others) = node.args
    given = all(n.op == "placeholder" and value_of(n).is_contiguous() for n in (data, numbers))
    if others or not given or value_of(numbers).dtype != torch.int64:
        return None
    whole = value_of(data)[0].numel() == value_of(X).shape[2]
    return (data, numbers) if whole and value_of(node).numel() == value_of(X).numel() else None


def _is_one_of_many(node: Node) -> bool:
    """Whether it is one of several that are alike, such as the samples that runs have in common."""
    if node.target is not aten.select.int:
        return False
    of, dim, _ = node.args
    return value_of(of).stride(dim) == 0  # pyright: ignore[reportArgumentType]
