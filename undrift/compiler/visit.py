"""A whole visit, compiled: `local` of a method is traced once, and cut in three where its loop is.

    before    where the loop starts, and what its step holds: a few operations, as they were traced
    step      the body of the loop, a program that writes over what is carried
    after     what the client sends and keeps: one more program, which also adds up over clients what they send, and writes
              what they keep over what they have remembered so far

So nothing of what is sent is written down client by client, and no more memory is touched than must be.  Methods with no
loop, several, or something beside it that must be computed (`work.full_grad`, `work.unit`) are not cut: their steps are
compiled and the rest is computed as it is written.
"""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import fields, replace
from functools import partial, reduce
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from undrift.compiler import program
from undrift.compiler.closures import held, rebound
from undrift.compiler.graph import aten, is_pointwise, made, root_of, value_of
from undrift.compiler.kernels.fuse_update import apart_from
from undrift.compiler.program import Layout, Pieces, in_pieces, traced
from undrift.compiler.steps import Minibatch, Program, fixed_of, layout_of
from undrift.compiler.verify import Noise, attempts, noise, random_like, same_up_to_rounding
from undrift.core.batched_scalar import BatchedScalar, is_zero
from undrift.core.records import fits, form_of, map_tensors, rebuild, tensors
from undrift.core.work import Refused, Work, in_turn
from undrift.simulation.engines.batched import Local

Columns: TypeAlias = tuple[tuple[str, BatchedScalar], ...]  # the solver's numbers that differ by row


@torch.library.custom_op("undrift::loop", mutates_args=())
def loop(start: Sequence[Tensor], inside: Sequence[Tensor]) -> list[Tensor]:
    """Marks in a trace where the loop is: what it starts from, and the tensors in its step."""
    raise RuntimeError("a loop is traced, never called")


@loop.register_fake
def _(start: Sequence[Tensor], inside: Sequence[Tensor]) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in start]


def columns_of(work: Work) -> Columns:
    """Those numbers of the solver that differ from row to row."""
    each = ((f.name, getattr(work.solver, f.name)) for f in fields(work.solver))
    return tuple((name, value) for name, value in each if isinstance(value, BatchedScalar))


def without(work: Work, columns: Columns) -> Work:
    """The same work with zeros for columns."""
    found = copy(work)
    found.solver = replace(work.solver, **{name: 0.0 for name, _ in columns})
    found.lr = found.solver.lr if columns else work.lr
    return found


def with_columns(work: Work, step: Callable[..., Any], columns: Columns) -> Callable[..., Any]:
    """The same step with columns in its closure, where a program looks for tensors."""
    if not columns:
        return step

    def stepped(*carried: Tensor) -> Any:
        work.solver = replace(work.solver, **dict(columns))
        work.lr = dict(columns).get("lr", work.lr)  # pyright: ignore[reportAttributeAccessIssue]
        return step(*carried)

    return stepped


class NotCut(Refused):
    """Why the visits of a method are never compiled whole."""


class _Traced(Work):
    """The work of a visit while it is traced: numbers are tensors, and the loop leaves a mark."""

    def __init__(self, work: Work, lr: Tensor, t: Tensor, K: Tensor, columns: Columns):
        self.__dict__.update(work.__dict__)
        self.solver = replace(work.solver, **dict(columns))
        rate: Any = 0.0 if is_zero(self.solver.lr) else lr  # a zero is one that methods may ask for
        self.columns, self.lr, self._t, self.K = columns, dict(columns).get("lr", rate), t, K
        self.step: Any = None  # that of the loop
        self.inside: Any = None  # what it holds

    def loop(self, step: Callable[..., Any], *start: Any, steps: int | None = None) -> Any:
        if steps is not None:
            raise NotCut("it makes another number of steps than the visit has")
        if self.step is not None:
            raise NotCut("it has several loops")
        self.step = with_columns(self, step, self.columns)
        self.inside = held(self.step)
        carried = loop(list(start), self.inside.tensors)
        return carried[0] if len(start) == 1 else carried

    def full_grad(self, x: Tensor) -> Tensor:
        raise NotCut("it takes whole gradients")

    @property
    def unit(self) -> Work:
        raise NotCut("it runs its solver on a number")


