"""One step of a whole chunk, traced and compiled: the gradient, the method's own arithmetic, and who is done.

The step is traced once (make_fx) as a function of tensors: the vectors it carries, what its closure holds, the step size
and every other float, the minibatch.  Nothing of it is guarded or looked up again, so another round, another step size or
another beta runs the same code.  Vectors are cut where the model's parameters begin and end (`cut`), so that a layer's
gradient goes from the matrix product into the update without a copy; new values are written over old ones.  Products with
samples that several runs share are made one (sharing.py), those with long samples read them where they lie (gathering.py,
products.py), small ones are written as loops, and updates are folded into the others (folding.py), together with sums of
vectors that stay the same during all steps (hoisting.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

from undrift.compiler.graph import aten, is_pointwise, made, reshaped, value_of
from undrift.compiler.inductor import may_be_kept, settings
from undrift.compiler.kernels.fuse_update import apart_from, in_place, summands_of, write
from undrift.compiler.kernels.gather import adds_samples, multiply_by_rows
from undrift.compiler.kernels.hoist import taken_out
from undrift.compiler.kernels.max_pool import BACKWARD, POOL, pool_by_windows
from undrift.compiler.kernels.products import outputs, summed_
from undrift.compiler.kernels.shared_products import share, share_models
from undrift.problems.dropout import kept_compiled

LARGE = 2**17  # numbers in a chunk's vectors, from which on products are added to pieces in place
MOST_PIECES = 24  # beyond that, more calls cost more than the copies they save
SMALL_PRODUCT = 2**17  # multiplications, up to which a loop is faster than a library

ROW_VIEWS: dict[Any, Callable[[Graph, Node, list[int]], Node]] = {  # in which rows stay rows
    aten.view.default: reshaped,
    aten._unsafe_view.default: reshaped,
    aten.expand.default: lambda graph, node, shape: made(graph, aten.expand.default, node, shape),
}

# of a flat vector, a parameter each; of anything else, the thing itself
Pieces: TypeAlias = list[Tensor]


@dataclass(frozen=True)
class Layout:
    """How vectors of D numbers are handed to the program: in pieces, a parameter each."""

    D: int
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, D: int, sizes: Sequence[int]) -> "Layout":
        return cls(D, tuple(sizes) if len(sizes) <= MOST_PIECES else (D,))

    def is_flat(self, t: Tensor) -> bool:
        return t.dim() == 2 and t.shape[1] == self.D and len(self.sizes) > 1

    def apart(self, t: Tensor) -> Pieces:
        return list(t.split(self.sizes, 1)) if self.is_flat(t) else [t]

    def copied(self, t: Tensor) -> Pieces:
        """A copy to be written over: views of a whole, or each whole in memory, as large ones must be for products
        to be added to them."""
        if self.is_flat(t) and t.numel() >= LARGE:
            return [p.clone(memory_format=torch.contiguous_format) for p in self.apart(t)]
        return self.apart(t.clone(memory_format=torch.contiguous_format))


def joined(pieces: Sequence[Tensor]) -> Tensor:
    """The whole vector."""
    return torch.cat(list(pieces), 1) if len(pieces) > 1 else pieces[0]


def compile_step(
    step: Callable[..., Sequence[Tensor]],
    carried: Sequence[Pieces],
    steady: Sequence[Pieces],
    others: Sequence[Pieces],
    layout: Layout,
) -> "Compiled":
    """A program that overwrites carried with `step(carried, [*steady, *others])`, where steady is the same in all steps.

    It is made for values that are laid out as these are.
    """
    graph, arguments, mode = traced(
        lambda *whole: step(whole[: len(carried)], whole[len(carried) :]),
        [*carried, *steady, *others],
    )
    _in_batches(graph.graph)
    share(graph.graph)
    if arguments[0].device.type == "cpu":
        multiply_by_rows(graph.graph)
        _small_products(graph.graph)
    counts = [len(pieces) for pieces in carried]
    _write_back(graph, layout, counts)
    first, last = sum(counts), sum(counts) + sum(map(len, steady))
    ready, more = taken_out(graph, graph.graph.find_nodes(op="placeholder")[first:last])
    return Compiled(ready, built(graph, [*arguments, *more], mode))


@dataclass(frozen=True)
class Compiled:
    """A compiled step, and what makes ready, once for all steps, what stays the same in them."""

    _ready: GraphModule
    _step: Callable[[list[Tensor]], Any]

    def ready(self, steady: list[Tensor]) -> list[Tensor]:
        """What the step takes after all else."""
        return self._ready(*steady)

    def __call__(self, pieces: list[Tensor]) -> None:
        """Overwrite the first of [*carried, *steady, *others, *ready]."""
        self._step(pieces)


def built(graph: GraphModule, arguments: list[Tensor], mode: Any) -> Callable[[list[Tensor]], Any]:
    """Machine code for a graph, from TorchInductor, which keeps it on disk for later runs."""
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.lowering import lowerings, make_fallback
    from torch._inductor.virtualized import V

    for operator in (aten.baddbmm_.default, outputs, summed_):
        # torch does the same by itself, but raises where the environment has a variable CI, as on build servers
        if operator not in lowerings:
            make_fallback(operator, warn=False)
    asked = settings(
        assert_indirect_indexing=False,  # indices are ours, and right
        size_asserts=False,  # a step is compared with what it was made of when it is made
        realize_reads_threshold=16,  # arithmetic on a few vectors is rather repeated than written down
        fx_graph_cache=may_be_kept(graph),
    )
    with asked, V.set_fake_mode(mode), tracing(TracingContext(mode)):
        whole: Any = compile_fx_inner(graph, arguments, is_inference=True, cudagraphs=False)  # pyright: ignore[reportArgumentType]
    # the program itself, without the bookkeeping around it, which takes as long as a small step
    return getattr(whole, "current_callable", None) or whole


def traced(
    function: Callable[..., Any], values: Sequence[Pieces]
) -> tuple[GraphModule, list[Tensor], Any]:
    """The function's graph of elementary operations on the pieces of values that are laid out as these are.

    With it tensors without numbers that stand for the pieces, and the mode in which they exist.  Raises if the function
    depends on the numbers in tensors.
    """
    import torch._inductor.lowering  # noqa: F401 (which decompositions look up)
    from torch._functorch.compile_utils import fx_graph_cse
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    ends = list(accumulate(len(pieces) for pieces in values))

    def on_pieces(*pieces: Tensor) -> Any:
        begins = [0, *ends[:-1]]
        return function(*[joined(pieces[a:b]) for a, b in zip(begins, ends, strict=True)])

    # all shapes are known, but without an environment for others TorchInductor does not look for a program on disk
    known = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    shapes: dict[str, Any] = {"shape_env": known, "static_shapes": True}
    # what a model holds besides its parameters, such as frozen layers, is a part of the program
    with FakeTensorMode(allow_non_fake_inputs=True, **shapes) as mode:
        # each anew: a tensor that is given twice now may be two tensors the next time
        arguments = [
            torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=p.device)
            for pieces in values
            for p in pieces
        ]
        table = {**select_decomp_table(), torch.ops.undrift.kept.default: kept_compiled}
        pooling_whole = {op: way for op, way in table.items() if op not in (POOL, BACKWARD)}
        graph = make_fx(on_pieces, decomposition_table=pooling_whole)(*arguments)
        if not pool_by_windows(graph.graph):
            graph = make_fx(on_pieces, decomposition_table=table)(*arguments)
    # what is computed twice, such as the samples of two gradients, is computed once
    return GraphModule(graph, fx_graph_cse(graph.graph)), arguments, mode


def _in_batches(graph: Graph) -> None:
    """Write products of two matrices, which a step of one client has, as batches of one."""
    for node in graph.find_nodes(op="call_function", target=aten.mm.default):
        with graph.inserting_before(node):
            a, b = (made(graph, aten.unsqueeze.default, each, 0) for each in node.args)
            product = made(graph, aten.bmm.default, a, b)
            shape = list(value_of(node).shape)
            node.replace_all_uses_with(made(graph, aten.view.default, product, shape))
        graph.erase_node(node)


def _small_products(graph: Graph) -> None:
    """Write products so small that a loop in the compiled code is faster than a call of a library as loops."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        a, b = node.args
        (_, m, k), n = value_of(a).shape, value_of(b).shape[2]
        folded = value_of(node).numel() >= LARGE and adds_samples(node)
        if m * k * n > SMALL_PRODUCT or folded:
            continue
        with graph.inserting_before(node):
            if k > 64:  # long sums run along memory
                along, b = 3, made(graph, aten.permute.default, b, [0, 2, 1])
                a, b = (made(graph, aten.unsqueeze.default, x, d) for x, d in ((a, 2), (b, 1)))
            else:
                along = 2
                a, b = (made(graph, aten.unsqueeze.default, x, d) for x, d in ((a, 3), (b, 1)))
            each = made(graph, aten.mul.Tensor, a, b)
            node.replace_all_uses_with(made(graph, aten.sum.dim_IntList, each, [along]))
            graph.erase_node(node)


