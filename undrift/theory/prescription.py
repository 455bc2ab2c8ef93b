"""What a theorem prescribes, as something that can be run; and the checks of what a theorem is given."""

from dataclasses import dataclass
from math import sqrt
from typing import Any, NoReturn

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_value
from undrift.local import Local

RANGES: dict[str, tuple[type, str]] = {
    "L": (float, "(0, inf)"),
    "mu": (float, "(0, inf)"),
    "sigma": (float, "[0, inf)"),
    "sigma_l": (float, "[0, inf)"),
    "sigma_g": (float, "[0, inf)"),
    "kappa": (float, "[0, inf)"),
    "B2": (float, "[1, inf)"),
    "Delta": (float, "(0, inf)"),
    "G0": (float, "[0, inf)"),
    "G_tau": (float, "[0, inf)"),
    "distance": (float, "(0, inf)"),
    "control_error": (float, "[0, inf)"),
    "c": (float, "(0, 1]"),
    "eta_g": (float, "[1, inf)"),
    "alpha": (float, "[0, 1)"),
    "rho": (float, "[0, 1)"),
    "beta": (float, "(0, 1]"),
    "lr": (float, "(0, inf)"),
    "N": (int, "[1, inf)"),
    "S": (int, "[1, inf)"),
    "K": (int, "[1, inf)"),
    "R": (int, "[1, inf)"),
    "tau": (int, "[1, inf)"),
    "delay": (int, "[0, inf)"),
}


def check_constants(source: str, **given: Any) -> None:
    """Refuse constants that are not what their letter may be, or that contradict each other.

    >>> check_constants("Theorem 2", L=1.0, mu=2.0)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: Theorem 2: mu <= L is needed, got mu = 2 and L = 1
    """
    for name, value in given.items():
        type_, within = RANGES[name]
        check_value(source, name, value, type_, within=within)
    if "mu" in given and given["mu"] > given["L"]:
        refuse(source, "mu <= L", mu=given["mu"], L=given["L"])
    if "S" in given and given["S"] > given["N"]:
        refuse(source, "S <= N", S=given["S"], N=given["N"])


def require(holds: bool, source: str, condition: str, **numbers: float) -> None:
    """Refuse with the condition of the theorem that is broken, and its numbers."""
    if not holds:
        refuse(source, condition, **numbers)


def refuse(source: str, condition: str, **numbers: float) -> NoReturn:
    got = [f"{name} = {value:.6g}" for name, value in numbers.items()]
    listed = " and ".join([", ".join(got[:-1]), got[-1]]) if len(got) > 1 else got[0]
    raise InvalidInput(f"{source}: {condition} is needed, got {listed}")


def checked_rounds(source: str, R: Any, **constants: Any) -> Any:
    """A number of rounds, or an array of them to draw a curve over, as floats; with the constants of the curve checked."""
    check_constants(source, **constants)
    try:
        rounds = np.asarray(R, dtype=float)
    except (TypeError, ValueError):
        raise InvalidInput(f"{source}: R is a number of rounds, or an array of them; got {R!r}") from None
    if not (rounds.size and (rounds >= 1).all()):
        raise InvalidInput(f"{source}: R >= 1 is needed, got {R}")
    return rounds if rounds.ndim else float(rounds)


@dataclass(frozen=True)
class Prescription:
    """What a theorem prescribes.  `method()` and `local()` are what `ud.run` takes; subclasses add the letters.

    source     the theorem                       rounds   R, the length of the run that it is for
    steps, lr  of `ud.Local`: the local steps and their size, eta or eta_l in the papers
    transient, floor                             what `bound` is made of
    """

    source: str
    rounds: int
    steps: int | list[int]
    lr: float
    transient: float
    floor: float

    def method(self) -> Any:
        """The method with the hyper-parameters that are prescribed."""
        raise NotImplementedError

    def local(self, batch: int | None = None) -> Local:
        """The local training that is prescribed; the size of a minibatch is what sigma belongs to."""
        return Local(steps=self.steps, lr=self.lr, batch=batch)

    def bound(self, rounds: Any = None) -> Any:
        """What the proof guarantees for the mean of E|grad f(x)|^2 over so many rounds (a number, or an array to draw)."""
        return self.transient / self.checked(rounds) + self.floor

    def checked(self, rounds: Any) -> Any:
        """The rounds of a bound: by default all, never more, since steps are chosen for so many."""
        R = checked_rounds(self.source, self.rounds if rounds is None else rounds)
        require(np.max(R) <= self.rounds, self.source, f"R <= {self.rounds}, the rounds that it is for,", R=np.max(R))
        return R


def largest_root(a: float, b: float, c: float) -> float:
    """The largest u with a u^2 + b u <= c, for a, c >= 0 and b > 0.

    >>> largest_root(1.0, 1.0, 2.0)
    1.0
    """
    return 2 * c / (b + sqrt(b**2 + 4 * a * c))
