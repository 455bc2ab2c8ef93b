"""The cohort as one computation whose steps are compiled: see `program.py` for what is in a step.

Every chunk has the same shape: short minibatches are filled up with samples that have no share in the mean, and a chunk
that lacks clients with repeated ones.  So a run needs one program, or two if only some of its visits are ragged.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from undrift.engines.batched import in_chunks, same
from undrift.engines.closures import replaced
from undrift.engines.program import Layout, Pieces, compile_step, joined
from undrift.states import ClientStates
from undrift.work import Carried, Runner, Work, in_turn

log = logging.getLogger("undrift")

T = TypeVar("T")
Step: TypeAlias = Callable[..., Any]
Minibatch: TypeAlias = Sequence[Tensor | None]  # what a problem's grad_of is given


def compiled(
    local: Callable[[Any, Any, Work], tuple[Any, Any]],
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
) -> Iterator[tuple[Sequence[int], Any, Any]]:
    """Visit clients `chunk` at a time with compiled steps."""
    run: Runner = lambda work, *given: compiler_of(work.problem).run(work, *given)
    # few numbers of rows, because each is another program: the chunk, or a power of two below it
    rows = lambda n: min(max(chunk, 2), max(2, 1 << (n - 1).bit_length()))
    yield from in_chunks(local, same(down), states, clients, lend, chunk, rows, run)


class Refused(Exception):
    """Why something cannot be compiled."""


@dataclass(frozen=True)
class Held:
    """What a step's closure holds: its tensors and numbers, and a key that is the same for steps that are alike."""

    tensors: list[Tensor]
    numbers: list[float]
    key: tuple[Any, ...]


def held(step: Step) -> Held:
    """What a step's closure holds."""
    tensors: list[Tensor] = []
    numbers: list[float] = []
    key: list[Any] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value)
            key.append(_shape(value))
        elif isinstance(value, float):
            numbers.append(value)
            key.append(float)
        else:
            key.append(Work)
        return value

    replaced(step, leaf, key.append, {})
    return Held(tensors, numbers, tuple(key))


def rebound(step: Step, tensors: Iterator[Tensor], numbers: Iterator[Tensor], work: Work) -> Step:
    """The same step with other tensors, numbers and work in its closure."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            return next(tensors)
        return next(numbers) if isinstance(value, float) else work

    return replaced(step, leaf, lambda note: None, {})


def _shape(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.dtype, t.device


class Compiler:
    """The compiled steps of one problem, made when they are first needed and kept as long as the problem."""

    def __init__(self) -> None:
        self.programs: dict[Any, Program | Refused] = {}
        self.kept: list[Step] = []  # what keys know by identity must not be replaced by others
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

    def _run(self, work: Work, step: Step, start: Carried, steps: Sequence[int]) -> Carried:
        problem, layout = traceable(work), layout_of(work.problem)
        minibatches = problem.inputs(work._minibatches, max(steps), work.solver.batch)
        lives, inside = _lives(work, steps), held(step)
        key = (inside.key, tuple(map(_shape, start)), *_alike(work, minibatches[0], lives))
        carried = [layout.copied(t) for t in start]
        fixed = [layout.apart(t) for t in (*inside.tensors, *_fixed(work, inside.numbers))]
        if key not in self.programs:
            self.kept.append(step)
            self.programs[key] = _made(work, step, inside, carried, fixed, minibatches[0], lives)
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


def traceable(work: Work) -> Any:
    """The problem, if it has what a compiled step needs."""
    if not hasattr(work.problem, "grad_of"):
        kind = type(work.problem).__name__
        raise Refused(f"{kind} has no grad_of, a gradient that can be traced")
    return work.problem


def layout_of(problem: Any) -> Layout:
    return Layout.of(problem.x0.numel(), problem.pieces)


def _alike(work: Work, minibatch: Minibatch, lives: Any) -> tuple[Any, ...]:
    """What visits have in common that one program serves, besides what is in the step."""
    solver = work.solver
    return (
        lives is None, solver.momentum, solver.weight_decay, solver.clip, len(work.clients),
        tuple(x is None or _shape(x) for x in minibatch),
    )  # fmt: skip


def _lives(work: Work, steps: Sequence[int]) -> list[Tensor] | None:
    """Who has not made all his steps yet, step by step; None if all make as many."""
    if min(steps) == max(steps):
        return None
    numbers = torch.arange(max(steps), device=work.K.device).view(-1, 1, 1)
    return list((work._column(steps) > numbers).unbind())


def _fixed(work: Work, numbers: Sequence[float]) -> list[Tensor]:
    """What stays the same during a loop besides the step's own tensors, in the order in which a program takes it."""
    # in float64, so that a number means in a tensor what it meant before
    all_numbers = torch.tensor([work.lr, work.t, *numbers], dtype=torch.float64)
    problem: Any = work.problem
    return [*all_numbers.to(work.K.device).unbind(), work.K, *problem.resident()]


