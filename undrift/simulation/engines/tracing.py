"""A visit as a pure function of tensors, which is what the compiler takes.

Everything that may differ from call to call is an input: the message, the states, the step size, the round and every other
float of the method and its solver as a 0-d tensor, weights, data, minibatches, random numbers.  What is left is structure: the
method's code, its integers and words, shapes (structure.py).  Two visits of one structure run the same programs.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from undrift.compiler import CannotCompile, Layout, Tracer, Watch, kernels
from undrift.compiler.inductor import fake_mode
from undrift.core.algorithm import Algorithm, exchanges_of
from undrift.core.batched_scalar import is_zero
from undrift.core.optimiser import HeavyBall
from undrift.core.records import fits, form_of, map_tensors, rebuild, tensors
from undrift.core.rng import Distribution, Purpose, draw_numbers
from undrift.core.work import Ones, Solver, Work
from undrift.problems.protocols import LimitsCompiling, Traceable
from undrift.simulation.engines.structure import (
    OpenedMethod,
    code_of,
    floats_in,
    open_method,
    structure_of,
    with_floats,
)

# the work of a visit while it is traced


@dataclass
class LoopSpec:
    """What is known of a loop of a visit."""

    steps: int | None  # None: as many as the visit has
    number: int  # among the loops that draw minibatches
    unit: bool  # it runs the solver on a single number, without minibatches
    optimiser: str | None = None  # whose state it carries: the solver's, or a "momentum" that the method brings
    draws: list["DrawSpec"] = field(default_factory=list)  # per step


@dataclass(frozen=True)
class DrawSpec:
    """Random numbers that a method asks for."""

    loop: int
    call: int
    form: Tensor
    distribution: Distribution


@dataclass
class VisitSpec:
    """What is known of a visit once its code has been run."""

    loops: list[LoopSpec] = field(default_factory=list)
    draws: list[DrawSpec] = field(default_factory=list)  # outside of loops
    calls: int = 0  # of full gradients


class _Explorer:
    """Runs a visit with fake tensors and one step per loop, to learn what it asks for."""

    def __init__(self, visit: "TracedVisit", fake: Callable[[Tensor], Tensor]):
        self.visit, self.fake, self.spec = visit, fake, VisitSpec()
        self.of_step: Iterator[Tensor] = iter(())

    def begin_loop(self, spec: LoopSpec) -> LoopSpec:
        self.spec.loops.append(spec)
        return spec

    def loop(self, body: Any, start: Sequence[Tensor]) -> list[Tensor]:
        (minibatch,) = self.visit.step_inputs(self.spec.loops[-1], only=1)
        return list(body([t.clone() for t in start], [self.fake(t) for t in minibatch]))

    def call(self, x: Tensor) -> Tensor:
        self.spec.calls += 1
        return x.clone()

    def random(self, spec: DrawSpec, of_loop: LoopSpec | None) -> Tensor:
        (self.spec.draws if of_loop is None else of_loop.draws).append(spec)
        return self.fake(spec.form.new_zeros(spec.form.shape, device=self.visit.work.K.device))


class _Replay:
    """Runs a visit whose spec is known, with the compiler's tracer."""

    def __init__(self, spec: VisitSpec, tracer: Tracer, draws: Iterator[Tensor]):
        self._loops, self._draws = iter(spec.loops), draws
        self.loop, self.call = tracer.loop, tracer.call
        self.of_step: Iterator[Tensor] = iter(())

    def begin_loop(self, spec: LoopSpec) -> LoopSpec:
        return next(self._loops)

    def random(self, spec: DrawSpec, of_loop: LoopSpec | None) -> Tensor:
        return next(self._draws if of_loop is None else self.of_step)


