"""Client optimisers by name."""

from typing import Any, cast

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, first_line, unknown
from undrift.core.hyper import check_value
from undrift.core.optimiser import HeavyBall, Optimiser, Pair
from undrift.core.records import check_records, tensors

OPTIMISERS = ("sgd", "momentum")
DEFAULT_MOMENTUM = 0.9  # of optimiser="momentum", as in most papers


def make_optimiser(optimiser: Any, momentum: float) -> Optimiser | None:
    """The optimiser of that name, or the given one; None is plain SGD, which has no state.

    >>> make_optimiser("momentum", 0.0)
    HeavyBall(momentum=0.9)
    >>> make_optimiser("adma", 0.0)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: unknown optimiser 'adma'. Known: momentum, sgd
    """
    check_value("Local", "momentum", momentum, float, within="[0, 1)")
    if optimiser == "sgd":
        return HeavyBall(momentum) if momentum else None
    if optimiser == "momentum":
        return HeavyBall(momentum or DEFAULT_MOMENTUM)
    if isinstance(optimiser, str):
        raise unknown("optimiser", optimiser, OPTIMISERS)
    if momentum:
        raise InvalidInput(
            "Local: momentum belongs to optimiser='sgd' or 'momentum': a custom one brings its own"
        )
    if isinstance(optimiser, tuple) and len(optimiser) == 2 and all(map(callable, optimiser)):
        return cast(Optimiser, Pair(*optimiser))
    if isinstance(optimiser, Optimiser) and not isinstance(optimiser, type):
        return optimiser
    raise InvalidInput(
        "Local: optimiser must be 'sgd', 'momentum' or a pair of functions (init, update), "
        f"got {optimiser!r}"
    )


@torch.no_grad()
def try_optimiser(optimiser: Optimiser, x: Tensor) -> None:
    """Make two steps of a custom optimiser, for one client alone and for two at once; raises InvalidInput if it cannot.

    >>> try_optimiser(make_optimiser((lambda y: None, lambda d, state, y: d.sum()), 0.0), torch.zeros(3))
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: Local: optimiser: update returned a direction of [] torch.float32 ...
    """
    row = torch.linspace(-1, 0.9, x.numel(), dtype=torch.float64)
    y = torch.stack([3 * row, row]).to(
        x
    )  # of another size, which shows in all reductions over both
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
                raise InvalidInput(
                    f"must return (direction, state), got {type(found).__name__}{count}"
                )
            direction, state = found
            _check_step(direction, state, form, y)
    except InvalidInput as error:
        raise InvalidInput(f"Local: optimiser: {stage} {error}") from None
    except Exception as error:
        raise InvalidInput(
            f"Local: optimiser: {stage} failed: {type(error).__name__}: {first_line(error)}"
        ) from error
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
