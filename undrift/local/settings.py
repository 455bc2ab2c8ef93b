"""How clients train between two messages: how many steps, on how much data, with which step size and optimiser."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value
from undrift.core.optimiser import Optimiser
from undrift.core.rng import Key, Purpose, stream
from undrift.core.work import Solver
from undrift.local.optimisers import make_optimiser

if TYPE_CHECKING:
    from undrift.problems import Problem


@dataclass(frozen=True)
class Geometric:
    """A number of steps drawn once a round for all clients, k with probability p (1-p)^(k-1) (Scaffnew's coin)."""

    p: float


def setting(default: Any, help: str, within: str = "") -> Any:
    """A field, the interval its numbers must lie in, and a sentence about it for the command line's help."""
    return field(default=default, metadata={"help": help, "within": within})


@dataclass(frozen=True)
class Local:
    """Local training of every visit: the only definition of these settings, for Python, TOML and the command line.

    steps         a number; a *list* with one number a client; a *tuple* (low, high), drawn by client and visit from
                  low, ..., high; or Geometric(p), drawn by round
    epochs        passes over the client's data in place of steps: a number, or a tuple (low, high) as above
    batch         samples in a minibatch, None = all of the client's.  Each pass visits the data in a new order; its
                  last minibatch is short where the numbers do not divide.
    lr            the step size, or a list with one a round
    decay         lr is multiplied by this after every round
    optimiser     "sgd", "momentum", or a custom pair (init, update) of functions (undrift.core.optimiser); its state is
                  reset in every visit
    momentum      of "sgd" and "momentum", by default 0 and 0.9
    weight_decay  part of the gradient, so that it enters control variates and momenta
    clip          the largest norm of a minibatch gradient, weight decay not included

    >>> Local(steps=3, lr=-1)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: Local: lr must lie in [0, inf), got -1
    """

    steps: int | Sequence[int] | tuple[int, int] | Geometric | None = setting(
        None, "Local steps per visit"
    )
    epochs: int | tuple[int, int] | None = setting(None, "Local epochs per visit")
    batch: int | None = setting(None, "Samples in a minibatch", within="[1, inf)")
    lr: float | Sequence[float] = setting(0.1, "Local step size", within="[0, inf)")
    decay: float = setting(1.0, "Factor of the step size after every round", within="(0, 1]")
    momentum: float = setting(0.0, "Momentum of the local optimiser", within="[0, 1)")
    weight_decay: float = setting(0.0, "Weight decay, part of the gradient", within="[0, inf)")
    clip: float | None = setting(None, "Largest norm of a minibatch gradient", within="(0, inf)")
    optimiser: str | Optimiser | tuple[Callable[..., Any], Callable[..., Any]] = setting(
        "sgd", "Local optimiser: sgd or momentum"
    )

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "lr"):  # arrays and tensors are as good as lists
            value = vars(self)[name]
            if isinstance(value, (np.ndarray, np.generic, Tensor)):
                object.__setattr__(self, name, value.tolist())
        if self.steps is not None and self.epochs is not None:
            raise InvalidInput("Local: give steps or epochs, not both")
        if isinstance(self.steps, Geometric):
            check_value("Local", "steps' p", self.steps.p, float, within="(0, 1]")
        elif self.steps is not None:
            _check_counts("steps", self.steps)
        if self.epochs is not None:
            _check_counts("epochs", self.epochs)
        for f in fields(self):
            value = vars(self)[f.name]
            for each in _each(value):
                check_value("Local", f.name, each, f.type, f.default, f.metadata["within"])
        make_optimiser(self.optimiser, self.momentum)

    def check(self, N: int, rounds: int) -> None:
        """Raise InvalidInput if a list does not fit the number of clients or rounds."""
        if isinstance(self.lr, Sequence) and len(self.lr) < rounds:
            raise InvalidInput(
                f"Local: lr lists {len(self.lr)} step sizes for {rounds} rounds: give one a round"
            )
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

    @property
    def smallest_lr(self) -> float:
        """The smallest step size of a run."""
        return min(self.lr) if isinstance(self.lr, Sequence) else self.lr

    def solver(self, t: int) -> Solver:
        """The local solver of round t (the initialisation round, t = 0, has round 1's)."""
        t = max(t, 1)
        lr = self.lr[t - 1] if isinstance(self.lr, Sequence) else self.lr
        return Solver(
            float(lr) * self.decay ** (t - 1),
            self.batch,
            make_optimiser(self.optimiser, self.momentum),
            self.weight_decay,
            self.clip,
        )

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
            raise InvalidInput(f"Local: {name} must be whole numbers from 1 up, got {n}")
    if isinstance(numbers, tuple) and (len(numbers) != 2 or numbers[0] > numbers[1]):
        raise InvalidInput(
            f"Local: {name}={numbers} should be (low, high); for one number a client give a list"
        )
