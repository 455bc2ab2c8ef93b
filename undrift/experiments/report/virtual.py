"""The report's section on virtual time: words, a table, and what its pictures are drawn from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from undrift.experiments.report.load import Method, Records
from undrift.experiments.report.style import DASHES
from undrift.experiments.report.summary import Row, Summary
from undrift.experiments.report.timing import RunTiming, Timeline
from undrift.experiments.report.words import NEVER, in_percent, in_seconds, number

BARS = 21  # of a histogram, at most; the last one holds the tail
TAIL = 0.01  # of the updates: what goes into the last bar


def virtual_time(
    records: Records, s: Summary, looks: Sequence[tuple[int, int]]
) -> dict[str, Any] | None:
    """Everything the section shows; None if no method has been run in virtual time."""
    accounts = {
        method.label: account for method in records.methods if (account := _account(method))
    }
    if not accounts:
        return None
    look = {row.label: each for row, each in zip(s.rows, looks, strict=True)}
    counts = {label: _together([run.counts for run in runs]) for label, runs in accounts.items()}
    return {
        "rows": [
            _row(s.row(label), runs, counts[label], look[label]) for label, runs in accounts.items()
        ],
        "stale": any(len(each) > 1 for each in counts.values()),
        "histograms": _histograms(counts, look),
        "firsts": [
            {"label": method.label, "seed": run.seed, **_drawn(run.timing.timeline)}
            for method in records.methods
            if method.label in accounts
            for run in method.runs[:1]
            if run.timing and run.timing.timeline
        ],
    }


def _account(method: Method) -> list[RunTiming]:
    """Of all its runs, or of none."""
    found = [run.timing for run in method.runs if run.timing is not None]
    return found if len(found) == len(method.runs) else []


def _together(counts: Sequence[np.ndarray]) -> np.ndarray:
    longest = max(map(len, counts))
    return np.sum([np.pad(each, (0, longest - len(each))) for each in counts], axis=0)


def mean_of(counts: np.ndarray) -> float:
    """The mean staleness.

    >>> mean_of(np.array([1, 0, 3]))
    1.5
    """
    return float(counts @ np.arange(len(counts)) / counts.sum()) if counts.sum() else 0.0


# the table


def _row(
    row: Row, runs: Sequence[RunTiming], counts: np.ndarray, look: tuple[int, int]
) -> dict[str, Any]:
    """A line: what is shown, what it is sorted by, and what is said below."""

    def mean(of: Callable[[RunTiming], float]) -> float:
        return sum(map(of, runs)) / len(runs)

    updates, lost = mean(lambda run: run.updates), mean(lambda run: run.lost)
    waited, wasted = mean(lambda run: run.waited), mean(lambda run: run.wasted)
    there = row.cost.virtual if row.cost else None
    never = row.cost is not None and not row.cost.reached
    stale = mean_of(counts)
    return {
        "row": row,
        "look": look,
        "dash": DASHES[look[1]],
        "there": (NEVER if never else in_seconds(there), "" if there is None else there),
        "change": (in_percent(row.virtual_change), _or_nothing(row.virtual_change)),
        "total": (in_seconds(row.total_virtual), _or_nothing(row.total_virtual)),
        "staleness": (f"{stale:.2f}", stale, f"at most {max(len(counts) - 1, 0)}"),
        "updates": (_count(updates), updates, f"of {_count(mean(lambda run: run.used))} clients"),
        "lost": (_count(lost), lost, _share(lost, updates + lost)),
        "waited": (in_seconds(waited), waited, f"{in_seconds(waited / max(updates, 1))} each"),
        "wasted": (in_seconds(wasted), wasted),
        "steps": (f"{mean(lambda run: run.tau_eff):.2f}", mean(lambda run: run.tau_eff)),
        "chi2": (
            number(mean(lambda run: run.chi2)),
            mean(lambda run: run.chi2),
            f"steps: {number(mean(lambda run: run.chi2_steps))}",
        ),
    }


def _or_nothing(value: float | None) -> float | str:
    return "" if value is None else value


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


# the pictures


def _histograms(
    counts: Mapping[str, np.ndarray], look: Mapping[str, tuple[int, int]]
) -> list[dict[str, Any]]:
    """Shares of updates by staleness, in the same bars for all methods."""
    edges, tail = bars(list(counts.values()))
    return [
        {
            "label": label,
            "colour": look[label][0],
            "mean": mean_of(each),
            "most": max(len(each) - 1, 0),
            "edges": edges,
            "tail": tail,
            "shares": _shares(each, edges),
        }
        for label, each in counts.items()
    ]


def bars(counts: Sequence[np.ndarray]) -> tuple[list[int], bool]:
    """Where bars begin, and whether the last one holds a tail: nearly all updates lie before it.

    >>> bars([np.array([5, 3, 2])]), bars([np.array([990] + [0] * 40 + [1])])
    (([0, 1, 2], False), ([0, 1], True))
    """
    most = max(len(each) for each in counts)
    near = 1
    for each in counts:
        total = np.cumsum(each)
        if len(each) and total[-1]:
            near = max(near, int(np.argmax(total >= (1 - TAIL) * total[-1])) + 1)
    width = next(w * 10**e for e in range(9) for w in (1, 2, 5) if near <= w * 10**e * (BARS - 1))
    edges = list(range(0, near, width))
    if edges[-1] + width >= most:
        return edges, False
    return [*edges, edges[-1] + width], True


def _shares(counts: np.ndarray, edges: Sequence[int]) -> list[float]:
    within = [int(counts[a:b].sum()) for a, b in zip(edges, [*edges[1:], None], strict=True)]
    return [round(each / max(int(counts.sum()), 1), 5) for each in within]


def _drawn(first: Timeline) -> dict[str, Any]:
    """The first seconds, with numbers as short as a picture needs."""
    row = {client: place for place, client in enumerate(first.clients)}
    return {
        "until": _short(first.until),
        "clients": first.clients,
        "others": first.others,
        "steps": [(_short(moment), number) for moment, number in first.steps],
        "visits": [
            {
                "row": row[v["client"]],
                "times": [_short(v[name]) for name in ("dispatched", "begins", "ends", "returns")],
                "used": None if v["used"] is None else _short(v["used"]),
                "fate": v["fate"],
                "steps": v["steps"],
                "version": v["version"],
            }
            for v in first.visits
        ],
    }


def _short(moment: float) -> float:
    return float(f"{moment:.6g}")
