"""System heterogeneity: how fast clients compute, their links, when they are available, how often they drop out.

Nothing is stored by client: what belongs to one is drawn from (seed, client), and what belongs to one of its visits from
(seed, client, visit).  A population of a million clients takes no more memory than one of ten.
"""

import csv
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_fields, check_value, hyper
from undrift.core.rng import Key, Purpose, stream
from undrift.data.store import read_text
from undrift.simulation.asynchronous.availability import Always, Availability

# so that no sum of them, over the visits and rounds of any run, is more than a clock can hold
SECONDS, RATE, SPREAD = "[0, 1e12]", "[1e-3, inf)", "[0, 20]"


@dataclass(frozen=True)
class LogNormal:
    """median * exp(sigma * z), z standard normal: half of the clients above the median, a few far above.

    >>> LogNormal(2.0, sigma=0.5).of(client=0, z=0.0, u=0.3)
    2.0
    """

    median: float = hyper(within="(0, 1e12]")
    sigma: float = hyper(within=SPREAD)

    __post_init__ = check_fields

    def of(self, client: int, z: float, u: float) -> float:
        return self.median * math.exp(self.sigma * z)


@dataclass(frozen=True)
class Tiers:
    """One of a few values, with the given shares (equal ones by default).

    A client is in the same tier in all of a population's settings: a slow phone also has the slow link.

    >>> [Tiers([1.0, 5.0], shares=[0.9, 0.1]).of(client=0, z=0.0, u=u) for u in (0.2, 0.95)]
    [1.0, 5.0]
    """

    values: Sequence[float]
    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        values = _tuple("Tiers", "values", self.values)
        shares = self.shares if self.shares is not None else [1.0] * len(values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "shares", _tuple("Tiers", "shares", shares))
        if len(values) != len(shares):
            raise InvalidInput(f"Tiers: {len(values)} values and {len(shares)} shares: give one each")
        if not sum(shares) > 0:
            raise InvalidInput("Tiers: the shares are all zero")

    def of(self, client: int, z: float, u: float) -> float:
        shares = self.shares or ()
        ends = list(accumulate(shares))
        return self.values[min(bisect_right(ends, u * ends[-1]), len(ends) - 1)]


@dataclass(frozen=True)
class Table:
    """A value for every client, in the order of their numbers."""

    values: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _tuple("Table", "values", self.values))

    @classmethod
    def read(cls, path: str | Path, column: str) -> "Table":
        """A column of a CSV file whose first line names its columns; a line a client."""
        path = Path(path)
        if not path.is_file():
            raise InvalidInput(f"there is no table {path}: give the path of a CSV file")
        rows = csv.DictReader(StringIO(read_text(path), newline=""))
        try:
            names = rows.fieldnames or ()
            values = [float(row[column]) for row in rows if column in names]
        except (TypeError, ValueError, csv.Error) as error:
            raise InvalidInput(f"{path}, line {rows.line_num}: {error}") from None
        if column not in names:
            raise InvalidInput(f"{path} has no column {column!r}; it has {', '.join(names)}")
        return cls(values)

    def of(self, client: int, z: float, u: float) -> float:
        return self.values[client]


DeviceValue: TypeAlias = float | LogNormal | Tiers | Table  # a number is the same for all


def _of(value: DeviceValue | None, client: int, z: float, u: float) -> float:
    if value is None:
        return math.inf
    return float(value) if isinstance(value, int | float) else value.of(client, z, u)


def _tuple(kind: str, name: str, numbers: Any) -> tuple[float, ...]:
    """Numbers, none of them negative, as a tuple."""
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        raise InvalidInput(f"{kind}: {name} must be a list of numbers, got {numbers!r}")
    found = tuple(numbers)
    if not found:
        raise InvalidInput(f"{kind}: {name} is empty")
    for place, number in enumerate(found):
        check_value(kind, f"{name}[{place}]", number, float, within="[0, inf)")
    return tuple(float(number) for number in found)


def _check(kind: str, name: str, value: Any, within: str) -> None:
    """Raise InvalidInput unless a value, or each of the values it may take, lies in an interval."""
    if isinstance(value, LogNormal):
        return
    if isinstance(value, Tiers | Table):
        what = "tier" if isinstance(value, Tiers) else "client"
        for place, number in enumerate(value.values):
            check_value(kind, f"{name} of {what} {place}", number, float, within=within)
        return
    check_value(kind, name, value, float, within=within)


