"""A step of a method as a program: what it is made of, and how its programs are called."""

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from undrift.compiler.closures import Held, rebound
from undrift.compiler.program import Layout, Pieces, compile_step, joined
from undrift.compiler.verify import attempts, noise, random_like, same_up_to_rounding
from undrift.core.errors import first_line
from undrift.core.records import form_of
from undrift.core.work import Refused, Work

T = TypeVar("T")
Step: TypeAlias = Callable[..., Any]
Minibatch: TypeAlias = Sequence[Tensor | None]  # what a problem's grad_of is given


def traceable(work: Work) -> Any:
    """The problem, if it has what a compiled step needs."""
    if not hasattr(work.problem, "grad_of"):
        kind = type(work.problem).__name__
        raise Refused(f"{kind} has no grad_of, a gradient that can be traced")
    return work.problem


def layout_of(problem: Any) -> Layout:
    return Layout.of(problem.x0.numel(), problem.pieces)


def alike(work: Work, minibatch: Minibatch, lives: Any) -> tuple[Any, ...]:
    """What visits have in common that one program serves, besides what is in the step."""
    solver = work.solver
    return (
        lives is None, solver.momentum, solver.weight_decay, solver.clip, len(work.clients),
        torch.get_num_threads(), tuple(x is None or form_of(x) for x in minibatch),
    )  # fmt: skip


def lives_of(work: Work, steps: Sequence[int]) -> list[Tensor] | None:
    """Who has not made all his steps yet, step by step; None if all make as many."""
    if min(steps) == max(steps):
        return None
    numbers = torch.arange(max(steps), device=work.K.device).view(-1, 1, 1)
    return list((work._column(steps) > numbers).unbind())


def fixed_of(work: Work, numbers: Sequence[float]) -> list[Tensor]:
    """What stays the same during a loop besides the step's own tensors, in the order in which a program takes it."""
    # in float64, so that a number means in a tensor what it meant before
    all_numbers = torch.tensor([work.lr, work.t, *numbers], dtype=torch.float64)
    problem: Any = work.problem
    return [*all_numbers.to(work.K.device).unbind(), work.K, *problem.resident()]


def tried(make: Callable[[], T]) -> T | Refused:
    """What can be compiled, or why it cannot."""
    try:
        with warnings.catch_warnings():  # torch warns of its own deprecated parts
            warnings.simplefilter("ignore")
            return make()
    except Exception as error:  # torch raises many kinds for what it cannot trace or compile
        if isinstance(error, Refused):
            return error.with_traceback(None)  # which would keep all that it was raised in
        return Refused(f"{type(error).__name__}: {first_line(error)}")


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
        minibatches: Sequence[Minibatch],
        lives: list[Tensor] | None,
        whole: bool = False,  # part of a compiled visit
    ):
        problem: Any = work.problem
        minibatch = minibatches[0]
        why = getattr(problem, "not_compiled", lambda minibatch: None)(minibatch)
        if why:
            raise Refused(why)
        layout = layout_of(problem)
        self.momentum = False
        present = [x for x in minibatch if x is not None]
        others = [[x] for x in (*present, *(lives or ())[:1])]

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
            self.call = compile_step(traced, carried, fixed, others, layout)
        except _UsesMomentum:
            self.momentum = True
            carried = self._with_momentum(carried)
            self.call = compile_step(traced, carried, fixed, others, layout)
        if not whole:  # a visit is verified as a whole
            self._verify(traced, inside, carried, fixed, minibatches, lives, problem)

    def _verify(
        self,
        step: Callable[..., Sequence[Tensor]],
        inside: Held,
        carried: Sequence[Pieces],
        fixed: Sequence[Pieces],
        minibatches: Sequence[Minibatch],
        lives: list[Tensor] | None,
        problem: Any,
    ) -> None:
        """Compare all steps of the program with those that it was made of, from random states (verify.py).

        Kernels of torch, convolutions above all, may lay out their results otherwise than the compiler foresaw, which then
        reads them in a wrong order.
        """
        for generator, scale in attempts(problem.x0):
            like = partial(random_like, scale=scale, generator=generator)
            start = [[like(p) for p in pieces] for pieces in carried]
            # vectors and what differs by client, but not the number of steps, step sizes and other single numbers
            states = len(inside.tensors)
            always = [[like(p) for p in pieces] for pieces in fixed[:states]] + list(fixed[states:])
            found = [[_twin(p) for p in pieces] for pieces in start]
            self._steps(_flat(found), always, minibatches, lives)

            def uncompiled(disturb: Callable[[Tensor], Tensor]) -> list[Tensor]:
                now = [joined(pieces) for pieces in start]  # noqa: B023 (used at once)
                given = [joined(pieces) for pieces in always]  # noqa: B023
                for k, minibatch in enumerate(minibatches):
                    present = [x for x in minibatch if x is not None]
                    live = lives[k : k + 1] if lives else ()
                    now = step(list(map(disturb, now)), [*given, *present, *live])
                return list(now)

            expected = uncompiled(lambda t: t)
            disturbed = uncompiled(noise(generator))
            if same_up_to_rounding([joined(pieces) for pieces in found], expected, disturbed):
                return
        raise Refused("its program computes something else, so torch compiles it wrongly")

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
        self._steps(_flat(self._with_momentum(carried)), fixed, minibatches, lives)

    def _steps(
        self,
        now: list[Tensor],
        fixed: Sequence[Pieces],
        minibatches: Sequence[Minibatch],
        lives: list[Tensor] | None,
    ) -> None:
        always = _flat(fixed)
        ready = self.call.ready(always)
        for k, minibatch in enumerate(minibatches):
            given = [x for x in minibatch if x is not None]
            self.call([*now, *always, *given, *(lives[k : k + 1] if lives else ()), *ready])


def _flat(values: Sequence[Pieces]) -> list[Tensor]:
    return [p for pieces in values for p in pieces]


def _twin(t: Tensor) -> Tensor:
    """A copy that is laid out alike."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


class _UsesMomentum(Exception):
    """A step turned out to use the local solver's momentum."""


class _OnInputs:
    """The problem as a traced step sees it: gradients of given minibatches and nothing else."""

    def __init__(self, problem: Any, resident: Sequence[Tensor], minibatch: Minibatch):
        self._problem, self._resident, self._minibatch = problem, resident, minibatch

    def grad(self, y: Tensor, minibatches: Any, k: int) -> Tensor:
        return self._problem.grad_of(y, self._resident, self._minibatch)
