"""Rows that take turns: each a process of its own that holds a whole federation.

One does rounds for a while, says how long each took, and waits for its next turn, so that whatever else the machine does
falls on all of them alike.  Starting, compiling and the first rounds are not counted.  No row records, and
none evaluates but where a workload says how many test samples are evaluated after every round.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from benchmarks.peers.environments import PEERS, Unavailable, python
from benchmarks.peers.own import rows_of
from benchmarks.peers.rows import Row
from benchmarks.peers.turns import Work
from benchmarks.tables import summary
from benchmarks.workloads import Workload

Starts = dict[str, Callable[[Work], Row]]
AGAIN = "undrift, beside the restless"


def starts(w: Workload, peers: list[str], restless: bool) -> Starts:
    """How to start the peers of a workload, by name."""
    return {
        peer.name: lambda work, peer=peer: Row.of(work, f"run_{peer.module}", interpreter=python(peer))
        for peer in PEERS
        if peer.name in peers and w.name in peer.workloads and peer.restless == restless
        if peer.evaluates or not w.evaluated
    }


def check_work(work: Work, samples: int) -> None:
    """All rows train on as many samples a round, but for W4, where an epoch of 8 batches has 500 in place of 512."""
    asked = work.cohort * work.steps * work.batch
    if samples not in (asked, work.cohort * work.samples):
        raise Unavailable(f"trained on {samples} samples in its first round, not on {asked}")


class Measurement:
    """Figures of every row of a workload that runs, and the reasons of those that do not."""

    def __init__(self, work: Work, turns: int, seconds: float):
        self.work, self.turns, self.seconds = work, turns, seconds
        self.about: dict[str, dict[str, Any]] = {}
        self.times: dict[str, list[float]] = {}
        self.missing: dict[str, str] = {}

    def started(self, starts: Starts, stack: ExitStack) -> dict[str, Row]:
        """Rows that are ready and warm, one after another."""
        rows: dict[str, Row] = {}
        for name, start in starts.items():
            try:
                rows[name] = stack.enter_context(start(self.work))
                self.about[name] = rows[name].ready()
                check_work(self.work, self.about[name]["samples"])
                rows[name].warm(self.seconds)
            except Unavailable as error:
                self._lost(name, rows, error)
        return rows

    def take_turns(self, rows: dict[str, Row]) -> None:
        for _ in range(self.turns):
            for name, row in list(rows.items()):
                try:
                    self.times.setdefault(name, []).extend(row.rounds_for(self.seconds))
                except Unavailable as error:
                    self._lost(name, rows, error)

    def _lost(self, name: str, rows: dict[str, Row], error: Unavailable) -> None:
        self.missing[name] = str(error)
        self.times.pop(name, None)
        if name in rows:  # it was installed, at least
            rows.pop(name).end()  # now, since what it may still do would disturb the others

    def figures(self) -> dict[str, Any]:
        return {name: summary(each) | self.about[name] for name, each in self.times.items()}


def measured(w: Workload, peers: list[str], threads: int, turns: int, seconds: float) -> Any:
    found = Measurement(Work(**asdict(w), threads=threads), turns, seconds)
    ours: Starts = {name: lambda work, name=name: Row.of(work, "own", name) for name in rows_of(w)}
    with ExitStack() as stack:
        rows = found.started(ours | starts(w, peers, restless=False), stack)
        found.take_turns(rows)
        # those that poll all the time come last, so as to disturb nobody but Undrift, which is measured again
        late = found.started(starts(w, peers, restless=True), stack)
        if late and "undrift" in rows:
            found.about[AGAIN] = found.about["undrift"]
            found.take_turns({AGAIN: rows["undrift"]} | late)
    return found.figures(), found.missing
