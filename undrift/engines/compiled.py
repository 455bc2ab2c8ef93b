"""The cohort as one computation whose visits are compiled (`visit.py`), or at least their steps (`steps.py`).

Chunks have few shapes: short minibatches are filled up with samples that have no share in the mean, and a chunk that lacks
clients with repeated ones.  So a run mostly needs one program for its steps and one for what comes after them.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from undrift.core import form_of, map_tensors
from undrift.engines.batched import Local, chunks, same, visited
from undrift.engines.closures import held
from undrift.engines.program import joined
from undrift.engines.steps import (
    Program,
    Refused,
    Step,
    alike,
    fixed_of,
    layout_of,
    lives_of,
    traceable,
    tried,
)
from undrift.engines.visit import Given, NotCut, Visit
from undrift.states import ClientStates
from undrift.work import Carried, Runner, Work, in_turn

log = logging.getLogger("undrift")


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
) -> Iterator[tuple[Sequence[int], Any, Any]]:
    """Visit clients `chunk` at a time with compiled steps; with weights what they send is added up, if it can be."""
    run: Runner = lambda work, *given: compiler_of(work.problem).run(work, *given)
    # few numbers of rows, because each is another program: the chunk, or a power of two below it
    rows = lambda n: min(chunk, 1 << (n - 1).bit_length())
    downs, sent = same(down), map_tensors(lambda t: t.unsqueeze(0), down)
    for ids, here in chunks(clients, chunk, rows):
        client, work = states.gather(here), lend(here, False)
        if weights is not None:
            mine = [*weights[: len(ids)], *[0.0] * (len(here) - len(ids))]
            weights = weights[len(ids) :]
            of_all = torch.tensor([mine], dtype=torch.float64)
            found = compiler_of(work.problem).visit(local, sent, client, work, of_all)
            if found is not None and math.isfinite(float(found[2])):
                up, kept, _ = found
                yield ids, Added(map_tensors(lambda t: t[0], up)), _first(kept, len(ids))
                continue
        yield visited(local, downs(here), client, work, ids, run)


def _first(record: Any, count: int) -> Any:
    return map_tensors(lambda t: t[:count] if len(t) > count else t, record)


class Compiler:
    """The compiled visits and steps of one problem, made when they are first needed and kept as long as the problem."""

    def __init__(self) -> None:
        self.programs: dict[Any, Program | Refused] = {}
        self.visits: dict[Any, Visit | Refused] = {}  # by all of a visit, or by the method if never
        self.kept: list[Any] = []  # what keys know by identity must not be replaced by others
        self.refusals: set[str] = set()

    def run(self, work: Work, step: Step, start: Carried, steps: Sequence[int]) -> Carried:
        """Make the steps with a compiled program; in turn, after one line of notice, if there can be none."""
        try:
            return self._run(work, step, start, steps)
        except Refused as why:
            if str(why) not in self.refusals:
                self.refusals.add(str(why))
                log.warning("not compiled, computed step by step instead: %s", why)
            return in_turn(work, step, start, steps)

    def visit(
        self, local: Local, down: Any, client: Any, work: Work, weights: Tensor
    ) -> tuple[Any, Any, Tensor] | None:
        """What clients send, added up, what they keep, and which runs are finite; None if the visit is not compiled whole."""
        given = Given(local, down, client, work, weights)
        if given.inside.key in self.visits or not hasattr(work.problem, "grad_of"):
            return None
        problem, steps = cast(Any, work.problem), work._steps
        minibatches = problem.inputs(work._drawn(steps), max(steps), work.solver.batch)
        lives = lives_of(work, steps)
        key = (given.key, *alike(given.work, minibatches[0], lives))
        if key not in self.visits:
            self.kept.append(local)
            made = tried(lambda: Visit(given, minibatches[0], lives))
            self.visits[given.inside.key if isinstance(made, NotCut) else key] = made
        visit = self.visits.get(key)
        if not isinstance(visit, Visit):
            return None
        try:
            return visit(given, minibatches, lives)
        except AssertionError as error:  # torch lays out a result otherwise than foreseen
            self.visits[key] = Refused(str(error))
            return None

    def _run(self, work: Work, step: Step, start: Carried, steps: Sequence[int]) -> Carried:
        problem, layout = traceable(work), layout_of(work.problem)
        minibatches = problem.inputs(work._minibatches, max(steps), work.solver.batch)
        lives, inside = lives_of(work, steps), held(step)
        key = (inside.key, tuple(map(form_of, start)), *alike(work, minibatches[0], lives))
        carried = [layout.copied(t) for t in start]
        fixed = [layout.apart(t) for t in (*inside.tensors, *fixed_of(work, inside.numbers))]
        if key not in self.programs:
            self.kept.append(step)
            self.programs[key] = tried(
                lambda: Program(work, step, inside, carried, fixed, minibatches[0], lives)
            )
        program = self.programs[key]
        if isinstance(program, Refused):
            raise program
        try:
            program(carried, fixed, minibatches, lives)
        except AssertionError as error:  # it made steps on copies only
            why = Refused(f"torch lays out a result otherwise than foreseen: {error}")
            self.programs[key] = why
            raise why from None
        return tuple(map(joined, carried))


COMPILERS: WeakKeyDictionary[Any, Compiler] = WeakKeyDictionary()


def compiler_of(problem: Any) -> Compiler:
    """The compiler of a problem, shared by all its runs."""
    return COMPILERS.setdefault(problem, Compiler())