class Given:
    """What a visit is given, in the order in which its parts take it.

    Rows are ordered by group, client and run: all clients of a group are sent the same, `down` with a row for each of its
    runs.  A run alone is the only one of the only group.
    """

    def __init__(self, local: Local, down: Any, client: Any, work: Work, weights: Tensor):
        self.local, self.down, self.client = local, down, client
        self.weights = weights.to(work.K.device)
        self.columns, self.still = columns_of(work), is_zero(work.lr)
        self.work = without(work, self.columns)
        self.inside = held((local, self.columns))

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for visits that are alike but for their minibatches."""
        forms = form_of(self.down), form_of(self.client), form_of(self.weights)
        return self.inside.key, self.still, forms

    def pieces(self, layout: Layout) -> list[Pieces]:
        numbers = [self.work.lr, self.work.t, *self.inside.numbers]
        alone = torch.tensor(numbers, dtype=torch.float64, device=self.weights.device).unbind()
        vectors = (*tensors(self.down), *tensors(self.client), *self.inside.tensors)
        return [*map(layout.apart, vectors), *([t] for t in (*alone, self.work.K, self.weights))]

    @property
    def clients_own(self) -> tuple[int, int]:
        """Where among the vectors of `pieces` those that clients remember begin and end."""
        first = len(tensors(self.down))
        return first, first + len(tensors(self.client))

    def again(self, whole: Sequence[Tensor]) -> tuple[Local, Any, Any, "_Traced", Tensor]:
        """The same made of other tensors."""
        it = iter(whole)
        sent, client = rebuild(self.down, it), rebuild(self.client, it)
        down = map_tensors(partial(_spread, clients=self.weights.shape), sent)
        own = list(islice(it, len(self.inside.tensors)))
        lr, t, *numbers, K, weights = it
        local, columns = rebound((self.local, self.columns), iter(own), iter(numbers), self.work)
        return local, down, client, _Traced(self.work, lr, t, K, columns), weights


class Visit:
    """A visit that was traced and cut, ready to be made with whatever is laid out as what it was made of."""

    def __init__(self, given: Given, minibatches: Sequence[Minibatch], lives: list[Tensor] | None):
        self.layout, work = layout_of(given.work.problem), given.work
        self.up: Any = None  # records like those that come
        self.client: Any = None
        lent: Any = None  # with the loop's step; not kept, or the problem would live as long as its programs

        def visit(*whole: Tensor) -> list[Tensor]:
            nonlocal lent
            local, down, client, lent, weights = given.again(whole)
            self.up, self.client = local(down, client, lent)
            if lent.step is None:
                raise NotCut("it has no loop")
            if not fits(self.up, self.client, len(work.clients), work.problem.x0):
                raise NotCut("its answers are not vectors")
            if list(map(_kind, tensors(self.client))) != list(map(_kind, tensors(client))):
                raise NotCut("clients keep something else than they have been given")
            if not tensors(self.up):
                raise NotCut("clients send nothing")
            sums = [_added(t, weights) for t in tensors(self.up)]
            return [*sums, *tensors(self.client)]

        start = given.pieces(self.layout)
        module, _, mode = traced(visit, start)
        self.before, self.counts = _before(deepcopy(module), self.layout)
        self.carried = len(_mark(module.graph).args[0])  # pyright: ignore[reportArgumentType]
        self.numbers = lent.inside.numbers
        carried, inside = self._begun(start)
        fixed = [*inside, *self._fixed(work)]
        self.program = Program(
            work, lent.step, lent.inside, carried, fixed, minibatches, lives, whole=True
        )
        first, last = (sum(map(len, start[:count])) for count in given.clients_own)
        own = module.graph.find_nodes(op="placeholder")[first:last]
        after = _after(module, self.layout, len(tensors(self.up)), own)
        arguments = [value_of(node) for node in after.graph.find_nodes(op="placeholder")]
        self.after = program.built(after, arguments, mode)

    def __call__(
        self, given: Given, minibatches: Sequence[Minibatch], lives: list[Tensor] | None
    ) -> tuple[Any, Any, Tensor]:
        """What clients send, added up, a row for each run; what they keep, a row each, in the place of what they were given;
        and a number for each run, which is finite only if all of that is."""
        start = given.pieces(self.layout)
        carried, inside = self._begun(start)
        self.program(carried, [*inside, *self._fixed(given.work)], minibatches, lives)
        totals, *found = self.after([p for pieces in (*start, *carried) for p in pieces])
        up = rebuild(self.up, iter(found))
        client = rebuild(self.client, iter(tensors(given.client)))
        for kept in tensors(client):  # read again rather than computed again, which takes longer
            by_run = kept.view(*given.weights.shape, -1, kept.shape[1])
            totals = totals + by_run.sum((1, 3)).flatten()
        return up, client, totals

    def _begun(self, start: list[Pieces]) -> tuple[list[Pieces], list[Pieces]]:
        """Where the loop starts, and the tensors in its step."""
        found = iter(self.before(*[p for pieces in start for p in pieces]))
        each = [list(islice(found, count)) for count in self.counts]
        return each[: self.carried], each[self.carried :]

    def _fixed(self, work: Work) -> list[Pieces]:
        return [[t] for t in fixed_of(work, self.numbers)]


def verified(
    given: Given, work: Work, minibatches: Sequence[Minibatch], lives: list[Tensor] | None
) -> Visit:
    """A compiled visit that computes what the uncompiled one does, from random states and messages (verify.py)."""
    visit = Visit(given, minibatches, lives)

    def uncompiled(down: Any, client: Any, disturb: Noise) -> list[Tensor]:
        lent = copy(work)
        lent.runner = partial(in_turn, disturb=disturb)
        spread = map_tensors(partial(_spread, clients=given.weights.shape), down)
        up, kept = given.local(spread, client, lent)
        return [*(_added(t, given.weights) for t in tensors(up)), *tensors(kept)]

    for generator, scale in attempts(work.problem.x0):
        like = partial(random_like, scale=scale, generator=generator)
        down, client = map_tensors(like, given.down), map_tensors(like, given.client)
        expected = uncompiled(down, client, lambda t: t)
        disturbed = uncompiled(down, client, noise(generator))
        own = map_tensors(torch.clone, client)  # which is written over
        again = Given(given.local, down, own, work, given.weights)
        up, kept, _ = visit(again, minibatches, lives)
        if same_up_to_rounding([*tensors(up), *tensors(kept)], expected, disturbed):
            return visit
    raise Refused("its program computes something else, so torch compiles it wrongly")


def _spread(sent: Tensor, clients: Sequence[int]) -> Tensor:
    """What is sent to the runs of some groups, as a row for each client of each run."""
    groups, each = clients
    apart = sent.view(groups, 1, -1, sent.shape[1])
    return apart.expand(-1, each, -1, -1).reshape(-1, sent.shape[1])


def _added(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows of groups, clients and runs, in this order, added up over clients: a row for each group and run."""
    groups, clients = weights.shape
    each = rows.reshape(groups, clients, -1, rows.shape[1])
    return (weights.to(rows.dtype).view(groups, clients, 1, 1) * each).sum(1).flatten(0, 1)


