"""What the curves say: final quality, and the price of a quality.  Pure functions of recorded numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from undrift.experiments.report.load import Method, RunRecord
from undrift.metrics.quality import usual_last

ROUNDING = 1e-12  # a mean of equal numbers may differ from them by so much


def default_last(runs: Sequence[RunRecord]) -> int:
    """How many evaluated rounds a final quality is the mean of, by the shortest run."""
    return usual_last(min(run.planned // run.every for run in runs))


def final(run: RunRecord, figure: str, last: int) -> float:
    """The mean of a figure over the last evaluated rounds of a run; NaN if one of them is not finite."""
    values = run.metrics.get(figure, np.array([]))
    values = values[run.evaluated] if len(values) else values
    return float(values[-last:].mean()) if len(values) else math.nan


@dataclass(frozen=True)
class Curve:
    """A figure of a method over its evaluated rounds: mean, least and greatest over the seeds that have the round.

    common   how many points every seed has; later ones are means of those that are left
    bytes, seconds, virtual   by the end of the round, mean over seeds; NaN where not known
    """

    round: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bytes: np.ndarray
    seconds: np.ndarray
    virtual: np.ndarray | None
    common: int

    @cached_property
    def seconds_known(self) -> bool:
        return bool(np.isfinite(self.seconds).any())


def curve(method: Method, figure: str) -> Curve:
    """The mean of a method's runs, round by round."""
    rounds = np.unique(np.concatenate([run.round[run.evaluated] for run in method.runs]))
    values = np.full((len(method.runs), len(rounds)), np.nan)
    there = np.zeros(values.shape, dtype=bool)
    for row, run in enumerate(method.runs):
        if figure in run.metrics:
            columns = np.searchsorted(rounds, run.round[run.evaluated])
            values[row, columns] = run.metrics[figure][run.evaluated]
            there[row, columns] = True
    count, at = there.sum(0), rounds - 1
    total, none = np.where(there, values, 0).sum(0), np.full(len(rounds), np.nan)
    return Curve(
        round=rounds,  # a mean is NaN if a run that is there is not finite
        mean=np.divide(total, count, out=none, where=count > 0),
        low=np.where(count > 0, np.where(there, values, np.inf).min(0), np.nan),
        high=np.where(count > 0, np.where(there, values, -np.inf).max(0), np.nan),
        bytes=_clock([run.bytes_down + run.bytes_up for run in method.runs])[at],
        seconds=_clock([run.seconds for run in method.runs])[at],
        virtual=_virtual(method, at),
        common=int((rounds <= method.common).sum()),
    )


def _clock(increments: Sequence[np.ndarray]) -> np.ndarray:
    """A cumulative count: each round adds the mean over the runs that have it, so that it never runs backwards."""
    longest = max(len(each) for each in increments)
    total, count = np.zeros(longest), np.zeros(longest)
    for each in increments:
        known = np.isfinite(each)
        total[: len(each)] += np.where(known, each, 0)
        count[: len(each)] += known
    return np.cumsum(np.divide(total, count, out=np.full(longest, np.nan), where=count > 0))


def _virtual(method: Method, at: np.ndarray) -> np.ndarray | None:
    clocks = [run.virtual for run in method.runs]
    known = [clock for clock in clocks if np.isfinite(clock).all()]
    if len(known) < len(clocks):
        return None
    return _clock([np.diff(clock, prepend=0.0) for clock in known])[at]


# the price of a quality


@dataclass(frozen=True)
class Reach:
    """When a method's mean over seeds first has a quality, and what was spent by then; None if never."""

    rounds: int | None = None
    bytes: float | None = None
    seconds: float | None = None
    virtual: float | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of the baseline's quality by the three steps of GHBM's appendix C.3.

    rounds    r_a, the rounds to the baseline's final quality; all T if it is never reached
    share     s_a = r_a / T
    bytes     b_a s_a, with b_a what all T rounds send, down + up over all clients; seconds likewise
    virtual   not a share: what the virtual clock says in round r_a; None if that is never, or no clock
    """

    rounds: int
    reached: bool
    share: float
    bytes: float
    seconds: float | None
    virtual: float | None = None


def first_round(rounds: np.ndarray, values: np.ndarray, quality: float, higher: bool) -> int | None:
    """The first round whose value is as good as a quality.

    >>> first_round(np.array([10, 20, 30]), np.array([0.2, 0.6, 0.5]), 0.5, higher=True)
    20
    """
    slack = ROUNDING * max(1.0, abs(quality))
    good = values >= quality - slack if higher else values <= quality + slack
    return int(rounds[good.argmax()]) if good.any() else None


def reach(method: Method, figure: str, quality: float, higher: bool) -> Reach:
    """The plain price of a quality: counted up to the round in which the mean over all seeds first has it."""
    c = curve(method, figure)
    r = first_round(c.round[: c.common], c.mean[: c.common], quality, higher)
    if r is None:
        return Reach()
    at = int(np.searchsorted(c.round, r))
    virtual = None if c.virtual is None else _known(c.virtual[at])
    return Reach(r, float(c.bytes[at]), _known(c.seconds[at]), virtual)


def alone(run: RunRecord, figure: str, quality: float, higher: bool) -> int | None:
    """The first round in which a run by itself has a quality."""
    if figure not in run.metrics:
        return None
    values = run.metrics[figure][run.evaluated]
    return first_round(run.round[run.evaluated], values, quality, higher)


def cost(method: Method, figure: str, quality: float, higher: bool) -> Cost:
    """C.3 for one method.  A run that ended early counts as if it had gone on at the same price a round."""
    T = method.planned
    there = reach(method, figure, quality, higher)
    r = there.rounds
    share = (T if r is None else r) / T
    b = float(np.mean([run.bytes[-1] * T / run.recorded for run in method.runs]))
    t = _known(float(np.mean([_seconds_a_round(run) * T for run in method.runs])))
    return Cost(
        rounds=T if r is None else r,
        reached=r is not None,
        share=share,
        bytes=b * share,
        seconds=None if t is None else t * share,
        virtual=there.virtual,
    )


def change(price: float | None, of_baseline: float | None) -> float | None:
    """A price against the baseline's: -0.25 is a quarter less.

    >>> change(75.0, 100.0)
    -0.25
    """
    if price is None or not of_baseline:
        return None
    return price / of_baseline - 1


def _seconds_a_round(run: RunRecord) -> float:
    known = run.seconds[np.isfinite(run.seconds)]
    return float(known.mean()) if len(known) else math.nan


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
