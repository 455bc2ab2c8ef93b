"""What can go wrong, in the user's words: what was got, what is allowed, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class InvalidInput(ValueError):
    """A setting, a number or data that cannot be used; raised before any work starts."""


class MethodFailure(RuntimeError):
    """The code of a method failed, or returned what cannot be used; names client, round and stage."""


class Stopped(RuntimeError):
    """A run cannot go on.  `round` is the round that failed; `state` is the last good state."""

    def __init__(self, message: str, round: int, state: object):
        super().__init__(message)
        self.round = round
        self.state = state


class Diverged(Stopped):
    """Nothing finite was left to go on with."""


class Deserted(Stopped):
    """In virtual time: no client is at work and none will be available again."""


class WorkersLost(RuntimeError):
    """On a cluster: a worker, and those put in its place, were lost again and again."""


def unknown(kind: str, got: str, known: Iterable[str]) -> InvalidInput:
    """The error for a name that is not there, with the nearest one that is.

    >>> print(unknown("method", "scafold", ["fedavg", "scaffold"]))
    unknown method 'scafold'; did you mean 'scaffold'? Known: fedavg, scaffold
    """
    known = sorted(known)
    near = get_close_matches(got, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InvalidInput(f"unknown {kind} {got!r}{hint} Known: {', '.join(known)}")


def first_line(error: Exception) -> str:
    """What an error says, in short; its kind, if it says nothing.

    >>> first_line(ValueError("too small\\nand so on")), first_line(KeyError())
    ('too small', 'KeyError')
    """
    return (str(error) or type(error).__name__).strip().splitlines()[0]
