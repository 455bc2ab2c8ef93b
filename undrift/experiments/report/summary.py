"""The table of a report as frozen records."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undrift.experiments.report.figures import Cost, Reach

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Row:
    """A method: how good it became, and what that cost.

    mean, std   of the final quality over seeds; NaN if it is not finite, None for a single seed
    cost        of the baseline's final quality, by C.3; None if the baseline has none
    reach       of the target; None if there is none
    by_seed     the rounds in which each seed alone had the baseline's quality, None for never
    """

    label: str
    seeds: tuple[int, ...]
    finals: tuple[float, ...]
    mean: float
    std: float | None
    planned: int
    recorded: int
    ended_well: bool
    total_bytes: float
    total_seconds: float | None
    visit_down: float | None  # bytes of one client's visit
    visit_up: float | None
    total_virtual: float | None = None  # seconds of the virtual clock, where there is one
    lacking: bool = False  # the figure was not recorded
    left_out: int = 0  # answers of clients that could not be used
    cost: Cost | None = None
    by_seed: tuple[int | None, ...] = ()
    reach: Reach | None = None
    bytes_change: float | None = None  # of cost, against the baseline's
    seconds_change: float | None = None
    virtual_change: float | None = None
    reach_change: float | None = None  # of the bytes to the target
    best: bool = False
    baseline: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What a report says, method by method.

    quality   the baseline's final quality, None if it is not finite
    last      over how many evaluated rounds (at most) a final quality is the mean
    answer    in words; the first sentence is the headline
    notes     what to bear in mind: runs that did not end, federations that differ
    """

    figure: str
    higher: bool
    last: int
    baseline: str
    quality: float | None
    target: float | None
    rows: tuple[Row, ...]
    answer: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether there is a virtual clock to speak of."""
        return any(row.total_virtual is not None for row in self.rows)

    @property
    def best(self) -> Row | None:
        return next((row for row in self.rows if row.best), None)

    def row(self, label: str) -> Row:
        return next(row for row in self.rows if row.label == label)

    def table(self) -> "Table":
        """For a terminal: quality, and the price of the target (of the baseline's quality if there is none)."""
        from undrift.experiments.report.tables import rich_table

        return rich_table(self)