def _kind(t: Tensor) -> tuple[torch.Size, torch.dtype]:
    return t.shape, t.dtype


def _mark(graph: Graph) -> Node:
    (mark,) = graph.find_nodes(op="call_function", target=torch.ops.undrift.loop.default)
    return mark


def _end(graph: Graph) -> Node:
    return next(iter(graph.find_nodes(op="output")))


def _counts(layout: Layout, nodes: Sequence[Node]) -> list[int]:
    return [len(layout.apart(value_of(node))) for node in nodes]


def _before(module: GraphModule, layout: Layout) -> tuple[GraphModule, list[int]]:
    """From what is given to where the loop starts, which is written over later, and what its step holds, in pieces."""
    graph, mark = module.graph, _mark(module.graph)
    start: Any = mark.args[0]
    inside: Any = mark.args[1]
    values = [*start, *inside]
    counts = _counts(layout, values)
    with graph.inserting_before(mark):
        pieces = in_pieces(module, layout, values, counts)
        for j in range(sum(counts[: len(start)])):
            if pieces.count(pieces[j]) > 1 or not _is_fresh(pieces[j]):
                whole = {"memory_format": torch.contiguous_format}
                pieces[j] = made(graph, aten.clone.default, pieces[j], **whole)
    _return(module, pieces)
    return module, counts


