"""What `run` and `rounds` refuse before any work starts."""

from typing import Any

from torch import Tensor

from undrift.core import Algorithm, check_records
from undrift.errors import InvalidInput
from undrift.hyper import Spec, check_value
from undrift.local import Local
from undrift.participation import Everyone, Participation, Weighted
from undrift.problems import Problem


def check_kinds(algorithm: Any, problem: Any, participation: Any, local: Any) -> None:
    """Refuse a class in place of an object, a name in place of a method."""
    for name, value, asked, example in (
        ("algorithm", algorithm, ("server", "client", "send", "local", "update"), "ud.FedAvg()"),
        ("problem", problem, ("x0", "draw", "grad", "evaluate"), "ud.federate(...)"),
        ("participation", participation, ("check", "draw"), "ud.Uniform(10)"),
        ("local", local, ("check", "solver", "count"), "ud.Local(steps=10, lr=0.1)"),
    ):
        if isinstance(value, type) or not all(hasattr(value, each) for each in asked):
            raise InvalidInput(f"{name} must be an object such as {example}, got {value!r}")


def check_numbers(rounds: int, seed: int, chunk: int | None, evaluate_every: int) -> None:
    """Refuse numbers that are none, or out of range."""
    check_value("run", "rounds", rounds, int, within="[1, inf)")
    check_value("run", "seed", seed, int, within=f"[0, {2**64})")
    check_value("run", "chunk", chunk, int, None, within="[1, inf)")
    check_value("run", "evaluate_every", evaluate_every, int, within="[1, inf)")


def check_first_records(algorithm: Algorithm, server: Any) -> None:
    """A method's records must be what engines can carry."""
    name = type(algorithm).__name__
    try:
        check_records(server, algorithm.send(server))
    except TypeError as error:
        raise InvalidInput(f"{name}: {error}") from error
    if not isinstance(getattr(server, "x", None), Tensor):
        raise InvalidInput(f"{name}: the server's record needs a field x, the model")


def check_fit(
    algorithm: Algorithm, problem: Problem, rounds: int, participation: Participation, local: Local
) -> None:
    """Refuse what a method is not defined for."""
    participation.check(problem.N, rounds)
    local.check(problem.N, rounds)
    own_check = getattr(algorithm, "check", None)
    if own_check is not None:
        own_check(problem.N, rounds)
    spec: Spec | None = getattr(algorithm, "spec", None)
    if spec is None:
        return
    if spec.everyone and not isinstance(participation, Everyone):
        raise InvalidInput(f"{spec.name} is defined for full participation: use ud.Everyone()")
    equal_steps = getattr(algorithm, "equal_steps", spec.equal_steps)
    if equal_steps and local.unequal(problem):
        raise InvalidInput(f"{spec.name} needs the same number of steps of every client")
    if spec.adds_states and isinstance(participation, Weighted):
        raise InvalidInput(
            f"{spec.name} adds up clients' states with the problem's weights, ud.Weighted draws by weight and averages "
            "plainly: use ud.Uniform(S) with it"
        )
    if spec.divides_by_lr and local.smallest_lr == 0:
        raise InvalidInput(f"{spec.name} divides by the local step size: lr must be positive")
    if local.momentum and not spec.local_momentum:
        raise InvalidInput(
            f"{spec.name} has a local rule of its own: use ud.Local(momentum=0) with it"
        )
