"""Runs in virtual time: what their rounds and first visits say, as frozen records."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

VIRTUAL = "virtual_seconds"  # the clock of simulated time after a round, where there is one
CLIENTS, VISITS, STEPS = 25, 60, 3  # of a picture: rows at most, visits about, steps at least


@dataclass(frozen=True)
class First:
    """The first seconds of a run: who did what when.

    until    the last moment that is shown                 steps   (moment, round) of the server's steps by then
    clients  in the order in which they were first asked   others  clients that were asked by then and have no row
    visits   of these clients: what visits.jsonl says, with "used", the moment of the step that took the update in,
             None for an update that was lost or not used yet
    """

    until: float
    clients: tuple[int, ...]
    others: int
    visits: tuple[Mapping[str, Any], ...]
    steps: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Timed:
    """What a run in virtual time was like.

    staleness   mean over the updates of each round, NaN where there was none
    counts      how many updates had a staleness of 0, 1, 2, ...
    lost        visits that came to nothing
    waited      virtual seconds that finished updates waited for a step; wasted: of computing that came to nothing
    tau_eff     mean over rounds; chi2, chi2_steps, used: by the end, as in `undrift.Timing`
    first       None if no visit was recorded
    """

    staleness: np.ndarray
    counts: np.ndarray
    lost: int
    waited: float
    wasted: float
    tau_eff: float
    chi2: float
    chi2_steps: float
    used: int
    first: First | None

    @property
    def updates(self) -> int:
        return int(self.counts.sum())


def timed(lines: Sequence[Mapping[str, Any]], visits: Sequence[Mapping[str, Any]]) -> Timed | None:
    """The record of a run from its rounds and visits; None unless every round has an account of its time."""
    rounds = [line["timing"] for line in lines if "timing" in line]
    if not rounds or len(rounds) < len(lines):
        return None
    stale = np.array([s for each in rounds for s in each["staleness"]], dtype=int)
    means = [np.mean(each["staleness"]) if each["staleness"] else np.nan for each in rounds]
    return Timed(
        staleness=np.array(means, dtype=float),
        counts=np.bincount(stale),
        lost=sum(len(each["lost"]) for each in rounds),
        waited=float(sum(each["waited"] for each in rounds)),
        wasted=float(sum(each["wasted"] for each in rounds)),
        tau_eff=float(np.mean([each["tau_eff"] for each in rounds])),
        chi2=rounds[-1]["chi2"],
        chi2_steps=rounds[-1]["chi2_steps"],
        used=rounds[-1]["used"],
        first=first_seconds(lines, visits) if visits else None,
    )


def first_seconds(lines: Sequence[Mapping[str, Any]], visits: Sequence[Mapping[str, Any]]) -> First:
    """As much of a run as a picture can show: until some visits are over and the server has stepped a few times."""
    clock = [line[VIRTUAL] for line in lines]
    returns = sorted(visit["returns"] for visit in visits)
    until = max(returns[:VISITS][-1], clock[:STEPS][-1])
    asked = sorted((v for v in visits if v["dispatched"] <= until), key=lambda v: v["order"])
    clients = tuple(dict.fromkeys(visit["client"] for visit in asked))
    shown = set(clients[:CLIENTS])
    return First(
        until=until,
        clients=clients[:CLIENTS],
        others=len(clients) - len(shown),
        visits=tuple({**v, "used": _used(v, clock, lines)} for v in asked if v["client"] in shown),
        steps=tuple((line[VIRTUAL], line["round"]) for line in lines if line[VIRTUAL] <= until),
    )


def _used(
    visit: Mapping[str, Any], clock: Sequence[float], lines: Sequence[Mapping[str, Any]]
) -> float | None:
    """When the server took an update in: the client is not asked again before that."""
    if visit["fate"] != "arrives":
        return None
    later = lines[bisect_left(clock, visit["returns"]) :]
    client = visit["client"]
    return next((line[VIRTUAL] for line in later if client in line.get("clients", (client,))), None)
