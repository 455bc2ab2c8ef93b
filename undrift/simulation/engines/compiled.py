"""Visits that are compiled whole (undrift/compiler): of a chunk of clients at once, or of one client.

Chunks have few shapes: short minibatches are filled up with samples that have no share in the mean, and a chunk that lacks
clients with repeated ones.  So a run mostly needs the programs of one visit.  A visit that cannot be compiled is computed as
the batched engine, or one by one the sequential engine, computes it, after one line of notice.
"""

import logging
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from undrift.compiler import CannotCompile, CompiledVisit, compile_visit
from undrift.compiler.verify import Noise, attempts, noise, random_like, same_up_to_rounding
from undrift.core.algorithm import Algorithm
from undrift.core.errors import first_line
from undrift.core.records import map_tensors, rebuild, tensors
from undrift.core.work import Work
from undrift.problems.model import ModelProblem
from undrift.problems.protocols import HoldsValues
from undrift.simulation.aggregation import ClientResults
from undrift.simulation.engines.batched import chunks, visit_chunk
from undrift.simulation.engines.request import Engine, Request, ResultStream
from undrift.simulation.engines.row_check import DisturbedWork
from undrift.simulation.engines.sequential import in_threads, visit_one
from undrift.simulation.engines.tracing import TracedVisit, VisitSpec, add_rows, check_traceable

log = logging.getLogger("undrift")

T = TypeVar("T")

FEW = 10  # visits with the same values of the problem's code, which are not worth compiling for

# One program is built at a time, whoever needs it: torch's configuration meanwhile is that of the whole process.
BUILDING = Lock()


def compiled(request: Request) -> ResultStream:
    """Visit clients `chunk` at a time."""
    # Few numbers of rows, because each needs other programs: the chunk, or a power of two below it.
    rows_for = lambda n: min(request.chunk, 1 << (n - 1).bit_length())
    programs = programs_of(request.problem)
    for ids, rows in chunks(request.participants.clients, request.chunk, rows_for):
        found, state = programs.visit_rows(request, ids, rows, request.states.gather(rows), request.problem)
        yield found or visit_chunk(request, ids, rows, state)


def compiled_one_by_one(workers: int | None) -> Engine:
    """The same for one client at a time, with so many side by side; None: one after another, on all cores."""

    def engine(request: Request) -> ResultStream:
        programs = programs_of(request.problem)

        def visit(i: int, state: Any, problem: Any) -> ClientResults:
            found, state = programs.visit_rows(request, [i], [i], state, problem)
            return found or visit_one(request, i, state, problem)

        if workers is None:
            for i in request.participants.clients:
                yield visit(i, request.states.gather([i]), request.problem)
        else:
            yield from in_threads(visit, request, workers)

    return engine


class Programs:
    """The compiled visits of one problem, built when they are first needed and kept as long as the problem."""

    def __init__(self) -> None:
        self.specs: dict[Any, VisitSpec | CannotCompile] = {}
        self.visits: dict[Any, tuple[CompiledVisit, Any, Any] | CannotCompile] = {}
        self.noted: set[str] = set()
        self.traceable = self.holds_values = False
        self.held: Hashable = None  # values of the problem's code, at the last visit
        self.visits_with, self.hasty = 0, 0  # these values; how often they changed after a few visits

    def visit_rows(
        self, request: Request, ids: Sequence[int], rows: Sequence[int], state: Any, problem: Any
    ) -> tuple[ClientResults | None, Any]:
        """A visit of clients who have the first rows, whose new states are written over `state`.

        None if it cannot be compiled, or if something is not finite, and the states from which it starts uncompiled.
        """
        wire = request.exchange.wire
        client = state if wire is None else wire.client_of(state)
        work = request.work(rows, False, problem)
        down = map_tensors(lambda t: t.unsqueeze(0), request.down)
        may_sum = request.may_sum and wire is None
        weights = self._weights(request, ids, rows) if may_sum else None
        found = self.visit(request.algorithm, down, client, work, weights)
        if found is None:
            return None, state
        up, client, totals = found
        if not math.isfinite(float(totals.sum())):
            return None, request.states.gather(rows)
        if weights is not None:
            up = map_tensors(lambda t: t[0], up)
            return ClientResults(ids, up, _first(client, len(ids)), True, work.observed(len(ids))), state
        if wire is not None:
            up, client = request.exchange.pack(up, client, state, request.work(rows, False, problem))
        found = _first(up, len(ids)), _first(client, len(ids))
        return ClientResults(ids, *found, observed=work.observed(len(ids))), state

    def _weights(self, request: Request, ids: Sequence[int], rows: Sequence[int]) -> Tensor:
        of = dict(zip(request.participants.clients, request.participants.weights, strict=True))
        weights = [of[i] for i in ids] + [0.0] * (len(rows) - len(ids))
        return torch.tensor([weights], dtype=torch.float64)

    def visit(
        self, algorithm: Algorithm, down: Any, client: Any, work: Work, weights: Tensor | None
    ) -> tuple[Any, Any, Tensor] | None:
        """What clients send, their new states, and a number per row or run that is finite only if all of it is.

        With `weights`, `[groups, clients]`, what they send is added up, a row for each group and run.  New states are
        written over `client`.  None if the visit cannot be compiled.
        """
        try:
            if not self.traceable:  # once, since it takes as long as a small step
                check_traceable(work.problem)
                self.holds_values = isinstance(work.problem, HoldsValues)
                self.traceable = True
            problem: Any = work.problem
            held = problem.values_held() if self.holds_values else None
            self._check_settled(held)
            visit = TracedVisit(algorithm, down, client, work, weights)
            structure = visit.structure, held
        except CannotCompile as why:
            return self._note(why)
        with BUILDING:
            if structure not in self.specs:
                self.specs[structure] = attempt(visit.explore)
            spec = self.specs[structure]
            if isinstance(spec, CannotCompile):
                return self._note(spec)
            key = structure, visit.minibatch_forms(spec)
            if key not in self.visits:
                self.visits[key] = attempt(lambda: build_program(visit, spec))
            built = self.visits[key]
        if isinstance(built, CannotCompile):
            return self._note(built)
        program, up, kept = built
        return run_program(program, visit, spec, up, kept)

    def _check_settled(self, held: Hashable) -> None:
        """Raise CannotCompile while the values that the problem's code holds change all the time: each needs programs."""
        self.visits_with += 1
        if held == self.held:
            return
        self.hasty += self.held is not None and self.visits_with <= FEW
        self.held, self.visits_with = held, 0
        if self.hasty > 1:
            raise CannotCompile(
                "the loss, the model or what prepares samples holds values that change during the run; as an input, a target "
                "or a schedule of the method they would be compiled"
            )

    def _note(self, why: CannotCompile) -> None:
        """Report once that something is not compiled."""
        if str(why) not in self.noted:
            self.noted.add(str(why))
            log.warning("not compiled: %s", why)


