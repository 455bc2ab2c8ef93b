"""What an engine lends a client for one visit: minibatches, gradients, the local loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undrift.core.batched_scalar import is_zero
from undrift.core.optimiser import HeavyBall, Optimiser
from undrift.core.rng import Distribution, Key, Purpose, draw_numbers

if TYPE_CHECKING:
    from undrift.problems import Problem


@dataclass(frozen=True)
class Solver:
    """The local solver of one round, as `ud.Local` describes it; without an optimiser it is plain SGD."""

    lr: float
    batch: int | None = None
    optimiser: Optimiser | None = None
    weight_decay: float = 0.0
    clip: float | None = None


class NoCommonRound(Exception):
    """A method asked for the round where clients of several rounds are computed at once."""


class Work:
    """One visit of one client, or of a whole cohort at once (vectors `[S, D]`).

    t     the round, from 1 (0 in the initialisation round)
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
        self.steps, self.key, self.single, self.rounds = list(steps), key, single, rounds
        self.lr: Any = solver.lr
        self.K = self.column(steps)
        self._minibatches: Any = None
        self._k: int | None = None  # the step, inside a loop
        self._optimiser_state: Any = None
        self._draws = 0  # how often the method has drawn random numbers

    @property
    def t(self) -> int:
        if self.rounds is not None:
            raise NoCommonRound
        return self.key.round

    def loop(self, step: Callable[..., Any], *start: Any, steps: int | None = None) -> Any:
        """Carry values through `step`, each time on the next minibatch; returns what it carried last.

        Every client makes its own K steps (or `steps`, the same for all): the values of one that is done stay as they
        are while others continue.  A second loop in the same visit draws minibatches of its own.
        """
        K = self.steps if steps is None else [steps] * len(self.clients)
        self.begin_loop(K)
        first_done, last_done, column = min(K), max(K), self.column(K)
        carried = start
        for k in range(last_done):
            self._k, self._draws = k, 0
            new = step(*carried)
            new = (new,) if len(start) == 1 else new
            if k >= first_done:
                active = column > k
                pairs = zip(new, carried, strict=True)
                new = tuple(torch.where(active, after, before) for after, before in pairs)
            carried = new
        self._k, self._draws = None, 0
        return carried[0] if len(start) == 1 else carried

    def begin_loop(self, K: Sequence[int]) -> Any:
        """Draw the minibatches of the next loop."""
        self._minibatches = self._draw_minibatches(K)
        self.key = replace(self.key, loop=self.key.loop + 1)
        self._optimiser_state = None
        return self._minibatches

    def grad(self, y: Tensor) -> Tensor:
        """The gradient at y on this step's minibatch; a second call in the same step uses the same minibatch.

        Clipping, if asked for, comes before weight decay, as in a PyTorch training loop.
        """
        g = self.minibatch_grad(y)
        clip = self.solver.clip
        if clip is not None:
            norm = g.norm(dim=-1, keepdim=True)
            g = g * (clip / norm.clamp(min=clip))
        return self._decayed(g, y)

    def minibatch_grad(self, y: Tensor) -> Tensor:
        """The gradient of the loss alone."""
        if self._k is None:
            raise RuntimeError("work.grad needs a minibatch: call it inside work.loop")
        return self.problem.grad(y, self._minibatches, self._k)

    def full_grad(self, x: Tensor) -> Tensor:
        """The gradient at x of the client's whole objective."""
        return self._decayed(self.problem.full_grad(x, self.clients), x)

    def step(self, y: Tensor, d: Tensor, momentum: float | None = None) -> Tensor:
        """One step of the local solver along d: y - lr d, or along what the optimiser makes of d.

        The optimiser is that of `ud.Local` unless the method brings a momentum of its own.
        """
        optimiser = self.solver.optimiser
        if momentum is not None:
            optimiser = None if is_zero(momentum) else HeavyBall(momentum)
        if optimiser is not None:
            state = self._optimiser_state
            state = optimiser.init(y) if state is None else state
            d, self._optimiser_state = optimiser.update(d, state, y)
        if isinstance(self.lr, float) and self.lr <= torch.finfo(y.dtype).max:
            return torch.sub(y, d, alpha=self.lr)  # in one pass over memory
        return y - self.lr * d

    def descend(self, direction: Callable[..., Any], x: Tensor, *start: Any) -> Any:
        """Make the visit's K steps along d = direction(y), from y = x; returns x - y and the mean of all d.

        What else is carried follows x, and d in what `direction` returns; its last values are returned after the mean.

        The mean is (x - y)/(lr K), so that no sum of vectors is carried through the steps; with lr = 0 or a client
        optimiser, where the way does not tell, it is a sum.  Rounding of y enters it as eps |x| / (lr K), which later
        steps multiply by lr K: they are off by no more than the model's own rounding.
        """
        plain = self.solver.optimiser is None and not is_zero(self.lr)

        def step(y: Tensor, total: Tensor, *others: Any) -> Any:
            d, *new = direction(y, *others) if others else (direction(y),)
            return self.step(y, d), total if plain else total + d, *new

        y, total, *new = self.loop(step, x, self.zero if plain else 0 * x, *start)
        delta = x - y
        return delta, delta / (self.lr * self.K) if plain else total / self.K, *new

    def random(self, like: Tensor, distribution: Distribution = "normal") -> Tensor:
        """Random numbers of the shape of `like`: standard normal, or "uniform" in [0, 1).

        They are keyed by seed, round, exchange, loop, step, client and how often the method has drawn before, so engines
        draw the same numbers and a resumed run repeats them.
        """
        call = self._draws + (0 if self._k is None else (self._k + 1) << 16)
        self._draws += 1
        return self.keyed_random(Purpose.METHOD, self.key, call, like, distribution)

    def keyed_random(
        self, purpose: Purpose, key: Key, call: int, like: Tensor, distribution: Distribution
    ) -> Tensor:
        """Random numbers with a row for each client of this visit, or with one client just its own."""
        rounds = self.rounds or [key.round] * len(self.clients)
        keys = [replace(key, round=t) for t in rounds]
        rows = like.unsqueeze(0) if self.single else like
        drawn = draw_numbers(purpose, keys, self.clients, call, rows, distribution)
        return drawn[0] if self.single else drawn

    @property
    def unit(self) -> "Work":
        """The same visit with a model of one number whose gradient is 1 everywhere.

        Whatever a linear solver makes of it is the sum of the coefficients with which gradients enter y (FedNova).
        """
        ones: Any = Ones(self.K.new_zeros(1))
        solver = replace(self.solver, weight_decay=0.0, clip=None)
        return Work(ones, solver, self.clients, self.steps, self.key, self.single, self.rounds)

    @property
    def zero(self) -> Tensor:
        """The number 0 of every client, as a column: where `unit` starts."""
        return 0 * self.K

    def column(self, numbers: Sequence[int]) -> Tensor:
        """A number for every client, as vectors are laid out here: `[1]` or `[S, 1]`."""
        column = torch.tensor(numbers, dtype=self.problem.x0.dtype, device=self.problem.x0.device)
        return column if self.single else column.unsqueeze(1)

    def _draw_minibatches(self, K: Sequence[int]) -> Any:
        problem: Any = self.problem
        if self.rounds is None:
            return problem.draw(self.key, self.clients, K, self.solver.batch)
        return problem.draw_each(self.key, self.rounds, self.clients, K, self.solver.batch)

    def _decayed(self, g: Tensor, y: Tensor) -> Tensor:
        decay = self.solver.weight_decay
        return g if is_zero(decay) else g + decay * y


class Ones:
    """The problem behind `Work.unit`."""

    def __init__(self, x0: Tensor):
        self.x0 = x0

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: Any) -> None:
        return None

    def draw_each(self, *given: Any) -> None:
        return None

    def grad(self, y: Tensor, minibatches: None, k: int) -> Tensor:
        return torch.ones_like(y)