@dataclass(frozen=True)
class Link:
    """The network link between server and client.

    latency   seconds a message takes each way besides its bytes
    down      bytes a second to the client, None = no limit
    up        bytes a second from the client, None = no limit
    """

    latency: DeviceValue = 0.0
    down: DeviceValue | None = None
    up: DeviceValue | None = None

    def __post_init__(self) -> None:
        _check("Link", "latency", self.latency, SECONDS)
        for name in ("down", "up"):
            if vars(self)[name] is not None:
                _check("Link", name, vars(self)[name], RATE)


@dataclass(frozen=True)
class Dropout:
    """Probabilities that a client drops out.

    before   it begins to work
    after    the work, so that its answer is lost
    """

    before: float = hyper(default=0.0, within="[0, 1)")
    after: float = hyper(default=0.0, within="[0, 1)")

    __post_init__ = check_fields


@dataclass(frozen=True)
class Device:
    """The device of one client."""

    pace: float
    latency: float
    down: float
    up: float


@dataclass(frozen=True)
class Population:
    """System heterogeneity: how clients differ as devices.

    pace          seconds a local step takes (more exactly: a unit of `work`)
    link          latency and bandwidth
    availability  when they can be reached; one that leaves takes its work with it
    dropout       how often they drop out of a round
    jitter        a visit's pace is the client's own times exp(jitter * z), drawn by visit
    work          of a local step, in the unit that `pace` is for: 1 if that is a step
    budget        seconds of computing a visit has: a client makes as many of its steps (ud.Local) as fit, at least one

    Values may be a number, LogNormal, Tiers or Table.  The default takes no time at all.

    >>> Population(pace=LogNormal(0.1, sigma=1.0), link=Link(latency=0.05, up=1e6), jitter=0.2).device(0, client=3).up
    1000000.0
    """

    pace: DeviceValue = 0.0
    link: Link = Link()
    availability: Availability = Always()
    dropout: Dropout = Dropout()
    jitter: float = hyper(default=0.0, within=SPREAD)
    work: float = hyper(default=1.0, within="(0, 1e12]")
    budget: float | None = hyper(default=None, within="(0, inf)")

    def __post_init__(self) -> None:
        _check("Population", "pace", self.pace, SECONDS)
        check_fields(self)
        for name, kind in (("link", Link), ("dropout", Dropout)):
            if not isinstance(vars(self)[name], kind):
                example = f"ud.{kind.__name__}(...)"
                raise InvalidInput(f"Population: {name} must be {example}, got {vars(self)[name]!r}")
        if isinstance(self.availability, type) or not isinstance(self.availability, Availability):
            raise InvalidInput(
                f"Population: availability must be ud.Always(), Chance, Daily or Trace, got {self.availability!r}"
            )

    def check(self, N: int) -> None:
        """Raise InvalidInput if a table or a trace does not fit the number of clients."""
        for name, value in self._values.items():
            if isinstance(value, Table) and len(value.values) != N:
                raise InvalidInput(
                    f"Population: the table of {name} has {len(value.values)} values for {N} clients: give one each"
                )
        self.availability.check(N)

    @cached_property
    def _values(self) -> dict[str, DeviceValue | None]:
        link = self.link
        return {"pace": self.pace, "latency": link.latency, "down": link.down, "up": link.up}

    @cached_property
    def _drawn(self) -> bool:
        """Whether clients differ by chance."""
        return any(isinstance(value, LogNormal | Tiers) for value in self._values.values())

    @cached_property
    def _visits_differ(self) -> bool:
        """Whether visits differ by chance."""
        return self.jitter > 0 or self.dropout != Dropout()

    @property
    def instant(self) -> bool:
        """Whether computing and communication take no time."""
        return self.pace == 0 and self.link == Link()

    @property
    def keeps_everyone(self) -> bool:
        """Whether every client that is asked comes, and every update arrives."""
        return isinstance(self.availability, Always) and self.dropout == Dropout()

    def device(self, seed: int, client: int) -> Device:
        """The device of a client; a function of (seed, client)."""
        z, u = (0.0,) * 4, 0.0
        if self._drawn:
            random = stream(Purpose.DEVICE, Key(seed, 0), client)
            z, u = random.standard_normal(4).tolist(), float(random.random())
        found = [_of(value, client, z[j], u) for j, value in enumerate(self._values.values())]
        return Device(*found)

    def draw_visit(self, seed: int, client: int, visit: int) -> tuple[float, bool, bool]:
        """Of one visit: the factor of its pace, and whether the client drops out before or after the work."""
        if not self._visits_differ:
            return 1.0, False, False
        random = stream(Purpose.VISIT, Key(seed, visit), client)
        factor = math.exp(self.jitter * float(random.standard_normal()))
        before, after = random.random(2).tolist()
        return factor, before < self.dropout.before, after < self.dropout.after
