"""When clients are available: always, by chance, by the hour of the day, or by a trace.

An availability answers one question, with no memory: which is the first interval of presence of a client that ends after
a given moment?  It contains the moment if the client is there, and begins later if it is away.
"""

import csv
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from undrift.core.errors import InvalidInput, first_line
from undrift.core.hyper import check_fields, hyper
from undrift.core.rng import Key, Purpose, stream
from undrift.data.store import read_text

Window: TypeAlias = tuple[float, float]  # from, to; (inf, inf): never again

EVER: Window = (-math.inf, math.inf)
NEVER_AVAILABLE: Window = (math.inf, math.inf)
HOUR, DAY = 3600.0, 86400.0
SLOTS_PER_STREAM = 64  # slots that one stream of random numbers decides


@runtime_checkable
class Availability(Protocol):
    """When clients are available: anything with these two methods."""

    def check(self, N: int) -> None:
        """Raise InvalidInput if it does not fit so many clients."""

    def window(self, seed: int, client: int, time: float) -> Window: ...


@dataclass(frozen=True)
class Always(Availability):
    """Everyone, at any time."""

    def window(self, seed: int, client: int, time: float) -> Window:
        return EVER


@dataclass(frozen=True)
class Chance(Availability):
    """Time is cut into slots of `every` seconds; in each of them a client is there with probability q, on its own.

    >>> there = [Chance(0.5, every=60).window(0, i, 0.0)[0] <= 0 for i in range(1000)]
    >>> 450 < sum(there) < 550
    True
    """

    q: float = hyper(within="[0.001, 0.999]", among=(1,))
    every: float = hyper(default=HOUR, within="(0, inf)")

    __post_init__ = check_fields

    def window(self, seed: int, client: int, time: float) -> Window:
        if self.q == 1:
            return EVER
        slots = self._slots(seed, client, int(time // self.every))
        first = next(slot for slot, there in slots if there)
        after = next(slot for slot, there in slots if not there)
        return first * self.every, after * self.every

    def _slots(self, seed: int, client: int, first: int) -> Iterator[tuple[int, bool]]:
        """Every slot from the first on, and whether the client is there."""
        for block in count(first // SLOTS_PER_STREAM):
            drawn = stream(Purpose.PRESENCE, Key(seed, block), client).random(SLOTS_PER_STREAM)
            for slot, u in enumerate(drawn.tolist(), start=block * SLOTS_PER_STREAM):
                if slot >= first:
                    yield slot, u < self.q


@dataclass(frozen=True)
class Daily(Availability):
    """From one hour of the day to another, over midnight if need be; a run begins at midnight.

    spread   clients live in time zones up to so many hours ahead, each in one drawn uniformly

    >>> night = Daily(22, 6)
    >>> night.window(0, 0, 12 * 3600.0)  # at noon: from 22 h to 6 h of the next day
    (79200.0, 108000.0)
    """

    begin: float = hyper(within="[0, 24]")
    end: float = hyper(within="[0, 24]")
    spread: float = hyper(default=0.0, within="[0, 24]")

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.end - self.begin) % 24 == 0:
            raise InvalidInput(
                f"Daily: from {self.begin} to {self.end} is all day or no time: use Always() or other hours"
            )

    def window(self, seed: int, client: int, time: float) -> Window:
        ahead = 0.0
        if self.spread:
            u = stream(Purpose.PRESENCE, Key(seed, 0), client).random()
            ahead = self.spread * HOUR * float(u)
        length = (self.end - self.begin) % 24 * HOUR
        opens = self.begin * HOUR - ahead
        day = math.floor((time - opens) / DAY)
        if time >= opens + day * DAY + length:
            day += 1
        return opens + day * DAY, opens + day * DAY + length


@dataclass(frozen=True)
class Trace(Availability):
    """Intervals of presence: (client, from, to), in seconds, those of a client one after the other.

    repeat   after so many seconds all begins again: one number, or one for every device; None = it ends
    reuse    client i follows device i modulo their number; otherwise devices are the clients, by number, and a client
             that is not named is never there

    >>> trace = Trace([(0, 10, 20), (1, 0, 5)], repeat=60)
    >>> trace.window(0, 0, 15.0), trace.window(0, 1, 5.0)
    ((10.0, 20.0), (60.0, 65.0))
    """

    intervals: Sequence[tuple[int, float, float]]
    repeat: float | Sequence[float] | None = None
    reuse: bool = False

    def __post_init__(self) -> None:
        rows = tuple(tuple(row) for row in self.intervals)
        object.__setattr__(self, "intervals", rows)
        if isinstance(self.repeat, Sequence):
            object.__setattr__(self, "repeat", tuple(self.repeat))
        if not rows:
            raise InvalidInput("Trace: there is no interval, so nobody would ever be there")
        for number, row in enumerate(rows, start=1):
            _check_interval(row, f"Trace: interval {number}")
        for client, windows in self._by_client.items():
            for (begin, end), (later, _) in pairwise(windows):
                if later < end:
                    raise InvalidInput(
                        f"Trace: client {client}: the interval from {later:g} begins before the one from {begin:g} "
                        f"to {end:g} is over: list each client's intervals in order, without overlap"
                    )
            period = self._periods[client]
            if not period > 0:
                raise InvalidInput(f"Trace: repeat must be more than 0 seconds, got {period} for client {client}")
            if windows[-1][1] > period:
                raise InvalidInput(f"Trace: client {client} is there until {windows[-1][1]:g}, after repeat={period:g}")

    @classmethod
    def read(cls, path: str | Path, repeat: float | None = None, reuse: bool = False) -> "Trace":
        """A CSV file with the columns client, from, to; or FedScale's availability trace as JSON.

        FedScale's file holds, by device, the moments `active` and `inactive` at which intervals begin and end, and
        `finish_time`, after which the device's trace repeats.  Its devices are shared out among clients (`reuse`).
        """
        path = Path(path)
        if not path.is_file():
            raise InvalidInput(f"there is no trace {path}: give the path of a CSV or JSON file")
        if path.suffix == ".json":
            return _fedscale(path)
        return cls(_csv(path), repeat, reuse)

    def check(self, N: int) -> None:
        largest = max(self._by_client)
        if not self.reuse and largest >= N:
            raise InvalidInput(
                f"Trace: client {largest} is named, the problem's go from 0 to {N - 1}: "
                "leave others out, or set reuse=True to share devices out among clients"
            )

    @cached_property
    def _by_client(self) -> dict[int, list[Window]]:
        found: dict[int, list[Window]] = {}
        for client, begin, end in self.intervals:
            found.setdefault(int(client), []).append((float(begin), float(end)))
        return found

    @cached_property
    def _merged(self) -> dict[int, list[Window]]:
        """The same without seams: where one interval begins as another ends, the client stays."""
        merged: dict[int, list[Window]] = {}
        for client, windows in self._by_client.items():
            whole = merged[client] = [windows[0]]
            for begin, end in windows[1:]:
                if begin == whole[-1][1]:
                    whole[-1] = (whole[-1][0], end)
                else:
                    whole.append((begin, end))
        return merged

    @cached_property
    def _ends(self) -> dict[int, list[float]]:
        return {client: [end for _, end in windows] for client, windows in self._merged.items()}

    @cached_property
    def _devices(self) -> list[int]:
        return sorted(self._by_client)

    @cached_property
    def _periods(self) -> dict[int, float]:
        each = self.repeat
        if not isinstance(each, Sequence):
            each = [math.inf if each is None else each] * len(self._devices)
        if len(each) != len(self._devices):
            raise InvalidInput(
                f"Trace: repeat lists {len(each)} numbers for {len(self._devices)} devices: give one each"
            )
        return {device: float(r) for device, r in zip(self._devices, each, strict=True)}

    def window(self, seed: int, client: int, time: float) -> Window:
        device = self._devices[client % len(self._devices)] if self.reuse else client
        windows = self._merged.get(device)
        if windows is None:
            return NEVER_AVAILABLE
        period = self._periods[device]
        base = 0.0 if period == math.inf else math.floor(time / period) * period
        place = bisect_right(self._ends[device], time - base)
        if place == len(windows):
            if period == math.inf:
                return NEVER_AVAILABLE
            base, place = base + period, 0
        begin, end = windows[place]
        around = end == period and windows[0][0] == 0  # present over the seam of two periods
        if around and len(windows) == 1:
            return EVER
        return base + begin, base + end + (windows[0][1] if around else 0.0)


def _check_interval(row: Any, where: str) -> None:
    try:
        client, begin, end = row
        right = int(client) == client and client >= 0 and 0 <= begin < end <= 1e12
    except (TypeError, ValueError):
        right = False
    if not right:
        raise InvalidInput(
            f"{where} must be (client, from, to) with client >= 0 and 0 <= from < to <= 1e12, got {str(row)[:80]}"
        )


def _csv(path: Path) -> list[tuple[int, float, float]]:
    intervals: list[tuple[int, float, float]] = []
    rows = csv.DictReader(StringIO(read_text(path), newline=""))
    try:
        if not {"client", "from", "to"} <= set(rows.fieldnames or ()):
            raise InvalidInput(f"{path}: the first line must name client, from, to")
        for row in rows:
            try:
                interval = int(row["client"]), float(row["from"]), float(row["to"])
            except (TypeError, ValueError):
                raise InvalidInput(
                    f"{path}, line {rows.line_num}: three numbers are needed, got {str(list(row.values()))[:80]}"
                ) from None
            _check_interval(interval, f"{path}, line {rows.line_num}")
            intervals.append(interval)
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a table of commas ({error}): make it again") from error
    return intervals


def _fedscale(path: Path) -> Trace:
    intervals: list[tuple[int, float, float]] = []
    periods: list[float] = []
    try:
        devices = json.loads(read_text(path))
        for device, (_, about) in enumerate(sorted(devices.items(), key=lambda d: int(d[0]))):
            pairs = zip(about["active"], about["inactive"], strict=True)
            intervals += [(device, float(begin), float(end)) for begin, end in pairs if begin != end]
            periods.append(float(about["finish_time"]))
    except InvalidInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f'{path}: expected {{"device": {{"active": [...], "inactive": [...], "finish_time": ...}}, ...}}; '
            f"{first_line(error)[:80]}"
        ) from None
    there = {device for device, _, _ in intervals}
    return Trace(intervals, [p for d, p in enumerate(periods) if d in there], reuse=True)
