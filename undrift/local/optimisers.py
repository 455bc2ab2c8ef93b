"""Client optimisers by name."""

from typing import Any, cast

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import check_value
from undrift.core.optimiser import HeavyBall, Optimiser, Pair

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
