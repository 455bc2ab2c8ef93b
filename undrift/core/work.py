"""What an engine lends a client for one visit: minibatches, gradients, the local loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from undrift.core.batched_scalar import is_zero
from undrift.core.rng import Key

if TYPE_CHECKING:
    from undrift.problems import Problem

Carried: TypeAlias = tuple[Tensor, ...]
Runner: TypeAlias = Callable[["Work", Callable[..., Any], Carried, Sequence[int]], Carried]


@dataclass(frozen=True)
class Solver:
    """The local solver of one round, as `ud.Local` describes it."""

    lr: float
    batch: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None


class Refused(Exception):
    """Why something cannot be compiled."""


class NoCommonRound(Exception):
    """A method asked for the round where clients of several are computed together."""


class Work:
    """One visit of one client, or of a whole cohort at once (vectors `[S, D]`).

    t     the round, from 1 (0 in a first contact)
    lr    the local step size of this round
    K     how many steps each client makes: a column, `[1]` or `[S, 1]`

    In virtual time clients of one computation may work on models of different rounds, which are then given apart.
    """

    def __init__(
        self,
        problem: "Problem",
        solver: Solver,
        clients: Sequence[int],
        steps: Sequence[int],
        key: Key,
        single: bool,
        rounds: Sequence[int] | None = None,  # each client's own, where they differ
    ):
        self.problem, self.solver, self.clients = problem, solver, clients
        self.lr, self.rounds = solver.lr, rounds
        self._t: Any = key.round
        self._steps, self._key, self._single = list(steps), key, single
        self._minibatches: Any = None
        self._momentum: Tensor | None = None
        self._k: int | None = None  # the step, inside a loop
        self.runner: Runner | None = None  # how steps are made, where not in turn
        self.K = self._column(steps)

    @property
    def t(self) -> int:
        if self.rounds is not None:
            raise NoCommonRound
        return self._t

    def loop(self, step: Callable[..., Any], *start: Any, steps: int | None = None) -> Any:
        """Carry values through `step`, each time on the next minibatch; returns what it carried last.

        Every client makes its own K steps (or `steps`, the same for all): the values of one that is done stay as they
        are while others go on.  A second loop in the same visit draws minibatches of its own.
        """
        K = self._steps if steps is None else [steps] * len(self.clients)
        self._minibatches = self._drawn(K)
        key = self._key
        self._key = Key(key.seed, key.round, key.exchange, key.loop + 1)
        self._momentum = None
        carried = (self.runner or in_turn)(self, step, start, K)
        self._k = None
        return carried[0] if len(start) == 1 else carried

    def grad(self, y: Tensor) -> Tensor:
        """The gradient at y on this step's minibatch; a second call in the same step uses the same minibatch.

        Clipping, if asked for, comes before weight decay, as in a PyTorch training loop.
        """
        if self._k is None:
            raise RuntimeError("work.grad needs a minibatch: call it inside work.loop")
        g = self.problem.grad(y, self._minibatches, self._k)
        if self.solver.clip is not None:
            norm = g.norm(dim=-1, keepdim=True)
            g = g * (self.solver.clip / norm.clamp(min=self.solver.clip))
        return self._decayed(g, y)

    def full_grad(self, x: Tensor) -> Tensor:
        """The gradient at x of the client's whole objective."""
        return self._decayed(self.problem.full_grad(x, self.clients), x)

    def step(self, y: Tensor, d: Tensor, momentum: float | None = None) -> Tensor:
        """One step of the local solver along d: y - lr d, or y - lr u with u = momentum * u + d.

        The momentum is that of `ud.Local` unless the method brings its own.
        """
        rho = self.solver.momentum if momentum is None else momentum
        if not is_zero(rho):
            d = d if self._momentum is None else rho * self._momentum + d
            self._momentum = d
        if isinstance(self.lr, float) and self.lr <= torch.finfo(y.dtype).max:
            return torch.sub(y, d, alpha=self.lr)  # in one pass over memory
        return y - self.lr * d

    def descend(self, direction: Callable[..., Any], x: Tensor, *start: Any) -> Any:
        """Make the visit's K steps along d = direction(y), from y = x; returns x - y and the mean of all d.

        What else is carried follows x, and d in what `direction` returns; its last values are returned after the mean.

        The mean is (x - y)/(lr K), so that no sum of vectors is carried through the steps; with lr = 0 or local momentum,
        where the way does not tell, it is one.  Rounding of y enters it as eps |x| / (lr K), which later steps multiply by
        lr K: they are off by no more than the model's own rounding.
        """
        told = is_zero(self.solver.momentum) and not is_zero(self.lr)

        def step(y: Tensor, total: Tensor, *others: Any) -> Any:
            d, *new = direction(y, *others) if others else (direction(y),)
            return self.step(y, d), total if told else total + d, *new

        y, total, *new = self.loop(step, x, self.zero if told else 0 * x, *start)
        delta = x - y
        return delta, delta / (self.lr * self.K) if told else total / self.K, *new

    @property
    def unit(self) -> "Work":
        """The same visit with a model of one number whose gradient is 1 everywhere.

        Whatever a linear solver makes of it is the sum of the coefficients with which gradients enter y (FedNova).
        """
        ones: Any = _Ones(self.K.new_zeros(1))
        solver = replace(self.solver, weight_decay=0.0, clip=None)
        return Work(ones, solver, self.clients, self._steps, self._key, self._single, self.rounds)

    @property
    def zero(self) -> Tensor:
        """The number 0 of every client, as a column: where `unit` starts."""
        return 0 * self.K

    def _drawn(self, K: Sequence[int]) -> Any:
        problem: Any = self.problem
        if self.rounds is None:
            return problem.draw(self._key, self.clients, K, self.solver.batch)
        return problem.draw_each(self._key, self.rounds, self.clients, K, self.solver.batch)

    def _decayed(self, g: Tensor, y: Tensor) -> Tensor:
        decay = self.solver.weight_decay
        return g if is_zero(decay) else g + decay * y

    def _column(self, numbers: Sequence[int]) -> Tensor:
        column = torch.tensor(numbers, dtype=self.problem.x0.dtype, device=self.problem.x0.device)
        return column if self._single else column.unsqueeze(1)


def in_turn(
    work: Work,
    step: Callable[..., Any],
    start: Carried,
    steps: Sequence[int],
    disturb: Callable[[Tensor], Tensor] | None = None,
) -> Carried:
    """Make the steps one after another, as they are written; `disturb` changes what each of them starts from."""
    first_done, last_done, column = min(steps), max(steps), work._column(steps)
    carried = start
    for k in range(last_done):
        work._k = k
        carried = carried if disturb is None else tuple(map(disturb, carried))
        new = step(*carried)
        new = (new,) if len(start) == 1 else new
        if k >= first_done:
            live = column > k
            pairs = zip(new, carried, strict=True)
            new = tuple(torch.where(live, after, before) for after, before in pairs)
        carried = new
    return carried


class _Ones:
    """The problem behind `Work.unit`."""

    def __init__(self, x0: Tensor):
        self.x0 = x0

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: Any) -> None:
        return None

    def draw_each(self, *given: Any) -> None:
        return None

    def grad(self, y: Tensor, minibatches: None, k: int) -> Tensor:
        return torch.ones_like(y)
