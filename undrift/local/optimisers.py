"""Client optimisers by name: SGD, momentum, Nesterov, Adam, AdamW, Adagrad, with the rules of `torch.optim`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, first_line
from undrift.core.hyper import build_named, check_fields, check_value, hyper
from undrift.core.optimiser import HeavyBall, Optimiser, Pair
from undrift.core.records import check_records, tensors

DEFAULT_MOMENTUM = 0.9  # of optimiser="momentum" and "nesterov", as in most papers

# m, v, and c1, c2, what they would be if all gradients were 1: columns
Moments: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Nesterov(HeavyBall):
    """u <- momentum u + d, the step is along d + momentum u: `torch.optim.SGD(momentum=..., nesterov=True)`."""

    def update(self, d: Tensor, state: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        u = self.momentum * state + d
        return d + self.momentum * u, u


@dataclass(frozen=True)
class Adam:
    """m <- beta1 m + (1 - beta1) d,  v <- beta2 v + (1 - beta2) d^2,  the step is along mh / (sqrt(vh) + eps).

    mh = m / (1 - beta1^k) and vh = v / (1 - beta2^k) after k steps; without bias_correction, m and v themselves.
    1 - beta^k is carried as c <- beta c + (1 - beta), so that it stays the weight of what is averaged.

    >>> step, _ = Adam().update(torch.tensor([4.0]), Adam().init(torch.zeros(1)), torch.zeros(1))
    >>> step
    tensor([1.])
    """

    beta1: float = hyper(default=0.9, within="[0, 1)")
    beta2: float = hyper(default=0.999, within="[0, 1)")
    eps: float = hyper(default=1e-8, within="(0, inf)")
    bias_correction: bool = hyper(default=True, among=(False, True))
    linear = False

    __post_init__ = check_fields

    def init(self, y: Tensor) -> Moments:
        zero, column = torch.zeros_like(y), torch.zeros_like(y[..., :1])
        return zero, zero.clone(), column, column.clone()

    def update(self, d: Tensor, state: Moments, y: Tensor) -> tuple[Tensor, Moments]:
        m, v, c1, c2 = state
        m, c1 = self.beta1 * m + (1 - self.beta1) * d, self.beta1 * c1 + (1 - self.beta1)
        v, c2 = self.beta2 * v + (1 - self.beta2) * d * d, self.beta2 * c2 + (1 - self.beta2)
        mh, vh = (m / c1, v / c2) if self.bias_correction else (m, v)
        return mh / (vh.sqrt() + self.eps), (m, v, c1, c2)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: the step is along Adam's and weight_decay y."""

    weight_decay: float = hyper(default=0.01, within="[0, inf)")

    def update(self, d: Tensor, state: Moments, y: Tensor) -> tuple[Tensor, Moments]:
        direction, state = super().update(d, state, y)
        return direction + self.weight_decay * y, state


