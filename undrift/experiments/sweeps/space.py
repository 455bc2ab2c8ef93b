"""A space: which values a method's parameters may take in a search.  It is data, in Python or in TOML.

A parameter is named as in an experiment: "beta" is the method's, "local.lr" its local work's, "schedule.eta" that of
the method which another takes as its schedule.  One more name is an expression, for papers whose letters are not ours:

    "lr (1 - beta)"  the step size of an undampened momentum: local.lr = value / (1 - beta)
"""

import math
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import METHODS
from undrift.experiments.config.experiment import AlgorithmSection
from undrift.local.settings import Local

UNDAMPENED = "lr (1 - beta)"

HyperValue: TypeAlias = float | int | bool | str


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, for searches: by ratio with log, only whole ones with whole."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        ends = f"{self.low} to {self.high}"
        for end in (self.low, self.high):
            if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
                raise InvalidInput(f"a range goes from a number to a number, got {ends}")
        if not self.low < self.high or (self.log and self.low <= 0):
            positive = " and, with log, begins above zero" if self.log else ""
            raise InvalidInput(f"a range goes from low to high{positive}, got {ends}")
        if self.whole and not (isinstance(self.low, int) and isinstance(self.high, int)):
            raise InvalidInput(f"a range of whole numbers has whole ends, got {ends}")


Candidates: TypeAlias = tuple[HyperValue, ...] | Range


@dataclass(frozen=True)
class SpaceRow:
    """What a method may choose; `when` restricts the row to methods with these parameters (mime with opt = "sgdm")."""

    method: str
    choices: Mapping[str, Candidates]
    when: Mapping[str, HyperValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Space:
    """Rows of methods, and what every method chooses besides.

    >>> space = Space("mine", common={"local.lr": (0.1, 1.0)}, rows=(SpaceRow("scaffold-m", {"beta": (0.1, 0.5)}),))
    >>> list(space.choices_of(AlgorithmSection(name="scaffold-m")))
    ['local.lr', 'beta']
    >>> list(space.choices_of(AlgorithmSection(name="fedavg")))
    ['local.lr']
    """

    name: str
    about: str = ""
    common: Mapping[str, Candidates] = field(default_factory=dict)
    rows: tuple[SpaceRow, ...] = ()

    def row_of(self, method: AlgorithmSection) -> SpaceRow | None:
        """The row of a method, the one that says most of it if there are several."""
        fits = [
            row
            for row in self.rows
            if row.method == method.name and all(method.parameters.get(key) == value for key, value in row.when.items())
        ]
        return max(fits, key=lambda row: len(row.when), default=None)

    def choices_of(self, method: AlgorithmSection) -> dict[str, Candidates]:
        """What a method chooses: the common, and what its row has more or otherwise."""
        row = self.row_of(method)
        own = {} if row is None else row.choices
        # lr and an expression that sets it are the same choice
        replaced = {"local.lr"} if UNDAMPENED in own else set()
        return {path: c for path, c in {**self.common, **own}.items() if path not in replaced}


def check_choices(name: str, choices: Mapping[str, Candidates]) -> None:
    """Refuse a parameter that a method does not have."""
    own = list(signature(METHODS[name].make).parameters)
    local = [f"local.{word}" for word in Local.__dataclass_fields__]
    possible = [UNDAMPENED] if "beta" in own else []
    for path in choices:
        part_of = path.partition(".")[0]  # schedule.eta, of a method that is made of another
        if path not in (*own, *local, *possible) and part_of not in own:
            raise unknown(f"parameter of {name}:", path, [*own, *local, *possible])


def size_of(choices: Mapping[str, Candidates]) -> int | None:
    """The number of points of a grid, None if there are ranges."""
    if any(isinstance(choice, Range) for choice in choices.values()):
        return None
    return math.prod(len(choice) for choice in choices.values() if isinstance(choice, tuple))


# TOML


def read_space(path: Path) -> Space:
    """A custom space, from a file such as

    [common]
    local.lr = [0.01, 0.1, 1.0]
    [[method]]
    name = "scaffold-m"
    beta = {low = 0.01, high = 1.0, log = true}
    """
    try:
        words = tomllib.loads(path.read_text(encoding="utf-8"))
        return space_from_dict(words, path.stem)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidInput(f"{path} cannot be read ({reason}): give a space's name or file") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def space_from_dict(words: Mapping[str, Any], name: str) -> Space:
    """A space from its words."""
    for key in words:
        if key not in ("name", "about", "common", "method"):
            raise unknown("key of a space:", key, ("name", "about", "common", "method"))
    common, rows = words.get("common", {}), words.get("method", [])
    if not isinstance(common, dict) or not isinstance(rows, list):
        raise InvalidInput("a space has one [common] and any number of [[method]] tables")
    return Space(words.get("name", name), words.get("about", ""), dict(_choices(common)), tuple(map(_row, rows)))


def space_to_dict(space: Space) -> dict[str, Any]:
    """The words of a space; `space_from` makes it again."""
    rows = [{"name": r.method, **({"when": dict(r.when)} if r.when else {}), **_plain(r.choices)} for r in space.rows]
    return {"name": space.name, "about": space.about, "common": _plain(space.common), "method": rows}


def _row(words: Any) -> SpaceRow:
    if not isinstance(words, dict) or not isinstance(words.get("name"), str):
        raise InvalidInput('a [[method]] of a space needs its name, e.g. name = "scaffold-m"')
    if words["name"] not in METHODS:
        raise unknown("method", words["name"], METHODS)
    rest = {key: value for key, value in words.items() if key not in ("name", "when")}
    return SpaceRow(words["name"], dict(_choices(rest)), dict(words.get("when", {})))


def _choices(words: Mapping[str, Any]) -> Iterator[tuple[str, Candidates]]:
    for key, value in words.items():
        if key == "gamma/(lr K)":
            warnings.warn("'gamma/(lr K)' in a space is now 'server_lr'", DeprecationWarning, stacklevel=2)
            key = "server_lr"
        if isinstance(value, dict) and not {"low", "high"} & set(value):
            yield from ((f"{key}.{word}", _choice(word, each)) for word, each in value.items())
        else:
            yield key, _choice(key, value)


def _choice(name: str, value: Any) -> Candidates:
    if isinstance(value, dict):
        if not {"low", "high"} <= set(value) <= {"low", "high", "log", "whole"}:
            raise InvalidInput(f"{name}: a range is written {{low = 0.01, high = 1.0, log = true}}, got {value}")
        return Range(**value)
    return check_list(name, value)


def check_list(name: str, values: Any) -> tuple[HyperValue, ...]:
    """Values to choose from: different ones, at least one."""
    simple = isinstance(values, Sequence) and not isinstance(values, str)
    if not simple or not values or not all(isinstance(v, bool | int | float | str) for v in values):
        raise InvalidInput(f"{name}: give a list of values or a range, got {values!r}")
    if len(set(values)) < len(values):
        raise InvalidInput(f"{name}: {list(values)} has a value twice")
    return tuple(values)


def _plain(choices: Mapping[str, Candidates]) -> dict[str, Any]:
    return {
        path: {"low": c.low, "high": c.high, "log": c.log, "whole": c.whole} if isinstance(c, Range) else list(c)
        for path, c in choices.items()
    }
