"""The cohort as one computation whose steps are compiled: see `program.py` for what is in a step."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from undrift.engines.batched import in_chunks
from undrift.engines.closures import replaced
from undrift.engines.program import Layout, compile_step
from undrift.states import ClientStates
from undrift.work import Carried, Work, in_turn

log = logging.getLogger("undrift")


def compiled(
    local: Callable[[Any, Any, Work], tuple[Any, Any]],
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
) -> Iterator[tuple[Sequence[int], Any, Any]]:
    """Visit clients `chunk` at a time with compiled steps."""
    compiler = compiler_of(lend(clients[:1], True).problem)
    # few numbers of rows, because each is another program: the chunk, or a power of two below it
    rows = lambda n: min(max(chunk, 2), max(2, 1 << (n - 1).bit_length()))
    yield from in_chunks(local, down, states, clients, lend, chunk, rows, compiler.run)


class Refused(Exception):
    """Why something cannot be compiled."""


@dataclass(frozen=True)
class Held:
    """What a step's closure holds: its tensors and numbers, and a key that is the same for steps that are alike."""

    tensors: list[Tensor]
    numbers: list[float]
    key: tuple[Any, ...]
    kept: Any  # objects known by identity must not be replaced by others


def held(step: Callable[..., Any]) -> Held:
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
    return Held(tensors, numbers, tuple(key), step)