@dataclass(frozen=True)
class Adagrad:
    """s <- s + d^2, the step is along d / (sqrt(s) + eps)."""

    eps: float = hyper(default=1e-10, within="(0, inf)")
    linear = False

    __post_init__ = check_fields

    def init(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)

    def update(self, d: Tensor, state: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        s = state + d * d
        return d / (s.sqrt() + self.eps), s


RESCALING = Adam | Adagrad  # a step of theirs is not in proportion to the gradient
NAMED: dict[str, Any] = {
    "sgd": None, "momentum": HeavyBall, "nesterov": Nesterov, "adam": Adam, "adamw": AdamW, "adagrad": Adagrad
}  # fmt: skip


def make_optimiser(optimiser: Any, momentum: float, weight_decay: float = 0.0) -> Optimiser | None:
    """The optimiser of that name, or the given one; None is plain SGD, which has no state.

    A weight decay of AdamW's is the decoupled one.

    >>> make_optimiser("momentum", 0.0)
    HeavyBall(momentum=0.9)
    >>> make_optimiser("adam:beta2=0.99", 0.0)
    Adam(beta1=0.9, beta2=0.99, eps=1e-08, bias_correction=True)
    >>> make_optimiser("adma", 0.0)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: unknown optimiser 'adma'; did you mean 'adam'? Known: adagrad, adam, ...
    """
    check_value("Local", "momentum", momentum, float, within="[0, 1)")
    plain = {
        "sgd": lambda: HeavyBall(momentum) if momentum else None,
        "momentum": lambda: HeavyBall(momentum or DEFAULT_MOMENTUM),
        "nesterov": lambda: Nesterov(momentum or DEFAULT_MOMENTUM),
    }
    if isinstance(optimiser, str | Mapping):
        made = build_named("optimiser", NAMED | plain, optimiser)
    elif isinstance(optimiser, tuple) and len(optimiser) == 2 and all(map(callable, optimiser)):
        made = cast(Optimiser, Pair(*optimiser))
    elif isinstance(optimiser, Optimiser) and not isinstance(optimiser, type):
        made = optimiser
    else:
        raise InvalidInput(
            f"Local: optimiser must be a name ({', '.join(NAMED)}) or a pair of functions (init, update), got {optimiser!r}"
        )
    if momentum and not (isinstance(optimiser, str | Mapping) and isinstance(made, HeavyBall)):
        raise InvalidInput(
            "Local: momentum belongs to optimiser='sgd', 'momentum' or 'nesterov': others bring their own"
        )
    if isinstance(made, AdamW) and weight_decay:
        return replace(made, weight_decay=weight_decay)
    return made


@torch.no_grad()
def try_optimiser(optimiser: Optimiser, x: Tensor) -> None:
    """Make two steps of a custom optimiser, for one client alone and for two at once; raises InvalidInput if it cannot.

    >>> try_optimiser(make_optimiser((lambda y: None, lambda d, state, y: d.sum()), 0.0), torch.zeros(3))
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: Local: optimiser: update returned a direction of [] torch.float32 ...
    """
    row = torch.linspace(-1, 0.9, x.numel(), dtype=torch.float64)
    y = torch.stack([3 * row, row]).to(x)  # of another size, which shows in all reductions over both
    both, alone = _two_steps(optimiser, y, -y), _two_steps(optimiser, y[1], -y[1])
    if not torch.allclose(both[1], alone, rtol=1e-5, atol=1e-6, equal_nan=True):
        raise InvalidInput(
            "Local: optimiser: a client's step is another beside other clients than alone: use reductions over dim=-1 only"
        )


def _two_steps(optimiser: Optimiser, y: Tensor, d: Tensor) -> Tensor:
    """The direction of the second step."""
    given = y.clone(), d.clone()
    stage, direction = "init", d
    try:
        state = optimiser.init(y)
        check_records(state)
        stage = "update"
        for _ in range(2):
            form = _form(state)
            found = optimiser.update(d, state, y)
            if not isinstance(found, tuple) or len(found) != 2:
                count = f" of {len(found)}" if isinstance(found, tuple) else ""
                raise InvalidInput(f"must return (direction, state), got {type(found).__name__}{count}")
            direction, state = found
            _check_step(direction, state, form, y)
    except InvalidInput as error:
        raise InvalidInput(f"Local: optimiser: {stage} {error}") from None
    except Exception as error:
        raise InvalidInput(f"Local: optimiser: {stage} failed: {type(error).__name__}: {first_line(error)}") from error
    if not (torch.equal(y, given[0]) and torch.equal(d, given[1])):
        raise InvalidInput("Local: optimiser: init and update must not change what they are given")
    return direction


def _check_step(direction: Any, state: Any, form: Any, y: Tensor) -> None:
    if not isinstance(direction, Tensor):
        raise InvalidInput(f"must return a tensor as direction, got {type(direction).__name__}")
    if (direction.shape, direction.dtype) != (y.shape, y.dtype):
        raise InvalidInput(
            f"returned a direction of {list(direction.shape)} {direction.dtype} for {list(y.shape)} {y.dtype}: "
            "they must be alike"
        )
    check_records(state)
    if _form(state) != form:
        raise InvalidInput("returned a state of other shapes or types than it was given")


def _form(state: Any) -> Any:
    return type(state), [(t.shape, t.dtype) for t in tensors(state)]
