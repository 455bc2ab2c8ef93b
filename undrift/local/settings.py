"""How clients train between two messages: how many steps, on how much data, with which step size and optimiser."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value
from undrift.core.optimiser import Optimiser
from undrift.core.rng import Key, Purpose, stream
from undrift.core.work import Solver
from undrift.local.optimisers import NAMED, AdamW, make_optimiser
from undrift.local.schedules import SCHEDULES, DependsOnRounds, Schedule, check_factors, make_schedule

if TYPE_CHECKING:
    from undrift.problems import Problem

BETWEEN = ("reset", "keep", "average")  # what becomes of a state between visits


MOST_STEPS = 10**7  # of a visit


@dataclass(frozen=True)
class Geometric:
    """A number of steps drawn once a round for all clients, k with probability p (1-p)^(k-1) (Scaffnew's coin)."""

    p: float


def described(default: Any, help: str, within: str = "") -> Any:
    """A field, the interval its numbers must lie in, and a sentence about it for the command line's help."""
    return field(default=default, metadata={"help": help, "within": within})


@dataclass(frozen=True)
class Local:
    """Local training of every visit: the only definition of these settings, for Python, TOML and the command line.

    steps         by default one epoch: a number; a *list* with one number a client; a *tuple* (low, high), drawn by client and visit from
                  low, ..., high; or Geometric(p), drawn by round
    epochs        passes over the client's data in place of steps: a number, or a tuple (low, high) as above
    batch         samples in a minibatch, None = all of the client's.  Each pass visits the data in a new order; its
                  last minibatch is short where the numbers do not divide.
    replacement   every sample of a minibatch is drawn on its own instead, as the papers' theory has it; a client with
                  fewer samples than a minibatch draws as many as it has
    lr            the step size, 0.1 by default, or a list with one a round
    decay         lr is multiplied by this after every round, 1 by default
    schedule      the factor of lr in a round: "constant", "step:30,factor=0.1", "exponential:0.99", "cosine",
                  "warmup:10,then=cosine", "multistage:10" (undrift.local.schedules); a list with one a round; or a
                  function of the round, 1, 2, ...
    optimiser     "sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", with parameters after a colon,
                  "adam:beta2=0.99" (undrift.local.optimisers), or a custom pair (init, update) of functions
    optimiser_state   between two visits of a client it is "reset"; "keep": the client keeps it; "average": it travels,
                  and the server averages it with the models
    momentum      of "sgd", "momentum" and "nesterov", by default 0 and 0.9
    weight_decay  0 by default; part of the gradient, so that it enters control variates and momenta; of "adamw" decoupled
    clip          the largest norm of a minibatch gradient, weight decay not included; None: any

    >>> Local(steps=3, lr=-1)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: Local: lr must lie in [0, inf), got -1
    """

    steps: int | Sequence[int] | tuple[int, int] | Geometric | None = described(
        None, "Local steps of a client per round, instead of epochs"
    )
    epochs: int | tuple[int, int] | None = described(
        None, "Passes of a client over its samples per round, each of (samples / batch) local steps"
    )
    batch: int | None = described(None, "Samples in a minibatch", within="[1, inf)")
    lr: float | Sequence[float] = described(0.1, "Local step size", within="[0, inf)")
    decay: float = described(1.0, "Factor of the step size after every round", within="(0, 1]")
    momentum: float = described(0.0, "Momentum of the local optimiser", within="[0, 1)")
    weight_decay: float = described(0.0, "Weight decay, part of the gradient", within="[0, inf)")
    clip: float | None = described(None, "Largest norm of a minibatch gradient", within="(0, inf)")
    optimiser: str | Optimiser | tuple[Callable[..., Any], Callable[..., Any]] = described(
        "sgd", f"Local optimiser: {', '.join(NAMED)}"
    )
    optimiser_state: str = described("reset", "Between visits: reset, keep (by the client), average (by the server)")
    schedule: Schedule = described("constant", f"Step size over rounds: {', '.join(SCHEDULES)}")
    replacement: bool = described(False, "Draw minibatches with replacement")

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "lr", "schedule"):  # arrays and tensors are as good as lists
            value = vars(self)[name]
            if isinstance(value, (np.ndarray, np.generic, Tensor)):
                object.__setattr__(self, name, value.tolist())
        if self.steps is not None and self.epochs is not None:
            raise InvalidInput("Local: give steps or epochs, not both")
        if isinstance(self.steps, Geometric):
            check_value("Local", "steps' p", self.steps.p, float, within=f"[{1 / MOST_STEPS:g}, 1]")
        elif self.steps is not None:
            _check_counts("steps", self.steps)
        if self.epochs is not None:
            _check_counts("epochs", self.epochs)
        for f in fields(self):
            value = vars(self)[f.name]
            for each in _each(value):
                check_value("Local", f.name, each, f.type, f.default, f.metadata["within"])
        check_value("Local", "optimiser_state", self.optimiser_state, str, among=BETWEEN)
        if self.client_optimiser is None and self.optimiser_state != "reset":
            raise InvalidInput("Local: plain SGD has no state: optimiser_state is of 'momentum', 'adam', ...")
        make_schedule(self.schedule)
        check_value("Local", "replacement", self.replacement, bool, among=(False, True))
        if self.replacement and self.batch is None:
            raise InvalidInput("Local: replacement=True needs a batch: all of a client's samples are no draw")

    @property
    def client_optimiser(self) -> Optimiser | None:
        """The optimiser of every visit; None is plain SGD."""
        if self.optimiser == "sgd" and not self.momentum:
            return None
        return make_optimiser(self.optimiser, self.momentum, self.weight_decay)

    def for_run(self, rounds: int) -> "Local":
        """The same with a schedule of so many rounds."""
        schedule = make_schedule(self.schedule)
        return replace(self, schedule=schedule.for_run(rounds)) if isinstance(schedule, DependsOnRounds) else self

    def check(self, N: int, rounds: int) -> None:
        """Raise InvalidInput if a list does not fit the number of clients or rounds."""
        if isinstance(self.lr, Sequence) and len(self.lr) < rounds:
            raise InvalidInput(f"Local: lr lists {len(self.lr)} step sizes for {rounds} rounds: give one a round")
        check_factors(make_schedule(self.schedule), rounds)
        if _is_list(self.steps) and len(self.steps) != N:  # pyright: ignore[reportArgumentType]
            got = len(self.steps)  # pyright: ignore[reportArgumentType]
            raise InvalidInput(f"Local: steps lists {got} numbers for {N} clients: give one each")

    def unequal(self, problem: "Problem") -> bool:
        """Whether clients of one round may make different numbers of steps."""
        if _is_list(self.steps):
            return len(set(self.steps)) > 1  # pyright: ignore[reportArgumentType]
        if any(isinstance(n, tuple) and n[0] < n[1] for n in (self.steps, self.epochs)):
            return True
        if self.steps is not None:
            return False
        return len({problem.steps_per_epoch(i, self.batch) for i in range(problem.N)}) > 1

    def has_zero_lr(self, rounds: int) -> bool:
        """Whether the step size is zero in some round."""
        listed = self.lr if isinstance(self.lr, Sequence) else [self.lr]
        return min(listed) == 0 or min(check_factors(make_schedule(self.schedule), rounds)) == 0

    def solver(self, t: int) -> Solver:
        """The local solver of round t (the initialisation round, t = 0, has round 1's)."""
        t = max(t, 1)
        lr = float(self.lr[t - 1] if isinstance(self.lr, Sequence) else self.lr) * self.decay ** (t - 1)
        if self.schedule != "constant":
            lr *= float(make_schedule(self.schedule)(t))
        optimiser = self.client_optimiser
        decay = 0.0 if isinstance(optimiser, AdamW) else self.weight_decay
        return Solver(lr, self.batch, optimiser, decay, self.clip, self.replacement)

    def count(self, problem: "Problem", key: Key, clients: Sequence[int]) -> list[int]:
        """How many steps each of these clients makes in this round."""
        if isinstance(self.steps, Geometric):
            coin = stream(Purpose.STEPS, Key(key.seed, key.round))
            return [int(coin.geometric(self.steps.p))] * len(clients)
        if self.steps is not None:
            return [_number(self.steps, key, i) for i in clients]
        epochs = 1 if self.epochs is None else self.epochs
        return [_number(epochs, key, i) * problem.steps_per_epoch(i, self.batch) for i in clients]


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _is_list(numbers: object) -> bool:
    return isinstance(numbers, Sequence) and not isinstance(numbers, tuple)


def _number(numbers: int | Sequence[int] | tuple[int, int], key: Key, client: int) -> int:
    if isinstance(numbers, int):
        return numbers
    if isinstance(numbers, tuple):
        random = stream(Purpose.STEPS, Key(key.seed, key.round), client)
        return int(random.integers(numbers[0], numbers[1] + 1))
    return int(numbers[client])


def _check_counts(name: str, numbers: int | Sequence[int] | tuple[int, ...]) -> None:
    for n in _each(numbers):
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
            raise InvalidInput(f"Local: {name} must be whole numbers from 1 up, got {n!r}")
        if int(n) > MOST_STEPS:
            raise InvalidInput(f"Local: {name} must be at most {MOST_STEPS}, got {n}")
    if isinstance(numbers, tuple) and (len(numbers) != 2 or numbers[0] > numbers[1]):
        drawn = f"Local: {name} that are drawn go from a low number to a high one, got {numbers}"
        raise InvalidInput(f"{drawn}; for one number a client give a list")