def _made(
    work: Work,
    step: Step,
    inside: Held,
    carried: Sequence[Pieces],
    fixed: Sequence[Pieces],
    minibatch: Minibatch,
    lives: Any,
) -> "Program | Refused":
    why = getattr(work.problem, "not_compiled", lambda minibatch: None)(minibatch)
    if why:
        return Refused(why)
    return tried(lambda: Program(work, step, inside, carried, fixed, minibatch, lives))


def tried(make: Callable[[], T]) -> T | Refused:
    """What can be compiled, or why it cannot."""
    try:
        with warnings.catch_warnings():  # torch warns of its own deprecated parts
            warnings.simplefilter("ignore")
            return make()
    except Exception as error:  # torch raises many kinds for what it cannot trace or compile
        if isinstance(error, Refused):
            return error
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        return Refused(f"{type(error).__name__}: {reason}")


class Program:
    """A compiled step, with the momentum of the local solver carried along if the step uses it.

    What it is made with shows how things will be laid out when it is called.
    """

    def __init__(
        self,
        work: Work,
        step: Step,
        inside: Held,
        carried: Sequence[Pieces],
        fixed: Sequence[Pieces],
        minibatch: Minibatch,
        lives: list[Tensor] | None,
    ):
        problem: Any = work.problem
        layout = layout_of(problem)
        self.momentum = False
        present = [x for x in minibatch if x is not None]
        others = [*fixed, *([x] for x in present), *([x] for x in (lives or ())[:1])]

        def traced(now: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
            it = iter(given)
            tensors, lr, t = [next(it) for _ in inside.tensors], next(it), next(it)
            numbers, K = [next(it) for _ in inside.numbers], next(it)
            resident = [next(it) for _ in problem.resident()]
            twin: Any = copy(work)
            twin.lr, twin._t, twin.K, twin._k = lr, t, K, 0
            twin.problem = _OnInputs(
                problem, resident, [None if x is None else next(it) for x in minibatch]
            )
            twin._momentum = now[-1] if self.momentum else None
            values = now[:-1] if self.momentum else now
            new = rebound(step, iter(tensors), iter(numbers), twin)(*values)
            new = [new] if len(values) == 1 else list(new)
            if twin._momentum is not None:
                if not self.momentum:
                    raise _UsesMomentum
                new.append(twin._momentum)
            if lives is None:
                return new
            alive = next(it)
            return [torch.where(alive, a, b) for a, b in zip(new, now, strict=True)]

        try:
            self.call = compile_step(traced, carried, others, layout)
        except _UsesMomentum:
            self.momentum = True
            self.call = compile_step(traced, self._with_momentum(carried), others, layout)

    def _with_momentum(self, carried: Sequence[Pieces]) -> Sequence[Pieces]:
        return [*carried, [torch.zeros_like(p) for p in carried[0]]] if self.momentum else carried

    def __call__(
        self,
        carried: Sequence[Pieces],
        fixed: Sequence[Pieces],
        minibatches: Sequence[Minibatch],
        lives: list[Tensor] | None,
    ) -> None:
        """Make all steps, writing over what is carried."""
        always = [p for pieces in (*self._with_momentum(carried), *fixed) for p in pieces]
        for k, minibatch in enumerate(minibatches):
            given = [x for x in minibatch if x is not None]
            self.call([*always, *given, *(lives[k : k + 1] if lives else ())])


class _UsesMomentum(Exception):
    """A step turned out to use the local solver's momentum."""


class _OnInputs:
    """The problem as a traced step sees it: gradients of given minibatches and nothing else."""

    def __init__(self, problem: Any, resident: Sequence[Tensor], minibatch: Minibatch):
        self._problem, self._resident, self._minibatch = problem, resident, minibatch

    def grad(self, y: Tensor, minibatches: Any, k: int) -> Tensor:
        return self._problem.grad_of(y, self._resident, self._minibatch)


COMPILERS: WeakKeyDictionary[Any, Compiler] = WeakKeyDictionary()


def compiler_of(problem: Any) -> Compiler:
    """The compiler of a problem, shared by all its runs."""
    return COMPILERS.setdefault(problem, Compiler())