def _shape(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.dtype, t.device


class _OnInputs:
    """The problem as a traced step sees it: gradients of given minibatches and nothing else."""

    def __init__(
        self, problem: Any, resident: Sequence[Tensor], minibatch: Sequence[Tensor | None]
    ):
        self._problem, self._resident, self._minibatch = problem, resident, minibatch

    def grad(self, y: Tensor, minibatches: Any, k: int) -> Tensor:
        return self._problem.grad_of(y, self._resident, self._minibatch)


class Compiler:
    """The compiled steps of one problem, made when they are first needed and kept as long as the problem."""

    def __init__(self) -> None:
        self.programs: dict[Any, Any] = {}
        self.refusals: set[str] = set()
        self.scalars: dict[float, Tensor] = {}

    def run(
        self, work: Work, step: Callable[..., Any], start: Carried, steps: Sequence[int]
    ) -> Carried:
        """Make the steps with a compiled program; in turn, after one line of notice, if there can be none."""
        try:
            return self._run(work, step, start, steps)
        except Refused as why:
            if str(why) not in self.refusals:
                self.refusals.add(str(why))
                log.warning("not compiled, computed step by step instead: %s", why)
            return in_turn(work, step, start, steps)

    def _run(
        self, work: Work, step: Callable[..., Any], start: Carried, steps: Sequence[int]
    ) -> Carried:
        problem: Any = work.problem
        if not hasattr(problem, "grad_of"):
            raise Refused(f"{type(problem).__name__} has no grad_of, a gradient that can be traced")
        minibatches = problem.inputs(
            work._minibatches, max(steps), work.solver.batch
        )  # a tuple a step
        unequal = min(steps) < max(steps)
        inside = held(step)
        carried = tuple(t.clone(memory_format=torch.contiguous_format) for t in start)
        lives = (
            work._column(steps) > torch.arange(max(steps), device=work.K.device)
            if unequal
            else None
        )
        resident = problem.resident()
        scalars = [self._scalar(v, work) for v in (work.lr, float(work.t), *inside.numbers)]
        fixed = [*inside.tensors, *scalars, work.K, *resident]
        key = (
            inside.key, unequal, work.solver.momentum, work.solver.weight_decay, work.solver.clip,
            tuple(map(_shape, carried)), _shape(work.K), tuple(x is None or _shape(x) for x in minibatches[0]),
        )  # fmt: skip
        if key not in self.programs:
            self.programs[key] = self._made(
                work, step, inside, carried, minibatches[0], unequal, fixed
            )
        program = self.programs[key]
        if isinstance(program, Refused):
            raise program
        return program(carried, fixed, minibatches, lives)

    def _scalar(self, value: float, work: Work) -> Tensor:
        """A number as a tensor; in float64, so that it means what the number would."""
        if value not in self.scalars:
            self.scalars[value] = torch.tensor(value, dtype=torch.float64, device=work.K.device)
        return self.scalars[value]

    def _made(
        self,
        work: Work,
        step: Any,
        inside: Held,
        carried: Carried,
        minibatch: Any,
        unequal: bool,
        fixed: list[Tensor],
    ) -> Any:
        try:
            problem: Any = work.problem
            why = getattr(problem, "not_compiled", lambda minibatch: None)(minibatch)
            if why:
                return Refused(why)
            with warnings.catch_warnings():  # torch warns of its own deprecated parts
                warnings.simplefilter("ignore")
                return Program(work, step, inside, carried, minibatch, unequal, fixed)
        except Exception as error:  # torch raises many kinds for what it cannot trace or compile
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            return Refused(f"{type(error).__name__}: {reason}")


class Program:
    """A compiled step and what it is given besides the vectors that it carries."""

    def __init__(
        self,
        work: Work,
        step: Any,
        inside: Held,
        carried: Carried,
        minibatch: Any,
        unequal: bool,
        fixed: list[Tensor],
    ):
        problem: Any = work.problem
        self.layout = Layout.of(problem.x0.numel(), problem.pieces)
        self.inside = inside
        present = [x for x in minibatch if x is not None]
        live = [work.K > 0] if unequal else []
        self.momentum = False

        def traced(now: list[Tensor], others: list[Tensor]) -> list[Tensor]:
            it = iter(others)
            tensors = [next(it) for _ in inside.tensors]
            lr, t = next(it), next(it)
            numbers = [next(it) for _ in inside.numbers]
            K = next(it)
            resident = [next(it) for _ in problem.resident()]
            inputs = [None if x is None else next(it) for x in minibatch]
            twin = copy(work)
            twin.lr, twin.t, twin.K = lr, t, K  # pyright: ignore[reportAttributeAccessIssue]
            twin.problem, twin._k = _OnInputs(problem, resident, inputs), 0  # pyright: ignore[reportAttributeAccessIssue]
            twin._momentum = now[-1] if self.momentum else None
            values = now[:-1] if self.momentum else now
            new = _with(step, iter(tensors), iter(numbers), twin)(*values)
            new = [new] if isinstance(new, Tensor) else list(new)
            if twin._momentum is not None and not self.momentum:
                raise _NeedsMomentum
            if self.momentum:
                new.append(twin._momentum)
            if unequal:
                alive = next(it)
                new = [
                    torch.where(alive, after, before)
                    for after, before in zip(new, now, strict=True)
                ]
            return new

        others = [*fixed, *present, *live]
        try:
            self.call = compile_step(traced, carried, others, self.layout)
        except _NeedsMomentum:
            self.momentum = True
            self.call = compile_step(
                traced, (*carried, torch.zeros_like(carried[0])), others, self.layout
            )

    def __call__(
        self, carried: Carried, fixed: list[Tensor], minibatches: Any, lives: Tensor | None
    ) -> Carried:
        now = (*carried, torch.zeros_like(carried[0])) if self.momentum else carried
        always = [piece for t in (*now, *fixed) for piece in self.layout.apart(t)]
        for k, minibatch in enumerate(minibatches):
            given = [x for x in minibatch if x is not None]
            if lives is not None:
                given.append(lives[:, k : k + 1])
            self.call([*always, *given])
        return carried


class _NeedsMomentum(Exception):
    pass


def _with(step: Any, tensors: Any, numbers: Any, twin: Work) -> Any:
    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            return next(tensors)
        return next(numbers) if isinstance(value, float) else twin

    return replaced(step, leaf, lambda note: None, {})


COMPILERS: WeakKeyDictionary[Any, Compiler] = WeakKeyDictionary()


def compiler_of(problem: Any) -> Compiler:
    """The compiler of a problem, shared by all its runs."""
    return COMPILERS.setdefault(problem, Compiler())