def _is_fresh(node: Node) -> bool:
    """Whether it was computed, or copied, and nothing else uses it."""
    others = 0
    while len(node.users) <= others and node.target is aten.view.default:
        node, others = node.args[0], 1  # pyright: ignore[reportAssignmentType]
    # what is computed in place has a root elsewhere
    computed = node.target is aten.clone.default or (is_pointwise(node) and root_of(node) is node)
    return len(node.users) <= others and computed and value_of(node).is_contiguous()


def _after(module: GraphModule, layout: Layout, sent: int, own: Sequence[Node]) -> GraphModule:
    """From what is given, and pieces of what the loop has led to, to what is sent; what is kept is written over `own`.

    Before what is sent comes a number for each run, which is finite only if all of it is.
    """
    graph, mark = module.graph, _mark(module.graph)
    start: Any = mark.args[0]
    new = {j: _vector(graph, layout, value_of(node)) for j, node in enumerate(start)}
    for user in list(mark.users):  # each takes one vector by its number
        user.replace_all_uses_with(new[user.args[1]])  # pyright: ignore[reportArgumentType]
    with graph.inserting_before(_end(graph)):
        values: Any = _end(graph).args[0]
        counts = _counts(layout, values)
        pieces = iter(in_pieces(module, layout, values, counts))
        apart = [list(islice(pieces, count)) for count in counts]
        numbers = [
            made(graph, aten.sum.dim_IntList, piece, [1]) for some in apart[:sent] for piece in some
        ]
        total = reduce(partial(made, graph, aten.add.Tensor), numbers)
        found = [_joined(graph, some) for some in apart[:sent]]
        kept = zip(own, (piece for some in apart[sent:] for piece in some), strict=True)
        # each apart first: what is kept in one place may have been remembered in another
        for old, new in [(old, apart_from(graph, new, old, own)) for old, new in kept]:
            graph.call_function(aten.copy_.default, (old, new))
    _return(module, [total, *found])
    return module


def _vector(graph: Graph, layout: Layout, like: Tensor) -> Node:
    """A vector that the graph is given in pieces, each whole in memory, after all else that it is given."""
    pieces = []
    with like.fake_mode:  # pyright: ignore[reportAttributeAccessIssue]
        empty = [p.new_empty(p.shape) for p in layout.apart(like)]
    for value in empty:
        given = graph.find_nodes(op="placeholder")
        with graph.inserting_after(given[-1]):
            pieces.append(graph.placeholder(f"carried_{len(given)}"))
        pieces[-1].meta["val"] = value
    with graph.inserting_before(_mark(graph)):
        return _joined(graph, pieces)


def _joined(graph: Graph, pieces: list[Node]) -> Node:
    return made(graph, aten.cat.default, pieces, 1) if len(pieces) > 1 else pieces[0]


def _return(module: GraphModule, values: list[Node]) -> None:
    _end(module.graph).args = (values,)
    module.graph.eliminate_dead_code()
    module.recompile()
