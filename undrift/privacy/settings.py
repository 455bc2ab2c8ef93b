"""`ud.Privacy`: how much of one client may show in what the server keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan
from numbers import Real
from typing import Any, Literal

from undrift.core.errors import InvalidInput
from undrift.core.hyper import build_method, check_value


@dataclass(frozen=True)
class Privacy:
    """Client-level differential privacy of a run (docs/privacy.md).

    clip      the largest norm of what a client sends in a round, over all vectors of its message together
    noise     the noise multiplier: the sum over clients is released with Gaussian noise of deviation noise * clip
    epsilon   in place of noise: the least noise with which the whole run is (epsilon, delta)-private is searched for
    delta     of the guarantee; less than one over the number of clients
    where     "server": the server, which is trusted, adds the noise; "clients": each adds its share, so that the sum of the
              cohort's messages has all of it

    >>> Privacy(clip=0)
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: privacy: clip must be a positive number, got 0
    """

    clip: float
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    where: Literal["server", "clients"] = "server"

    def __post_init__(self) -> None:
        number = isinstance(self.clip, Real) and not isinstance(self.clip, bool) and not isnan(self.clip)
        if not number or self.clip <= 0:
            raise InvalidInput(f"privacy: clip must be a positive number, got {self.clip!r}")
        check_value("privacy", "noise", self.noise, float, None, within="[0, inf)")
        check_value("privacy", "epsilon", self.epsilon, float, None, within="(0, inf)")
        check_value("privacy", "delta", self.delta, float, within="(0, 1)")
        check_value("privacy", "where", self.where, str, among=("server", "clients"))
        if (self.noise is None) == (self.epsilon is None):
            raise InvalidInput(
                "privacy: give noise, the noise multiplier, or epsilon, for which the noise is searched; one of the two"
            )
        if self.clip == inf and self.noise != 0:
            raise InvalidInput("privacy: without a finite clip no noise protects anybody: give clip, e.g. clip=1.0")

    @property
    def deviation(self) -> float:
        """Of the noise on the sum of what clients send."""
        assert self.noise is not None, "found by now"
        return self.noise * self.clip if self.noise else 0.0


def make_privacy(given: Any) -> Privacy | None:
    """A Privacy, also of a dictionary of its fields.

    >>> make_privacy({"clip": 1.0, "noise": 0.8})
    Privacy(clip=1.0, noise=0.8, epsilon=None, delta=1e-05, where='server')
    """
    if isinstance(given, Mapping):
        return build_method("privacy", Privacy, given)
    if given is not None and not isinstance(given, Privacy):
        raise InvalidInput(
            f"privacy must be ud.Privacy(clip=..., noise=...) or a dictionary of its fields, got {given!r}"
        )
    return given