def build_program(visit: TracedVisit, spec: VisitSpec) -> tuple[CompiledVisit, Any, Any]:
    """The programs of a visit, verified, with records like those that it returns."""
    examples = [visit.step_inputs(loop, only=1)[0] for loop in spec.loops]
    program = compile_visit(visit.function(spec), visit.inputs(spec), examples, visit.layout, visit.overwritten)
    up, kept = (map_tensors(lambda t: torch.empty(0), each) for each in (visit.up, visit.kept))
    verify_program(program, visit, spec, up, kept)
    return program, up, kept


def run_program(
    program: CompiledVisit, visit: TracedVisit, spec: VisitSpec, up: Any, kept: Any
) -> tuple[Any, Any, Tensor]:
    """One visit with compiled programs."""
    minibatches = [visit.step_inputs(loop) for loop in spec.loops]
    totals, *found = program(visit.inputs(spec), minibatches, visit.calls(spec), visit.watch(spec))
    client = rebuild(kept, iter(tensors(visit.state)))
    for t in tensors(client):  # read again rather than computed again, which takes longer
        by_run = t.view(*(1, len(t)) if visit.weights is None else visit.weights.shape, -1, t.shape[1])
        totals = totals + (t.sum(1) if visit.weights is None else by_run.sum((1, 3)).flatten())
    return rebuild(up, iter(found)), client, totals


def verify_program(program: CompiledVisit, visit: TracedVisit, spec: VisitSpec, up: Any, kept: Any) -> None:
    """Raise CannotCompile unless the program computes what the uncompiled visit does, from random states and messages."""

    def uncompiled(down: Any, client: Any, disturb: Noise) -> list[Tensor]:
        work = DisturbedWork(visit.work, disturb)
        sent, new = visit.local(map_tensors(visit.spread, down), client, work)
        weights = visit.weights
        sums = tensors(sent) if weights is None else [add_rows(t, weights) for t in tensors(sent)]
        return [*sums, *tensors(new)]

    for generator, scale in attempts(visit.problem.x0):
        like = partial(random_like, scale=scale, generator=generator)
        down, client = map_tensors(like, visit.down), map_tensors(like, visit.state)
        expected = uncompiled(down, client, lambda t: t)
        disturbed = uncompiled(down, client, noise(generator))
        own = map_tensors(torch.clone, client)  # which is written over
        work = copy(visit.work)
        work.path = None  # nothing of this is the run's
        again = TracedVisit(visit.algorithm, down, own, work, visit.weights)
        sent, new, _ = run_program(program, again, spec, up, kept)
        if same_up_to_rounding([*tensors(sent), *tensors(new)], expected, disturbed):
            return
    raise CannotCompile("its results differ from those of the uncompiled visit by more than rounding")


def attempt(make: Callable[[], T]) -> T | CannotCompile:
    """What can be compiled, or why it cannot."""
    try:
        with warnings.catch_warnings():  # torch warns of its own deprecated parts
            warnings.simplefilter("ignore")
            return make()
    except Exception as error:  # torch raises many kinds for what it cannot trace or compile
        if isinstance(error, CannotCompile):
            return CannotCompile(*error.args)  # a new one: the old holds all frames it was raised in
        return CannotCompile(f"{type(error).__name__}: {first_line(error)}")


def _first(record: Any, count: int) -> Any:
    return map_tensors(lambda t: t[:count] if len(t) > count else t, record)


PROGRAMS: WeakKeyDictionary[Any, Programs] = WeakKeyDictionary()


def programs_of(problem: Any) -> Programs:
    """The compiled visits of a problem, shared by all its runs."""
    return PROGRAMS.setdefault(problem, Programs())


def share_programs(problem: ModelProblem, like: ModelProblem) -> None:
    """Let a problem use what was captured and compiled for another, which differs in partition and first model only."""
    if not (problem.flat.frozen() or problem.flat.buffers()):  # which programs may hold
        problem.captured, problem.scored, PROGRAMS[problem] = like.captured, like.scored, programs_of(like)
