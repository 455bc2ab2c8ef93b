"""Products with samples that are read where the data lie (products.py), rather than gathered for a matrix library."""

from typing import Any

from torch.fx import Graph, Node

from undrift.engines.nodes import VIEWS, aten, made, value_of
from undrift.engines.products import MOST_BYTES, functions, outputs

LONG = 256  # numbers in a sample, from which on a product along them is faster than a library's
WORTH = (
    2**20
)  # multiplications of all clients, from which on a call is faster than a loop in the compiled code


def is_ours(*matrices: Any) -> bool:
    """Whether there is code for matrices of this kind, the last of which are samples: `[clients, samples, numbers]`."""
    values = [value_of(matrix) for matrix in matrices]
    samples = values[-1]
    return (
        samples.device.type == "cpu"
        and all(value.dtype == samples.dtype for value in values)
        and samples[0].nbytes <= MOST_BYTES
        and samples.dtype in functions()
    )


def multiply_by_rows(graph: Graph) -> None:
    """Multiply samples with rows of a layer, both along memory, where these are long."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        X, W = node.args
        along = value_of(X).shape[2] >= LONG and value_of(W).stride(1) == 1
        if not along or multiplications(node) < WORTH or not is_ours(W, X):
            continue
        with graph.inserting_before(node):
            rows = made(graph, aten.permute.default, W, [0, 2, 1])
            node.replace_all_uses_with(made(graph, outputs, *read(graph, X), rows))
        graph.erase_node(node)


def adds_samples(product: Any) -> bool:
    """Whether it is a sum of long samples that need not be gathered, large enough for a call: a layer's gradient."""
    A, X = product.args
    long = value_of(X).shape[2] >= LONG and gathered(X) is not None
    return long and multiplications(product) >= WORTH and is_ours(A, X)


def multiplications(product: Any) -> int:
    return value_of(product).numel() * value_of(product.args[0]).shape[2]


def read(graph: Graph, X: Node) -> tuple[Node, Node | None]:
    """Samples `[clients, samples, numbers]` as products of our own take them: with their numbers, if they are gathered."""
    found = gathered(X)
    if found is None:
        return X, None
    data, numbers = found
    return data, made(graph, aten.view.default, numbers, list(value_of(X).shape[:2]))


def gathered(X: Node) -> tuple[Node, Node] | None:
    """The data that samples are gathered from, and by which numbers; None if they are computed."""
    node: Any = X
    while node.target in VIEWS or _is_one_of_many(node):
        if node.target is aten.permute.default:
            return None
        node = node.args[0]
    if node.target is not aten.index.Tensor:
        return None
    data, (numbers, *others) = node.args
    each = value_of(data)[0].numel()
    if others or each != value_of(X).shape[2] or value_of(node).numel() != value_of(X).numel():
        return None
    return (data, numbers) if value_of(data).is_contiguous() else None


def _is_one_of_many(node: Node) -> bool:
    """Whether it is one of several that are alike, such as the samples that runs have in common."""
    if node.target is not aten.select.int:
        return False
    of, dim, _ = node.args
    return value_of(of).stride(dim) == 0  # pyright: ignore[reportArgumentType]