class TracedWork(Work):
    """The work of a visit while it is traced: numbers are tensors, loops and full gradients are marks in the trace."""

    def __init__(
        self,
        work: Work,
        visit: "TracedVisit",
        session: Any,
        solver: Solver,
        t: Tensor,
        K: Tensor,
        resident: Sequence[Tensor],
        unit: bool = False,
    ):
        self.__dict__.update(work.__dict__)
        self.visit, self.session, self.solver, self.resident = visit, session, solver, resident
        self.lr, self._t, self.K, self.unit_only = solver.lr, t, K, unit
        self._spec: LoopSpec | None = None
        self._input: list[Tensor | None] = []
        self._number = 0  # of the next loop that draws minibatches
        if unit:
            ones: Any = Ones(K.new_zeros(1))
            self.problem = ones

    @property
    def t(self) -> Any:
        return self._t

    def loop(self, step: Callable[..., Any], *start: Any, steps: int | None = None) -> Any:
        number = self._number
        self._number += not self.unit_only
        spec = self.session.begin_loop(LoopSpec(steps, number, self.unit_only))
        K = self.steps if steps is None else [steps]
        masked, count = min(K) != max(K), len(start)
        state: Any = self.carried
        if state is not None:
            spec.optimiser = "solver"
        elif spec.optimiser == "solver":
            assert self.solver.optimiser is not None
            state = self.solver.optimiser.init(start[0])
        elif spec.optimiser == "momentum":
            state = HeavyBall(0.0).init(start[0])

        def body(carried: Sequence[Tensor], minibatch: Sequence[Tensor]) -> list[Tensor]:
            given = iter(minibatch)
            self._input = [next(given) if there else None for there in self.visit.present(spec)]
            active = next(given) if masked else None
            self.session.of_step = given
            self._optimiser_state = None if state is None else rebuild(state, iter(carried[count:]))
            self._spec, self._draws = spec, 0
            new = step(*carried[:count])
            new = [new] if count == 1 else list(new)
            if state is not None:
                new += tensors(self._optimiser_state)
            self._spec, self._draws = None, 0
            if active is None:
                return new
            pairs = zip(new, carried, strict=True)
            return [torch.where(active, after, before) for after, before in pairs]

        carried = self.session.loop(body, [*start, *tensors(state)])
        if self.carried is not None:
            self.carried = rebuild(state, iter(carried[count:]))
        carried, self._optimiser_state = carried[:count], None
        return carried[0] if count == 1 else tuple(carried)

    def minibatch_grad(self, y: Tensor) -> Tensor:
        if self._spec is None:
            raise RuntimeError("work.grad needs a minibatch: call it inside work.loop")
        if self.unit_only:
            return torch.ones_like(y)
        problem: Any = self.problem
        return problem.grad_of(y, self.resident, self._input)

    def step(self, y: Tensor, d: Tensor, momentum: float | None = None) -> Tensor:
        if self._spec is not None and self._optimiser_state is None:
            if momentum is None and self.solver.optimiser is not None:
                self._spec.optimiser = "solver"
            elif momentum is not None and not is_zero(momentum):
                self._spec.optimiser = "momentum"
        return super().step(y, d, momentum)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._decayed(self.session.call(x), x)

    def random(self, like: Tensor, distribution: Distribution = "normal") -> Tensor:
        call = self._draws
        self._draws += 1
        form = torch.empty(like.shape, dtype=like.dtype, device="meta")
        return self.session.random(DrawSpec(self._number, call, form, distribution), self._spec)

    @property
    def unit(self) -> Work:
        solver = replace(self.solver, weight_decay=0.0, clip=None)
        unit = TracedWork(self, self.visit, self.session, solver, self._t, self.K, (), unit=True)
        unit.carried = None
        return unit


# the visit itself


def check_traceable(problem: Any) -> None:
    """Raise CannotCompile if a problem's gradient cannot be traced."""
    if not isinstance(problem, Traceable):
        kind = type(problem).__name__
        raise CannotCompile(f"{kind} has no grad_of, a gradient that can be traced")