def _write_back(module: GraphModule, layout: Layout, counts: Sequence[int]) -> None:
    """Let the graph overwrite its first arguments, so many pieces each, with what it returned, piece by piece where it can."""
    graph = module.graph
    inputs = graph.find_nodes(op="placeholder")[: sum(counts)]
    output = next(node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        parts = in_pieces(module, layout, output.args[0], counts)
        output.args = (parts,)
        graph.eliminate_dead_code()  # whole vectors, which would still use their pieces
        share_models(graph)
        output.args = ((),)
        # an old value that is carried on elsewhere must be kept before it is written over
        pairs = zip(inputs, parts, strict=True)
        new = [apart_from(graph, n, old, inputs) for old, n in pairs]
        summands = summands_of(graph, new, len(value_of(inputs[0])))
        pairs = zip(inputs, new, strict=True)
        ways = [in_place(graph, n, old, summands, inputs) for old, n in pairs]
        for old, n, way in zip(inputs, new, ways, strict=True):
            if way is not None:
                write(graph, old, way)
            elif n is not old:
                graph.call_function(aten.copy_.default, (old, n))
    graph.set_codegen(CodeGen())
    graph.eliminate_dead_code()
    module.recompile()


def in_pieces(
    module: GraphModule, layout: Layout, values: Sequence[Node], counts: Sequence[int]
) -> list[Node]:
    """Vectors as the pieces they are made of."""
    pieces, edges = cut(module, layout), [0, *accumulate(layout.sizes)]
    parts: list[Node] = []
    for value, count in zip(values, counts, strict=True):
        own = pieces.get(value) or [value]
        if len(own) < count:
            ends = zip(edges, edges[1:], strict=False)
            own = [made(module.graph, aten.slice.Tensor, value, 1, a, b) for a, b in ends]
        parts += own
    return parts


def cut(module: GraphModule, layout: Layout) -> dict[Node, list[Node]]:
    """Compute elementwise arithmetic on flat vectors piece by piece, wherever the pieces are known.

    Whole vectors that nobody needs any more are dead code afterwards.
    """
    graph, sizes = module.graph, list(layout.sizes)
    pieces: dict[Node, list[Node]] = {}

    def is_flat(node: Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, Tensor) and value.dim() > 0 and value.shape[-1] == layout.D

    def is_last(node: Node, given: Sequence[Any]) -> bool:
        dim, dims = given[0] if given else 0, value_of(node).dim()
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
                    change(graph, piece, [*lead, size])
                    for piece, size in zip(pieces[node.args[0]], sizes, strict=True)
                ]
        elif is_flat(node) and _is_elementwise(node):
            flat = [each for each in node.all_input_nodes if is_flat(each)]
            if all(each in pieces for each in flat):
                pieces[node] = _elementwise(graph, node, flat, pieces, sizes)
    return pieces


def _is_elementwise(node: Node) -> bool:
    """Whether numbers in a vector depend only on those in the same place: arithmetic, and sums over rows."""
    if node.target is aten.sum.dim_IntList:
        value, dims = value_of(node.args[0]), node.args[1]  # pyright: ignore[reportArgumentType]
        return all(dim % value.dim() < value.dim() - 1 for dim in dims)  # pyright: ignore
    return node.target is aten.clone.default or is_pointwise(node)


def _elementwise(
    graph: Graph, node: Node, flat: list[Node], pieces: dict[Node, list[Node]], sizes: list[int]
) -> list[Node]:
    found = []
    with graph.inserting_before(node):
        for j in range(len(sizes)):
            mine = {each: pieces[each][j] for each in flat}
            args, kwargs = (
                map_arg(some, lambda each: mine.get(each, each))  # noqa: B023 (used at once)
                for some in (node.args, node.kwargs)
            )
            found.append(made(graph, node.target, *args, **kwargs))  # pyright: ignore[reportCallIssue]
    return found
