"""A whole visit, compiled: a pure function of tensors is traced once and cut where its loops are.

    segment   from the inputs to where the first loop starts, and what its body captures: a few operations, run as traced
    step      the body of the loop, a program that overwrites what is carried (step.py)
    ...       another segment and another loop, for every further one
    finish    what is returned, and what is written over the inputs: one more program

A call of something that cannot be traced, such as a client's full gradient, is a cut, too.  Nothing is guarded: another
round, another step size or another hyper-parameter runs the same programs, because all of them are inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from undrift.compiler import inductor, kernels
from undrift.compiler.graph import add_node, aten, is_pointwise, storage_of, value_of
from undrift.compiler.kernels.fuse_update import copy_if_overwritten
from undrift.compiler.kernels.max_pool import pool_by_windows
from undrift.compiler.layout import Layout, join, join_nodes, split_nodes
from undrift.compiler.step import CompiledStep, build_step

Body: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
Minibatch: TypeAlias = Sequence[Tensor]  # what one step is given besides what it carries and captures
Watch: TypeAlias = Callable[[int, list[Tensor]], None]


class CannotCompile(Exception):
    """Why something cannot be compiled."""


# Marks in a trace: where a loop begins and ends, and where something untraceable is called.


@torch.library.custom_op("undrift::loop_begin", mutates_args=())
def loop_begin(start: Sequence[Tensor]) -> list[Tensor]:
    raise RuntimeError("a loop is traced, never called")


@torch.library.custom_op("undrift::loop_end", mutates_args=())
def loop_end(new: Sequence[Tensor]) -> list[Tensor]:
    raise RuntimeError("a loop is traced, never called")


@torch.library.custom_op("undrift::call", mutates_args=())
def call(x: Tensor) -> Tensor:
    raise RuntimeError("a call is traced, never called")


for operator in (loop_begin, loop_end):
    operator.register_fake(lambda values: [t.new_empty(t.shape) for t in values])
call.register_fake(lambda x: x.new_empty(x.shape))

BEGIN, END, CALL = (op._opoverload for op in (loop_begin, loop_end, call))


class Tracer:
    """What a visit is given while it is traced, to make its loops and calls with."""

    def __init__(self, minibatches: Sequence[Minibatch]):
        self._minibatches = iter(minibatches)

    def loop(self, body: Body, start: Sequence[Tensor]) -> list[Tensor]:
        """Carry values through `body(carried, minibatch)`; returns what is carried last."""
        carried = loop_begin(list(start))
        new = list(body(carried, next(self._minibatches)))
        if [(t.shape, t.dtype) for t in new] != [(t.shape, t.dtype) for t in carried]:
            raise CannotCompile("a step returns other shapes or types than it was given")
        return loop_end(new)

    def call(self, x: Tensor) -> Tensor:
        """A function of x that is not traced; its value is laid out like x."""
        return call(x)


VisitFunction: TypeAlias = Callable[[Sequence[Tensor], Tracer], Sequence[Tensor]]


@dataclass(frozen=True)
class Loop:
    """A loop: what it starts from and captures is computed by `segment`."""

    segment: GraphModule
    carried: int  # pieces
    step: CompiledStep

    def __call__(self, given: list[Tensor], minibatches: Sequence[Minibatch], watch: Watch | None) -> list[Tensor]:
        values = self.segment(*given)
        carried, captured = values[: self.carried], values[self.carried :]
        prepared = self.step.prepare(captured)
        for k, minibatch in enumerate(minibatches):
            if watch is not None:
                watch(k, carried)
            self.step([*carried, *captured, *minibatch, *prepared])
        if watch is not None:
            watch(len(minibatches), carried)
        return carried


@dataclass(frozen=True)
class Call:
    """A call of something that is not traced."""

    segment: GraphModule

    def __call__(self, given: list[Tensor], function: Callable[[Tensor], Tensor]) -> Tensor:
        x = join(self.segment(*given))
        found = function(x)
        if (found.shape, found.dtype) != (x.shape, x.dtype):  # programs read memory, and ask nothing
            was, should = (f"{t.dtype} {list(t.shape)}" for t in (found, x))
            raise CannotCompile(f"a call returns {was} where {should} is needed")
        return found.contiguous()


@dataclass(frozen=True)
class CompiledVisit:
    """Programs of a visit, ready for whatever is laid out as what it was compiled with."""

    layout: Layout
    stages: tuple[Loop | Call, ...]
    finish: Callable[[list[Tensor]], Any]

    def __call__(
        self,
        inputs: Sequence[Tensor],
        minibatches: Sequence[Sequence[Minibatch]],
        calls: Sequence[Callable[[Tensor], Tensor]] = (),
        watch: Mapping[int, Watch] | None = None,
    ) -> list[Tensor]:
        """What the visit returns, after a number per row which is finite only if all of that row is.

        `minibatches` are those of every loop, step by step; `calls` are the functions that are called, one after another.
        `watch` looks at some loops, by number: it is called with k and the pieces carried before every step, and at the end.
        """
        given = [piece for t in inputs for piece in self.layout.split(t)]
        of_loops, of_calls = enumerate(minibatches), iter(calls)
        for stage in self.stages:
            if isinstance(stage, Loop):
                number, steps = next(of_loops)
                given += stage(given, steps, None if watch is None else watch.get(number))
            else:
                given += self.layout.split(stage(given, next(of_calls)))
        return self.finish(given)


def compile_visit(
    visit: VisitFunction,
    inputs: Sequence[Tensor],
    minibatches: Sequence[Minibatch],
    layout: Layout,
    overwritten: Sequence[int] = (),
) -> CompiledVisit:
    """Compile a visit for inputs, and minibatches of one step of every loop, that are laid out as these are.

    The last of what `visit` returns is written over these inputs, by number, and not returned.  Raises CannotCompile, or
    whatever torch raises, if the visit depends on the numbers in tensors.
    """
    pieces = [layout.split(t) for t in inputs]
    steps = [list(minibatch) for minibatch in minibatches]
    counts = [*map(len, pieces), *map(len, steps)]

    def on_pieces(*flat: Tensor) -> Sequence[Tensor]:
        parts = _chunks(flat, counts)
        whole = [join(part) for part in parts[: len(pieces)]]
        return visit(whole, Tracer(parts[len(pieces) :]))

    flat = [t for group in (*pieces, *steps) for t in group]
    module, mode = inductor.trace(on_pieces, flat, _rewrite_pooling)
    cutting = _Cutting(module, layout, sum(map(len, pieces)), steps, mode)
    ends = [0, *accumulate(map(len, pieces))]
    places = [place for number in overwritten for place in range(ends[number], ends[number + 1])]
    stages = tuple(cutting.stage(number) for number in range(len(cutting.marks)))
    return CompiledVisit(layout, stages, cutting.finish(places, len(overwritten)))


def _rewrite_pooling(graph: Graph) -> bool:
    return kernels.enabled("max-pool") and pool_by_windows(graph)


def _chunks(values: Sequence[Tensor], counts: Sequence[int]) -> list[list[Tensor]]:
    it = iter(values)
    return [[next(it) for _ in range(count)] for count in counts]


class _Cutting:
    """The graph of a visit, and the parts that are cut out of it."""

    def __init__(self, module: GraphModule, layout: Layout, inputs: int, steps: Sequence[Sequence[Tensor]], mode: Any):
        self.module, self.layout, self.mode = module, layout, mode
        self.nodes = list(module.graph.nodes)
        self.inputs = module.graph.find_nodes(op="placeholder")[:inputs]
        others = iter(module.graph.find_nodes(op="placeholder")[inputs:])
        self.minibatches = [[next(others) for _ in step] for step in steps]
        self.marks = [node for node in self.nodes if node.target in (BEGIN, CALL)]
        self.ends = [node for node in self.nodes if node.target is END]
        self.output = self.nodes[-1]
        self.bodies = self._bodies()

    def _bodies(self) -> dict[Node, tuple[Node, list[Node]]]:
        """For every loop its end, and the nodes of its body in the order in which they were traced."""
        found: dict[Node, tuple[Node, list[Node]]] = {}
        for begin, end in zip([m for m in self.marks if m.target is BEGIN], self.ends, strict=True):
            first, last = self.nodes.index(begin) + 1, self.nodes.index(end)
            found[begin] = end, self.nodes[first:last]
        return found

    def stage(self, number: int) -> Loop | Call:
        mark = self.marks[number]
        if mark.target is CALL:
            return Call(self._segment([mark.args[0]], number, fresh=0)[0])  # pyright: ignore[reportArgumentType]
        end, body = self.bodies[mark]
        loop = [node for node in self.marks if node.target is BEGIN].index(mark)
        start: Any = mark.args[0]
        captured = self._captured(body, end, loop)
        segment, counts = self._segment([*start, *captured], number, fresh=len(start))
        carried = sum(counts[: len(start)])
        step = self._step(mark, end, body, captured, loop, segment, counts)
        return Loop(segment, carried, step)

    def _captured(self, body: Sequence[Node], end: Node, loop: int) -> list[Node]:
        """What a body uses that is computed outside of it, but for its own minibatch."""
        inside = {*body, *self.minibatches[loop]}
        used = [node for each in (*body, end) for node in each.all_input_nodes]
        outside = [node for node in used if node not in inside and node.target is not BEGIN]
        return list(dict.fromkeys(node for node in outside if node.op != "get_attr"))

    def _copy(self, graph: Graph, known: dict[Node, Node], nodes: Sequence[Node]) -> None:
        """Copy nodes into a graph; those that are `known` are there already."""
        for node in nodes:
            if node in known or node.op == "output":
                continue
            for used in node.all_input_nodes:
                if used not in known and used.op == "get_attr":
                    known[used] = graph.node_copy(used, known.__getitem__)
            known[node] = graph.node_copy(node, known.__getitem__)

    def _outside(self, values: Sequence[Node], stages: int) -> GraphModule:
        """Values that are computed outside of loops, from the inputs and the results of the first stages."""
        graph = Graph()
        known = {node: _placeholder(graph, node.name, value_of(node)) for node in self.inputs}
        results: dict[Node, list[list[Node]]] = {}
        for number, mark in enumerate(self.marks[:stages]):
            results[mark] = [
                self._placeholders(graph, f"result_{number}_{j}", value, mark.target is BEGIN)
                for j, value in enumerate(self._results(mark))
            ]
        within = {node for _, body in self.bodies.values() for node in body}
        for node in self.nodes:
            if node.op == "placeholder" or node in within or node.target in (BEGIN, END):
                continue
            if node.target is CALL:
                if node in results:
                    known[node] = join_nodes(graph, results[node][0])
            elif node.args and isinstance(end := node.args[0], Node) and end.target is END:
                begin = self._begin_of(end)
                if begin in results:
                    known[node] = join_nodes(graph, results[begin][node.args[1]])  # pyright: ignore
            elif all(used in known or used.op == "get_attr" for used in node.all_input_nodes):
                self._copy(graph, known, [node])
        graph.output([known[value] for value in values])
        return inductor.eliminate_common_subexpressions(GraphModule(self.module, graph))

    def _results(self, mark: Node) -> list[Tensor]:
        if mark.target is CALL:
            return [value_of(mark)]
        return list(value_of(self.bodies[mark][0]))

    def _begin_of(self, end: Any) -> Node:
        return next(begin for begin, (other, _) in self.bodies.items() if other is end)

    def _placeholders(self, graph: Graph, name: str, value: Tensor, apart: bool) -> list[Node]:
        """Inputs of a graph for the pieces of a value: each in memory of its own, as a loop carries them, or parts of the whole."""
        with self.mode:
            pieces = self.layout.split(value)
            pieces = [p.new_empty(p.shape) for p in pieces] if apart else pieces
        return [_placeholder(graph, f"{name}_{j}", p) for j, p in enumerate(pieces)]

    def _segment(self, values: Sequence[Node], stages: int, fresh: int) -> tuple[GraphModule, list[int]]:
        """From inputs and earlier results to these values, in pieces; the first `fresh` of them may be overwritten."""
        module = self._outside(values, stages)
        graph = module.graph
        with graph.inserting_before(graph.output_node()):
            targets: Any = graph.output_node().args[0]
            split = split_nodes(module, self.layout, targets)
            pieces = [piece for some in split for piece in some]
            for j in range(sum(map(len, split[:fresh]))):
                if pieces.count(pieces[j]) > 1 or not _is_fresh(pieces[j]):
                    contiguous = {"memory_format": torch.contiguous_format}
                    pieces[j] = add_node(graph, aten.clone.default, pieces[j], **contiguous)
        _return(module, pieces)
        return module, list(map(len, split))

    def _step(
        self,
        begin: Node,
        end: Node,
        body: Sequence[Node],
        captured: Sequence[Node],
        loop: int,
        segment: GraphModule,
        counts: Sequence[int],
    ) -> CompiledStep:
        """The program of a loop's body."""
        graph = Graph()
        outputs: Any = segment.graph.output_node().args[0]
        examples = _chunks([value_of(node) for node in outputs], counts)
        inputs = [
            [_placeholder(graph, f"given_{i}_{j}", p) for j, p in enumerate(pieces)]
            for i, pieces in enumerate(examples)
        ]
        known = {
            node: _placeholder(graph, f"minibatch_{j}", value_of(node)) for j, node in enumerate(self.minibatches[loop])
        }
        start = len(begin.args[0])  # pyright: ignore[reportArgumentType]
        whole = [join_nodes(graph, pieces) for pieces in inputs]
        known |= dict(zip(captured, whole[start:], strict=True))
        for node in body:
            if node.args and node.args[0] is begin:
                known[node] = whole[node.args[1]]  # pyright: ignore
            else:
                self._copy(graph, known, [node])
        new: Any = end.args[0]
        graph.output([known[node] for node in new])
        carried = sum(counts[:start])
        module = GraphModule(self.module, graph)
        return build_step(module, self.layout, carried, sum(counts) - carried, self.mode)

    def finish(self, places: Sequence[int], kept: int) -> Callable[[list[Tensor]], Any]:
        """From inputs and the results of all stages to what is returned; the last `kept` values are written over inputs.

        Before what is returned comes a number per row, which is finite only if all of the row is.
        """
        module = self._outside(self.output.args[0], len(self.marks))  # pyright: ignore
        graph = module.graph
        own = [graph.find_nodes(op="placeholder")[place] for place in places]
        with graph.inserting_before(graph.output_node()):
            split = split_nodes(module, self.layout, graph.output_node().args[0])  # pyright: ignore
            returned, stored = split[: len(split) - kept], split[len(split) - kept :]
            sums = [add_node(graph, aten.sum.dim_IntList, p, [1]) for some in returned for p in some]
            total = reduce(partial(add_node, graph, aten.add.Tensor), sums)
            found = [join_nodes(graph, some) for some in returned]
            pairs = zip(own, (piece for some in stored for piece in some), strict=True)
            # Each apart first: what is kept in one place may have been remembered in another.
            for old, new in [(old, copy_if_overwritten(graph, n, old, own)) for old, n in pairs]:
                graph.call_function(aten.copy_.default, (old, new))
        _return(module, [total, *found])
        return inductor.compile_graph(module, self.mode, ())


def _placeholder(graph: Graph, name: str, value: Tensor) -> Node:
    """A new input of a graph, after all others."""
    inputs = graph.find_nodes(op="placeholder")
    with graph.inserting_after(inputs[-1]) if inputs else graph.inserting_before():
        node = graph.placeholder(name)
    node.meta["val"] = value
    return node


def _is_fresh(node: Node) -> bool:
    """Whether it was computed, or copied, and nothing else uses it."""
    others = 0
    while len(node.users) <= others and node.target is aten.view.default:
        node, others = node.args[0], 1  # pyright: ignore[reportAssignmentType]
    # What is computed in place has its storage elsewhere.
    computed = node.target is aten.clone.default or (is_pointwise(node) and storage_of(node) is node)
    return len(node.users) <= others and computed and value_of(node).is_contiguous()


def _return(module: GraphModule, values: list[Node]) -> None:
    module.graph.output_node().args = (values,)
    module.graph.eliminate_dead_code()
    module.recompile()
