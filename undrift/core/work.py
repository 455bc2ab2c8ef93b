"""What a client computes with during one visit: minibatches, gradients, the local loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undrift.core.batched_scalar import is_zero
from undrift.core.observe import LocalPath, Observed
from undrift.core.optimiser import HeavyBall, Optimiser
from undrift.core.records import rebuild, tensors
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
    replacement: bool = False  # every sample of a minibatch is drawn on its own


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
        path: LocalPath | None = None,  # follows local models, where a metric asks for it
    ):
        self.problem, self.solver, self.clients = problem, solver, clients
        self.steps, self.key, self.single, self.rounds = list(steps), key, single, rounds
        self.path = path
        self.lr: Any = solver.lr
        self.K = self.column(steps)
        self._minibatches: Any = None
        self._k: int | None = None  # the step, inside a loop
        self._optimiser_state: Any = None
        self.carried: Any = None  # the optimiser's state, where visits pass it on: of earlier ones, then of this one
        self._draws = 0  # how often the method has drawn random numbers
        self.own_parameters: Tensor | None = None  # parameters that do not travel: of earlier visits, then of this one
        self._own_grad: Tensor | None = None  # theirs, of the first gradient of a step

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
        carried, path = start, self.path if steps is None else None
        own_state: Any = None  # the optimiser's, of the client's own parameters
        if path is not None:
            path.begin(start[:1])
        for k in range(last_done):
            self._k, self._draws = k, 0
            before = self._optimiser_state
            if path is not None:
                path.step(k, carried[:1])
            self._own_grad = None
            new = step(*carried)
            new = (new,) if len(start) == 1 else new
            if steps is None and self.own_parameters is not None:
                own_state = self._step_own(own_state, column > k)
            if k >= first_done:
                active = column > k
                new = tuple(torch.where(active, after, before) for after, before in zip(new, carried, strict=True))
                if self.carried is not None:
                    pairs = zip(tensors(self._optimiser_state), tensors(before), strict=True)
                    self._optimiser_state = rebuild(before, iter([torch.where(active, *pair) for pair in pairs]))
            carried = new
        self._k, self._draws = None, 0
        if self.carried is not None:
            self.carried = self._optimiser_state
        if path is not None:
            path.end(carried[:1])
        return carried[0] if len(start) == 1 else carried

    def observed(self, count: int) -> Observed | None:
        """What was seen of the loops of the first `count` clients, if a metric asks for it."""
        return None if self.path is None else self.path.seen(count)

    def begin_loop(self, K: Sequence[int]) -> Any:
        """Draw the minibatches of the next loop."""
        self._minibatches = self.draw_minibatches(self.key, K)
        self.key = replace(self.key, loop=self.key.loop + 1)
        self._optimiser_state = self.carried
        return self._minibatches

    def grad(self, y: Tensor) -> Tensor:
        """The gradient at y on this step's minibatch; a second call in the same step uses the same minibatch.

        Clipping, if asked for, comes before weight decay, as in a PyTorch training loop.
        """
        y = self._whole(y)
        g = self.minibatch_grad(y)
        clip = self.solver.clip
        if clip is not None:
            norm = g.norm(dim=-1, keepdim=True)
            g = g * (clip / norm.clamp(min=clip))
        g = self._decayed(g, y)
        if self.own_parameters is None:
            return g
        g, own = g.split([y.shape[-1] - self.own_parameters.shape[-1], self.own_parameters.shape[-1]], -1)
        self._own_grad = own if self._own_grad is None else self._own_grad
        return g

    def _whole(self, y: Tensor) -> Tensor:
        """The shared parameters with the client's own, if it has any."""
        return y if self.own_parameters is None else torch.cat([y, self.own_parameters], -1)

    def _step_own(self, state: Any, active: Tensor) -> Any:
        """A local step of the client's own parameters, along the first gradient that the method has asked for."""
        before, d, optimiser = self.own_parameters, self._own_grad, self.solver.optimiser
        assert before is not None
        if d is None:  # the method asked for none
            return state
        if optimiser is not None:
            d, state = optimiser.update(d, optimiser.init(before) if state is None else state, before)
        self.own_parameters = torch.where(active, before - self.lr * d, before)
        return state

    def minibatch_grad(self, y: Tensor) -> Tensor:
        """The gradient of the loss alone."""
        if self._k is None:
            raise RuntimeError("work.grad needs a minibatch: call it inside work.loop")
        return self.problem.grad(y, self._minibatches, self._k)

    def full_grad(self, x: Tensor) -> Tensor:
        """The gradient at x of the client's whole objective."""
        y = self._whole(x)
        g = self._decayed(self.problem.full_grad(y, self.clients), y)
        return g if self.own_parameters is None else g[..., : x.shape[-1]]

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

    def keyed_random(self, purpose: Purpose, key: Key, call: int, like: Tensor, distribution: Distribution) -> Tensor:
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

    def draw_minibatches(self, key: Key, K: Sequence[int]) -> Any:
        """Minibatches of a loop of so many steps of each client."""
        problem: Any = self.problem
        clients, batch = self.clients, self.solver.batch
        if self.solver.replacement:
            rounds = self.rounds or [key.round] * len(clients)
            return problem.draw_with_replacement(key, rounds, clients, K, batch)
        if self.rounds is None:
            return problem.draw(key, clients, K, batch)
        return problem.draw_each(key, self.rounds, clients, K, batch)

    def _decayed(self, g: Tensor, y: Tensor) -> Tensor:
        decay = self.solver.weight_decay
        return g if is_zero(decay) else g + decay * y


class Ones:
    """The problem behind `Work.unit`, and behind visits whose records are looked at only for their form."""

    def __init__(self, x0: Tensor):
        self.x0 = x0

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: Any) -> None:
        return None

    def draw_each(self, *given: Any) -> None:
        return None

    draw_with_replacement = draw_each

    def grad(self, y: Tensor, minibatches: None, k: int) -> Tensor:
        return torch.ones_like(y)

    def full_grad(self, x: Tensor, clients: Sequence[int]) -> Tensor:
        return torch.ones_like(x)
