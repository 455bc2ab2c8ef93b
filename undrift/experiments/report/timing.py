"""Read what a run in virtual time has recorded: staleness, lost and waiting updates, its first visits."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

VIRTUAL = "virtual_seconds"  # the virtual clock after a round, in metrics.jsonl
MAX_CLIENTS, MIN_VISITS, MIN_STEPS = 25, 60, 3  # of a timeline

Line = Mapping[str, Any]  # of a JSON lines file


@dataclass(frozen=True)
class Timeline:
    """The beginning of a run: who did what when.

    until    the last moment that is shown                 steps   (moment, round) of the server's steps by then
    clients  in the order in which they were first asked   others  number of clients asked by then that have no row
    visits   of these clients, as in visits.jsonl, with "used": the moment of the server step that used the update,
             None for an update that was lost or is not used yet
    """

    until: float
    clients: tuple[int, ...]
    others: int
    visits: tuple[Line, ...]
    steps: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class RunTiming:
    """The timing of a run in virtual time.

    staleness   mean over the updates of each round, NaN where there was none
    counts      how many updates had a staleness of 0, 1, 2, ...
    totals      numbers of the whole run: updates and the clients they came from, lost visits, the seconds that updates
                waited for a server step, seconds of computing wasted on lost updates, mean tau_eff, final chi2 and chi2_steps
    timeline    None if no visit was recorded
    """

    staleness: np.ndarray
    counts: np.ndarray
    totals: Mapping[str, float]
    timeline: Timeline | None


def read_timing(lines: Sequence[Line], visits: Sequence[Line]) -> RunTiming | None:
    """From the lines of metrics.jsonl and visits.jsonl; None unless every round has its timing."""
    rounds = [line["timing"] for line in lines if "timing" in line]
    if not rounds or len(rounds) < len(lines):
        return None
    staleness, last = [each["staleness"] for each in rounds], rounds[-1]
    totals = {
        "updates": sum(map(len, staleness)),
        "clients": last["used"],
        "lost": sum(len(each["lost"]) for each in rounds),
        "waited_seconds": sum(each["waited"] for each in rounds),
        "wasted_seconds": sum(each["wasted"] for each in rounds),
        "tau_eff": float(np.mean([each["tau_eff"] for each in rounds])),
        "chi2": last["chi2"],
        "chi2_steps": last["chi2_steps"],
    }
    return RunTiming(
        staleness=np.array([np.mean(each) if each else np.nan for each in staleness]),
        counts=np.bincount(np.array([age for each in staleness for age in each], dtype=int)),
        totals=totals,
        timeline=build_timeline(lines, visits) if visits else None,
    )


def build_timeline(lines: Sequence[Line], visits: Sequence[Line]) -> Timeline:
    """As much of a run as a plot can show: until some visits are over and the server has stepped a few times."""
    clock = [line[VIRTUAL] for line in lines]
    returns = sorted(visit["returns"] for visit in visits)
    until = max(returns[:MIN_VISITS][-1], clock[:MIN_STEPS][-1])
    asked = sorted((v for v in visits if v["dispatched"] <= until), key=lambda v: v["order"])
    clients = tuple(dict.fromkeys(visit["client"] for visit in asked))
    shown = set(clients[:MAX_CLIENTS])

    def find_use(visit: Line) -> float | None:
        """The first step after the return that has the client: it is not asked again before that."""
        if visit["fate"] != "arrives":
            return None
        client, later = visit["client"], lines[bisect_left(clock, visit["returns"]) :]
        used_by = (line for line in later if client in line.get("clients", (client,)))
        return next((line[VIRTUAL] for line in used_by), None)

    return Timeline(
        until=until,
        clients=clients[:MAX_CLIENTS],
        others=len(clients) - len(shown),
        visits=tuple({**v, "used": find_use(v)} for v in asked if v["client"] in shown),
        steps=tuple((line[VIRTUAL], line["round"]) for line in lines if line[VIRTUAL] <= until),
    )
