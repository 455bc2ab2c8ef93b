"""What can go wrong, in the user's words: what was got, what is allowed, what to do."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import SequenceMatcher, get_close_matches
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


class InvalidInput(ValueError):
    """A setting, a number or data that cannot be used; raised before any work starts."""


class MethodFailure(RuntimeError):
    """The code of a method failed, or returned what cannot be used; names client, round and stage."""


class Stopped(RuntimeError):
    """A run cannot continue.  `round` is the round that failed; `state` is the last good state."""

    def __init__(self, message: str, round: int, state: object):
        super().__init__(message)
        self.round = round
        self.state = state


class Diverged(Stopped):
    """No finite update or server state was left to continue from."""


class Deserted(Stopped):
    """In virtual time: no client is at work and none will be available again."""


class WorkersLost(RuntimeError):
    """On a cluster: a worker, and those put in its place, were lost again and again."""


LONGEST, LONGEST_NAME = 500, 60  # characters of a message, and of a name in one
FEW = 12  # names that an error lists although it has a suggestion


def unknown(kind: str, got: str, known: Iterable[str], listed_by: str | None = None) -> InvalidInput:
    """The error for a name that is not there, with the nearest one that is; many are left to the command that lists them.

    >>> print(unknown("method", "fedagv", ["fedavg", "fednag"]))
    unknown method 'fedagv'; did you mean 'fedavg'? Known: fedavg, fednag
    """
    known = sorted(known)
    got = shortened(str(got), LONGEST_NAME)
    near = _nearest(got, known) if len(got) < LONGEST_NAME else None
    hint = f"; did you mean {near!r}?" if near else "."
    few = len(known) <= FEW or (not near and not listed_by and len(known) <= 2 * FEW)
    names = f" Known: {', '.join(known)}" if few else ""
    if not near and not names:
        names = (
            f" There are {len(known)}, such as {', '.join(known[:: len(known) // 4][:4])}: "
            f"`{listed_by or 'undrift list'}` shows them"
        )
    return InvalidInput(f"unknown {kind} {got!r}{hint}{names}")


def known_name(kind: str, got: str, known: Iterable[str]) -> str:
    """The name that is meant, in whatever case and with whatever between its words; InvalidInput if there is none.

    >>> names = ["fedavg", "fedavgm", "fedavg-m", "scaffold-m"]
    >>> [known_name("method", got, names) for got in ("FedAvg", "FedAvg-M", "FedAvgM", "SCAFFOLD_M", "ScaffoldM")]
    ['fedavg', 'fedavg-m', 'fedavgm', 'scaffold-m', 'scaffold-m']
    """
    known = list(known)
    if got in known:
        return got
    spelled = re.sub(r"[\s_.-]+", "-", str(got).strip()).casefold()
    for same in (lambda name: name.casefold().replace("_", "-"), lambda name: re.sub(r"\W|_", "", name).casefold()):
        found = [name for name in known if same(name) == same(spelled)]
        if len(found) == 1:
            return found[0]
    raise unknown(kind, got, known)


def check_name(kind: str, name: str, known: Any, new: Any) -> None:
    """A name may be registered again by its own definition (a cell run twice), not by another one."""
    if known is not None and known.__qualname__ != new.__qualname__:
        raise InvalidInput(f"there is a {kind} {name!r} already: choose another name")


def named(kind: str, given: Any, register: Callable[[str, Any], Any], as_written: bool = False) -> Any:
    """A decorator that is given a name or, bare, what it stands above, which then has its own name.

    That is spelled as those of its kind are, with hyphens, or `as_written`.

    >>> named("codec", "sign", lambda name, new: name)(dict), named("codec", OSError, lambda name, new: name)
    ('sign', 'os-error')
    """
    if isinstance(given, str):
        return lambda new: register(given, new)
    if given is None:
        return lambda new: register(_own_name(kind, new, as_written), new)
    return register(_own_name(kind, given, as_written), given)


def _own_name(kind: str, new: Any, as_written: bool) -> str:
    name = getattr(new, "__name__", "")
    if not callable(new) or not name.isidentifier():
        raise InvalidInput(
            f'the decorator of a {kind} stands above a class or function, bare or with a name, as in ("my-{kind}"); got {new!r}'
        )
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).replace("_", "-")
    return name if as_written else spaced.strip("-").lower()


def registering(kind: str, name: Any, known: dict[str, Any], as_written: bool = False) -> Any:
    """A decorator that adds what it is given to those of its kind that are known, under this name or, bare, its own."""

    def register(name: str, new: T) -> T:
        check_name(kind, name, known.get(name), new)
        known[name] = new
        return new

    return named(kind, name, register, as_written)


def _nearest(got: str, known: Sequence[str]) -> str | None:
    """The name with the fewest slips of the fingers between, at most one in three letters; else one that looks alike."""
    typed = got.casefold()
    slips = {name: _slips(typed, name.casefold()) for name in known}
    alike = lambda name: SequenceMatcher(None, typed, name.casefold()).ratio()
    best = min(slips, key=lambda name: (slips[name], -alike(name)), default=None)
    if best is not None and slips[best] <= max(1, len(got) // 3):
        return best
    return next(iter(get_close_matches(typed, known, n=1)), None)


def _slips(a: str, b: str) -> int:
    """Letters left out, put in, replaced, or exchanged with their neighbour (optimal string alignment).

    >>> _slips("fedagv", "fedavg"), _slips("fedagv", "fednag"), _slips("", "abc")
    (1, 2, 3)
    """
    before, last = [], list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def shortened(text: str, most: int = LONGEST) -> str:
    """A text whose middle is left out if it is long, as one with what somebody has typed may be.

    >>> shortened("x" * 99 + "!", 20)
    'xxxxxxxxxxxx...xxxx!'
    """
    return text if len(text) <= most else f"{text[: most * 3 // 5]}...{text[3 - most * 2 // 5 :]}"


# How settings are called where the user is: what Python has, and the keys of an experiment that say the same.
Voice: TypeAlias = Callable[[str, Mapping[tuple[str, ...], Any]], str]
_voice: ContextVar[Voice] = ContextVar("voice", default=lambda python, keys: python)


def setting(python: str, **keys: Any) -> str:
    """A setting as the user knows it: in Python as given; in a file, or on a command line, by its keys.

    >>> setting("ud.Everyone()", participation__scheme="everyone")
    'ud.Everyone()'
    >>> with speaking(as_keys):
    ...     setting("ud.Everyone()", participation__scheme="everyone"), setting("S", participation__per_round=...)
    ('participation.scheme = "everyone"', 'participation.per_round')
    """
    return _voice.get()(python, {tuple(key.split("__")): value for key, value in keys.items()})


@contextmanager
def speaking(voice: Voice) -> Iterator[None]:
    """Settings are called so while this is entered."""
    token = _voice.set(voice)
    try:
        yield
    finally:
        _voice.reset(token)


def as_keys(python: str, keys: Mapping[tuple[str, ...], Any]) -> str:
    """As a file of an experiment has them."""
    said = ((".".join(key), value) for key, value in keys.items())
    return " and ".join(key if value is ... else f"{key} = {json.dumps(value)}" for key, value in said)


def first_line(error: Exception) -> str:
    """What an error says, in short; its kind, if it says nothing.

    >>> first_line(ValueError("too small\\nand so on")), first_line(KeyError())
    ('too small', 'KeyError')
    """
    return (str(error) or type(error).__name__).strip().splitlines()[0]
