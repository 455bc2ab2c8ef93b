"""Visits that are compiled whole (`visit.py`), or whose steps are (`steps.py`): of a cohort at once, or of one client.

Chunks have few shapes: short minibatches are filled up with samples that have no share in the mean, and a chunk that lacks
clients with repeated ones.  So a run mostly needs one program for its steps and one for what comes after them.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from undrift.compiler.closures import held
from undrift.compiler.program import joined
from undrift.compiler.steps import (
    Program,
    Step,
    alike,
    fixed_of,
    layout_of,
    lives_of,
    traceable,
    tried,
)
from undrift.compiler.visit import Given, NotCut, Visit, verified
from undrift.core.records import form_of, map_tensors
from undrift.core.work import Carried, Refused, Work, in_turn
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines.batched import Local, Result, chunks, same, visited
from undrift.simulation.engines.sequential import in_threads, visit_one

log = logging.getLogger("undrift")

# one program at a time, whoever needs it: torch's settings meanwhile are those of the process
MAKING = Lock()


@dataclass(frozen=True)
class Added:
    """What some clients sent, added up with their weights, and found finite."""

    record: Any


def compiled(
    local: Local,
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
    weights: Sequence[float] | None = None,
) -> Iterator[Result]:
    """Visit clients `chunk` at a time with compiled steps; with weights what they send is added up, if it can be."""
    # few numbers of rows, because each is another program: the chunk, or a power of two below it
    rows = lambda n: min(chunk, 1 << (n - 1).bit_length())
    downs, weight_of = same(down), _weights(clients, weights)
    for ids, here in chunks(clients, chunk, rows):
        client, work = states.gather(here), lend(here, False)
        compiler = compiler_of(work.problem)
        try:
            whole = compiler.added(local, down, client, work, ids, weight_of)
        except Spoilt:
            whole, client = None, states.gather(here)
        yield whole or visited(local, downs(here), client, work, ids, compiler.run)


def one_by_one(workers: int | None) -> Callable[..., Iterator[Result]]:
    """The same for one client at a time, with so many workers side by side; None: one after another, on all cores.

    A visit that cannot be compiled is made as the sequential engine makes it.
    """

    def engine(
        local: Local,
        down: Any,
        states: ClientStates,
        clients: Sequence[int],
        lend: Callable[[Sequence[int], bool], Work],
        chunk: int,
        weights: Sequence[float] | None = None,
    ) -> Iterator[Result]:
        original = lend(clients[:1], False).problem
        compiler, weight_of = compiler_of(original), _weights(clients, weights)

        def visit(i: int, client: Any, problem: Any) -> Result:
            work = lend([i], False)
            work.problem = problem
            try:
                whole = compiler.added(local, down, client, work, [i], weight_of)
            except Spoilt:
                whole, client = None, states.gather([i])
            if whole is not None:
                return whole
            try:
                return visited(local, same(down)([i]), client, work, [i], compiler.strictly)
            except Refused as why:
                compiler.note(why)
                work = lend([i], True)
                work.problem = problem
                return visit_one(local, down, client, i, work)

        if workers is None:
            yield from (visit(i, states.gather([i]), original) for i in clients)
        else:
            yield from in_threads(visit, states, clients, original, workers)

    return engine


def _weights(clients: Sequence[int], weights: Sequence[float] | None) -> dict[int, float] | None:
    return None if weights is None else dict(zip(clients, weights, strict=True))


class Spoilt(Exception):
    """Something in a visit is not finite, and has been written over what clients remember."""


def _first(record: Any, count: int) -> Any:
    return map_tensors(lambda t: t[:count] if len(t) > count else t, record)


class Compiler:
    """The compiled visits and steps of one problem, made when they are first needed and kept as long as the problem."""

    def __init__(self) -> None:
        self.programs: dict[Any, Program | Refused] = {}
        self.visits: dict[Any, Visit | Refused] = {}  # by all of a visit, or by the method if never
        self.refusals: set[str] = set()

    def run(self, work: Work, step: Step, start: Carried, steps: Sequence[int]) -> Carried:
        """Make the steps with a compiled program; in turn, after one line of notice, if there can be none."""
        try:
            return self.strictly(work, step, start, steps)
        except Refused as why:
            self.note(why)
            return in_turn(work, step, start, steps)

    def note(self, why: Refused) -> None:
        """Say once that something is not compiled."""
        if str(why) not in self.refusals:
            self.refusals.add(str(why))
            log.warning("not compiled, computed step by step instead: %s", why)

    def added(
        self,
        local: Local,
        down: Any,
        client: Any,
        work: Work,
        ids: Sequence[int],
        weight_of: dict[int, float] | None,
    ) -> Result | None:
        """A visit of clients who have the first rows, with what they send added up; None if that cannot be compiled.

        What clients keep is written over what they remember, `client`; raises Spoilt if something is not finite.
        """
        if weight_of is None:
            return None
        weights = [weight_of[i] for i in ids]
        weights += [0.0] * (len(work.clients) - len(ids))
        sent = map_tensors(lambda t: t.unsqueeze(0), down)
        found = self.visit(local, sent, client, work, torch.tensor([weights], dtype=torch.float64))
        if found is None:
            return None
        up, kept, total = found
        if not math.isfinite(float(total)):
            raise Spoilt
        return ids, Added(map_tensors(lambda t: t[0], up)), _first(kept, len(ids))

    def visit(
        self, local: Local, down: Any, client: Any, work: Work, weights: Tensor
    ) -> tuple[Any, Any, Tensor] | None:
        """What clients send, added up, what they keep, and which runs are finite; None if the visit is not compiled whole.

        What clients keep is written over what they remember, `client`.
        """
        given = Given(local, down, client, work, weights)
        if given.inside.key in self.visits or not hasattr(work.problem, "grad_of"):
            return None
        problem, steps = cast(Any, work.problem), work._steps
        minibatches = problem.inputs(work._drawn(steps), max(steps), work.solver.batch)
        lives = lives_of(work, steps)
        key = (given.key, *alike(given.work, minibatches[0], lives))
        with MAKING:
            if key not in self.visits and given.inside.key not in self.visits:
                made = tried(lambda: verified(given, work, minibatches, lives))
                if isinstance(made, Refused):
                    log.info("visits are not compiled whole, only their steps: %s", made)
                self.visits[given.inside.key if isinstance(made, NotCut) else key] = made
        visit = self.visits.get(key)
        return visit(given, minibatches, lives) if isinstance(visit, Visit) else None

    def strictly(self, work: Work, step: Step, start: Carried, steps: Sequence[int]) -> Carried:
        """Make the steps with a compiled program; raises Refused if there can be none."""
        problem, layout = traceable(work), layout_of(work.problem)
        minibatches = problem.inputs(work._minibatches, max(steps), work.solver.batch)
        lives, inside = lives_of(work, steps), held(step)
        key = (inside.key, tuple(map(form_of, start)), *alike(work, minibatches[0], lives))
        carried = [layout.copied(t) for t in start]
        fixed = [layout.apart(t) for t in (*inside.tensors, *fixed_of(work, inside.numbers))]
        with MAKING:
            if key not in self.programs:
                self.programs[key] = tried(
                    lambda: Program(work, step, inside, carried, fixed, minibatches, lives)
                )
        program = self.programs[key]
        if isinstance(program, Refused):
            raise Refused(
                *program.args
            )  # anew: one that is kept would keep all that it was raised in
        program(carried, fixed, minibatches, lives)
        return tuple(map(joined, carried))


COMPILERS: WeakKeyDictionary[Any, Compiler] = WeakKeyDictionary()


def compiler_of(problem: Any) -> Compiler:
    """The compiler of a problem, shared by all its runs."""
    return COMPILERS.setdefault(problem, Compiler())
