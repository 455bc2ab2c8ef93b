"""One step of a whole chunk, traced and compiled: the gradient, the method's own arithmetic, and who is done.

The step is traced once (make_fx) as a function of tensors: the vectors it carries, what its closure holds, the step size
and every other float, the minibatch.  Nothing of it is guarded or looked up again, so another round, another step size or
another beta runs the same code.  Vectors are cut where the model's parameters begin and end (`cut`), so that a layer's
gradient goes from the matrix product into the update without a copy; new values are written over old ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

aten = torch.ops.aten

MOST_PIECES = 24  # beyond that, more calls cost more than the copies they save
SMALL_PRODUCT = 2**17  # multiplications, up to which a loop is faster than a library


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

    def apart(self, t: Tensor) -> list[Tensor]:
        return list(t.split(self.sizes, 1)) if self.is_flat(t) else [t]

    def joined(self, pieces: list[Tensor], like: Tensor) -> Tensor:
        return torch.cat(pieces, 1) if self.is_flat(like) else pieces[0]


def compile_step(
    step: Callable[..., Sequence[Tensor]],
    carried: Sequence[Tensor],
    others: Sequence[Tensor],
    layout: Layout,
) -> Callable[[list[Tensor]], Any]:
    """A program that takes [*pieces of carried, *pieces of others] and overwrites carried with `step(carried, others)`."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    examples = [*carried, *others]
    counts = [len(layout.apart(t)) for t in examples]
    starts = [0, *accumulate(counts)]

    def on_pieces(*pieces: Tensor) -> Sequence[Tensor]:
        whole = [
            layout.joined(list(pieces[a : a + n]), t)
            for a, n, t in zip(starts, counts, examples, strict=False)
        ]
        return step(whole[: len(carried)], whole[len(carried) :])

    mode = FakeTensorMode()
    pieces = [piece for t in examples for piece in layout.apart(t)]
    with mode:  # each anew: a tensor that is given twice now may be two tensors the next time
        arguments = [
            torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=p.device) for p in pieces
        ]
    graph = traced(on_pieces, mode, arguments)
    written = sum(counts[: len(carried)])
    _write_back(graph, layout, counts[: len(carried)], written)
    return built(graph, arguments, mode)


def built(graph: GraphModule, arguments: list[Tensor], mode: Any) -> Callable[[list[Tensor]], Any]:
    """Machine code for a graph, from TorchInductor, which keeps it on disk for later runs."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    # one process, because a pool of compilers would outlive the run; indices and shapes are ours, and right
    quiet = config.patch(compile_threads=1, assert_indirect_indexing=False, size_asserts=False)
    with quiet, V.set_fake_mode(mode), tracing(TracingContext(mode)):
        made: Any = compile_fx_inner(graph, arguments, is_inference=True, cudagraphs=False)  # pyright: ignore[reportArgumentType]
    # the program itself, without the bookkeeping around it, which takes as long as a small step
    return getattr(made, "current_callable", None) or made


def traced(function: Callable[..., Any], mode: Any, arguments: Sequence[Tensor]) -> GraphModule:
    """The function's graph of elementary operations; raises if it depends on the values of tensors."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    table = dict(select_decomp_table())
    if arguments[0].device.type == "cpu":
        table[aten.bmm.default] = _small_product
    with mode:
        return make_fx(function, decomposition_table=table)(*arguments)


def _small_product(a: Tensor, b: Tensor) -> Any:
    """A product so small that a loop in the compiled code is faster than a call of a library."""
    m, k, n = *a.shape[1:], b.shape[2]
    if m * k * n > SMALL_PRODUCT:
        return NotImplemented
    if k > 64:  # long sums run along memory
        return (a.unsqueeze(2) * b.mT.unsqueeze(1)).sum(3)
    return (a.unsqueeze(3) * b.unsqueeze(1)).sum(2)


def _write_back(module: GraphModule, layout: Layout, counts: Sequence[int], written: int) -> None:
    """Let the graph overwrite its first arguments with what it returned, piece by piece where it can."""
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"][:written]
    output = next(node for node in graph.nodes if node.op == "output")
    pieces = cut(module, layout)
    edges = [0, *accumulate(layout.sizes)]
    parts: list[Node] = []
    with graph.inserting_before(output):
        for new, count in zip(output.args[0], counts, strict=True):
            own = pieces.get(new) or [new]
            if len(own) < count:
                ends = zip(edges, edges[1:], strict=False)
                own = [graph.call_function(aten.slice.Tensor, (new, 1, a, b)) for a, b in ends]
            # an old value that is carried on elsewhere must be kept before it is written over
            parts += [
                graph.call_function(aten.clone.default, (n,)) if n in inputs else n for n in own
            ]
        for old, new in zip(inputs, parts, strict=True):
            graph.call_function(aten.copy_.default, (old, new))
    output.args = ((),)
    graph.set_codegen(CodeGen())
    graph.eliminate_dead_code()
    module.recompile()


def cut(module: GraphModule, layout: Layout) -> dict[Node, list[Node]]:
    """Compute elementwise arithmetic on flat vectors piece by piece, wherever the pieces are known.

    Whole vectors that nobody needs any more are dead code afterwards.
    """
    graph, sizes = module.graph, list(layout.sizes)
    pieces: dict[Node, list[Node]] = {}

    def is_flat(node: Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, Tensor) and layout.is_flat(value)

    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.cat.default and is_flat(node):
            parts: Any = node.args[0]
            if [part.meta["val"].shape[1] for part in parts] == sizes:
                pieces[node] = list(parts)
        elif node.target is aten.split_with_sizes.default and node.args[0] in pieces:
            if list(node.args[1]) == sizes:
                for user in list(node.users):  # each takes one piece by its number
                    user.replace_all_uses_with(pieces[node.args[0]][user.args[1]])
        elif is_flat(node) and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            flat = [each for each in node.all_input_nodes if is_flat(each)]
            if all(each in pieces for each in flat):
                pieces[node] = _elementwise(graph, node, flat, pieces, sizes)
    return pieces


def _elementwise(
    graph: torch.fx.Graph,
    node: Node,
    flat: list[Node],
    pieces: dict[Node, list[Node]],
    sizes: list[int],
) -> list[Node]:
    found = []
    with graph.inserting_before(node):
        for j, size in enumerate(sizes):
            mine = {each: pieces[each][j] for each in flat}
            args, kwargs = (
                map_arg(some, lambda each: mine.get(each, each))  # noqa: B023 (used at once)
                for some in (node.args, node.kwargs)
            )
            new = graph.call_function(node.target, args, kwargs)  # pyright: ignore[reportArgumentType]
            new.meta["val"] = node.meta["val"].narrow(1, 0, size)
            found.append(new)
    return found