class TracedVisit:
    """One visit of some rows, as a function of tensors.

    Rows are ordered by group, client and run: all clients of a group are sent the same, `down` with a row for each of its
    runs.  A run by itself is the only one of the only group.  With `weights`, `[groups, clients]`, what clients send is
    added up; without, there is a row for each.
    """

    def __init__(self, algorithm: Algorithm, down: Any, state: Any, work: Work, weights: Tensor | None):
        problem: Any = work.problem
        if work.rounds is not None:
            raise CannotCompile("clients work on models of different rounds")
        self.problem, self.work, self.algorithm = problem, work, algorithm
        self.tree = open_method(algorithm), work.solver
        self.down, self.state = down, state
        self.weights = None if weights is None else weights.to(work.K.device)
        self.layout = Layout.of(problem.x0.numel(), problem.pieces)
        self.floats, self.held = floats_in(self.tree)
        self._inputs: dict[tuple[int, int | None], Sequence[Sequence[Tensor | None]]] = {}
        self.up: Any = None  # records like those that come back
        self.kept: Any = None

    @property
    def local(self) -> Any:
        key = self.work.key
        return exchanges_of(self.algorithm, key.round)[key.exchange].local

    @property
    def structure(self) -> Hashable:
        """The same for visits that ask for the same loops, full gradients and random numbers."""
        work = self.work
        forms = form_of(self.down), form_of(self.state), form_of(self.weights)
        code, tree = code_of(self.local), structure_of(self.tree)
        unequal = min(work.steps) != max(work.steps)
        how = kernels.switched_off(), torch.get_num_threads()
        return code, tree, forms, len(work.clients), unequal, how

    def minibatch_forms(self, spec: VisitSpec) -> Hashable:
        """What their minibatches must have in common, too, for one compiled visit to serve them."""
        loops = [loop for loop in spec.loops if not loop.unit]
        first = [self.loop_inputs(loop.number, loop.steps)[0] for loop in loops]
        return tuple(tuple(x is None or form_of(x) for x in inputs) for inputs in first)

    # inputs

    def inputs(self, spec: VisitSpec) -> list[Tensor]:
        """What the function is given, in its order."""
        work = self.work
        numbers = torch.tensor([float(work.key.round), *self.floats], dtype=torch.float64)
        draws = [self._drawn(each, None) for each in spec.draws]
        weights = [] if self.weights is None else [self.weights]
        return [
            *tensors(self.down),
            *tensors(self.state),
            *numbers.to(work.K.device).unbind(),
            *self.held,
            work.K,
            *weights,
            *self.problem.resident(),
            *draws,
        ]

    @property
    def overwritten(self) -> range:
        """Where among the inputs the states are, which the new ones are written over."""
        first = len(tensors(self.down))
        return range(first, first + len(tensors(self.state)))

    def loop_inputs(self, number: int, steps: int | None) -> Sequence[Sequence[Tensor | None]]:
        """What the gradient of the number-th loop is given, step by step."""
        if (number, steps) not in self._inputs:
            work = self.work
            K = work.steps if steps is None else [steps] * len(work.clients)
            key = replace(work.key, loop=work.key.loop + number)
            drawn = work.draw_minibatches(key, K)
            self._inputs[number, steps] = self.problem.inputs(drawn, max(K), work.solver.batch)
        return self._inputs[number, steps]

    def present(self, spec: LoopSpec) -> list[bool]:
        """Which of the inputs of a loop's gradient there are."""
        if spec.unit:
            return []
        return [x is not None for x in self.loop_inputs(spec.number, spec.steps)[0]]

    def step_inputs(self, spec: LoopSpec, only: int | None = None) -> list[list[Tensor]]:
        """All that the steps of a loop are given, step by step."""
        work, K = self.work, self.work.steps if spec.steps is None else [spec.steps]
        count = max(K) if only is None else only
        if spec.unit:
            found: list[list[Tensor]] = [[] for _ in range(count)]
        else:
            each = self.loop_inputs(spec.number, spec.steps)[:count]
            found = [[x for x in step if x is not None] for step in each]
        if min(K) != max(K):
            numbers = torch.arange(count, device=work.K.device).view(-1, 1, 1)
            for step, active in zip(found, (work.K > numbers).unbind(), strict=True):
                step.append(active)
        for k, step in enumerate(found):
            step += [self._drawn(each, k) for each in spec.draws]
        return found

    def _drawn(self, spec: DrawSpec, k: int | None) -> Tensor:
        work = self.work
        call = spec.call + (0 if k is None else (k + 1) << 16)
        keys = [replace(work.key, loop=work.key.loop + spec.loop)] * len(work.clients)
        form = torch.empty(spec.form.shape, dtype=spec.form.dtype, device=work.K.device)
        return draw_numbers(Purpose.METHOD, keys, work.clients, call, form, spec.distribution)

    def calls(self, spec: VisitSpec) -> list[Callable[[Tensor], Tensor]]:
        """The full gradients that a visit asks for."""
        problem: Any = self.problem
        return [lambda x: problem.full_grad(x, self.work.clients)] * spec.calls

    def watch(self, spec: VisitSpec) -> dict[int, Watch] | None:
        """What follows local models through the loops that make the visit's own steps, if somebody does."""
        path = self.work.path
        if path is None:
            return None
        last, pieces = max(self.work.steps), len(self.layout.split(self.problem.x0.unsqueeze(0)))
        look: Watch = lambda k, carried: path.watch(k, carried[:pieces], last)
        return {n: look for n, loop in enumerate(spec.loops) if loop.steps is None and not loop.unit}

    # the function

    def explore(self) -> VisitSpec:
        """Learn which loops, random numbers and full gradients the visit asks for."""
        inputs = self.inputs(VisitSpec())
        fake = fake_mode().from_tensor  # not entered: minibatches that are drawn meanwhile are real
        session = _Explorer(self, fake)
        with torch.no_grad():
            self._run([fake(t) for t in inputs], session)
        self._check_minibatches(session.spec)
        return session.spec

    def function(self, spec: VisitSpec) -> Callable[[Sequence[Tensor], Tracer], list[Tensor]]:
        """The visit as `compile_visit` takes it."""

        def visit(inputs: Sequence[Tensor], tracer: Tracer) -> list[Tensor]:
            draws = iter(inputs[len(inputs) - len(spec.draws) :])
            return self._run(inputs, _Replay(spec, tracer, draws))

        return visit

    def _run(self, inputs: Sequence[Tensor], session: Any) -> list[Tensor]:
        it = iter(inputs)
        sent, state = rebuild(self.down, it), rebuild(self.state, it)
        t, *floats = islice(it, 1 + len(self.floats))
        held = list(islice(it, len(self.held)))
        K = next(it)
        weights = None if self.weights is None else next(it)
        resident = list(islice(it, len(self.problem.resident())))
        algorithm, solver = with_floats(self.tree, iter(floats), iter(held))
        algorithm = algorithm.close() if isinstance(algorithm, OpenedMethod) else algorithm
        work = TracedWork(self.work, self, session, solver, t, K, resident)
        key = self.work.key
        local = exchanges_of(algorithm, key.round)[key.exchange].local
        down = map_tensors(self.spread, sent)
        self.up, self.kept = local(down, state, work)
        self._check(state)
        if weights is None:
            return [*tensors(self.up), *tensors(self.kept)]
        return [*(add_rows(t, weights) for t in tensors(self.up)), *tensors(self.kept)]

    def _check(self, state: Any) -> None:
        if not fits(self.up, self.kept, len(self.work.clients), self.problem.x0):
            raise CannotCompile("its answers are not vectors")
        kinds = [[(t.shape, t.dtype) for t in tensors(each)] for each in (self.kept, state)]
        if kinds[0] != kinds[1]:
            raise CannotCompile("clients keep something else than they have been given")
        if not tensors(self.up):
            raise CannotCompile("clients send nothing")

    def spread(self, sent: Tensor) -> Tensor:
        """What is sent to the runs of some groups, as a row for each client of each run."""
        groups = 1 if self.weights is None else len(self.weights)
        runs = len(sent) // groups
        each = len(self.work.clients) // len(sent)
        apart = sent.view(groups, 1, runs, sent.shape[1])
        return apart.expand(-1, each, -1, -1).reshape(-1, sent.shape[1])

    def _check_minibatches(self, spec: VisitSpec) -> None:
        """Raise CannotCompile if the problem's traceable gradient is not right for such minibatches."""
        if not isinstance(self.problem, LimitsCompiling):
            return
        for loop in [loop for loop in spec.loops if not loop.unit]:
            why = self.problem.not_compiled(self.loop_inputs(loop.number, loop.steps)[0])
            if why:
                raise CannotCompile(why)


def add_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows of groups, clients and runs, in this order, added up over clients: a row for each group and run."""
    groups, clients = weights.shape
    each = rows.reshape(groups, clients, -1, rows.shape[1])
    return (weights.to(rows.dtype).view(groups, clients, 1, 1) * each).sum(1).flatten(0, 1)
