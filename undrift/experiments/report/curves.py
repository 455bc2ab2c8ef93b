"""Means over seeds: of a number, and of a metric round by round."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.experiments.report.load import Method, RunRecord
from undrift.metrics.quality import higher_is_better, not_known


def finite_or_none(value: float) -> float | None:
    """The number, None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def mean_over_seeds(method: Method, value: Callable[[RunRecord], float]) -> float | None:
    """The mean of a number over a method's runs, None if one of them is not finite."""
    return finite_or_none(sum(float(value(run)) for run in method.runs) / len(method.runs))


def thin_out(count: int, most: int) -> np.ndarray:
    """Places of so many points, at most, evenly among all, the first and the last with them.

    >>> thin_out(3, 10).tolist(), thin_out(9, 3).tolist(), thin_out(0, 3).tolist()
    ([0, 1, 2], [0, 4, 8], [])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


@dataclass(frozen=True)
class Curve:
    """A metric of a method over its evaluated rounds: mean, lowest and highest of the seeds that have the round.

    bytes, seconds, virtual   by the end of the round, mean over seeds; NaN where not known; bytes_up are those of clients
    common                    how many points all seeds have; later means are those of the seeds that are left
    """

    round: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bytes: np.ndarray
    bytes_up: np.ndarray
    seconds: np.ndarray
    virtual: np.ndarray
    common: int


def mean_curve(method: Method, metric: str, best_so_far: bool = False) -> Curve:
    """Average a method's runs round by round; a mean is NaN if one of the runs is not finite there.

    With `best_so_far` every run has in each round the best that it has had by then (Cheng et al. 2024, Fig. 2b).
    """
    runs = method.runs
    known = [run.evaluated & (metric in run.metrics) for run in runs]
    values = [run.metrics.get(metric, run.evaluated) for run in runs]
    if best_so_far:
        higher = higher_is_better(metric)
        if higher is None:
            raise InvalidInput(not_known(metric))
        better = np.fmax if higher else np.fmin  # which pass over what was not evaluated
        values = [better.accumulate(np.where(mask, each, np.nan)) for each, mask in zip(values, known, strict=True)]
    metrics = _stack(values, known)
    at = np.unique(np.concatenate([np.flatnonzero(run.evaluated) for run in runs]))
    return Curve(
        round=at + 1,
        mean=metrics.mean(0).filled(np.nan)[at],
        low=metrics.min(0).filled(np.nan)[at],
        high=metrics.max(0).filled(np.nan)[at],
        bytes=_mean_clock([run.bytes_down + run.bytes_up for run in runs])[at],
        bytes_up=_mean_clock([run.bytes_up for run in runs])[at],
        seconds=_mean_clock([run.seconds for run in runs])[at],
        virtual=_mean_clock([np.diff(run.virtual, prepend=0.0) for run in runs])[at],
        common=int((at < method.common).sum()),
    )


def _mean_clock(increments: Sequence[np.ndarray]) -> np.ndarray:
    """A cumulative count: each round adds the mean over the runs that have it, so that it never runs backwards."""
    known = [np.isfinite(each) for each in increments]
    return np.cumsum(_stack(increments, known).mean(0).filled(np.nan))


def _stack(arrays: Sequence[np.ndarray], known: Sequence[np.ndarray]) -> np.ma.MaskedArray:
    """One row per run, masked where a run has nothing."""
    stacked = np.ma.masked_all((len(arrays), max(map(len, arrays))))
    for row, array, mask in zip(stacked, arrays, known, strict=True):
        row[: len(array)] = np.ma.array(array, mask=~mask)
    return stacked
