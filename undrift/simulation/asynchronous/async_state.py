"""The state of a run in virtual time: who is out, on which model, and what was used so far.

`AsyncState` is the live state; `AsyncSnapshot` is the same as a record of tensors.  A visit needs no result to be stored:
the model that was sent is kept once for all clients that work on it, the client's state is still what it was when it left,
and the randomness of its work has a key, so its answer can be computed again.
"""

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.records import map_tensors, rebuild, record, tensors
from undrift.simulation.asynchronous.population import Device, Population

ARRIVES, BEFORE, AFTER, LEFT, LATE = "arrives", "lost before", "lost after", "left", "late"
FATES = (ARRIVES, BEFORE, AFTER, LEFT, LATE)  # stored by number: append, never renumber
OUT = "still out"  # when the run ended: its future is not recorded


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit of one client, whose whole course is known when it begins.

    visit        how often the client had been visited before       version   server updates when it was dispatched
    dispatched   <= begins <= ends <= returns, in virtual seconds: sent, computing from, to, answer arrived or lost
    fate         "arrives", "lost before" or "lost after" the work, "left" (no longer available), "late" (deadline, or
                 past the buffer's max_staleness);
                 in the record of a run "still out" for those that had not returned when it ended
    order        the number of the dispatch                          weight    in the mean, before it is normalised
    """

    client: int
    visit: int
    version: int
    steps: int
    order: int
    fate: str
    weight: float
    dispatched: float
    begins: float
    ends: float
    returns: float

    @property
    def arrives(self) -> bool:
        return self.fate == ARRIVES

    def cancelled(self, end: float) -> "Visit":
        """The same visit, late, until this moment at most."""
        begins, ends, returns = (min(moment, end) for moment in (self.begins, self.ends, self.returns))
        return replace(self, fate=LATE, begins=begins, ends=ends, returns=returns)


def visit_timeline(
    population: Population,
    device: Device,
    seed: int,
    client: int,
    visit: int,
    steps: int,
    now: float,
    bytes_down: int,
    bytes_up: int,
    until: float = math.inf,
) -> tuple[int, str, float, float, float]:
    """Steps, fate, and when computing begins, ends, and the answer arrives or is lost.

    `until` is when the client leaves.  A loss is noticed when it happens: the connection breaks.
    """
    factor, vanishes_before, vanishes_after = population.draw_visit(seed, client, visit)
    a_step = device.pace * population.work * factor
    if population.budget is not None and a_step > 0:
        steps = max(1, min(steps, math.floor(population.budget / a_step * (1 + 1e-12))))
    begins = now + device.latency + bytes_down / device.down
    ends = begins + steps * a_step
    returns, fate = ends + device.latency + bytes_up / device.up, ARRIVES
    if vanishes_before:
        ends, returns, fate = begins, begins, BEFORE
    elif vanishes_after:
        returns, fate = ends, AFTER
    if returns > until:
        begins, ends, returns, fate = min(begins, until), min(ends, until), until, LEFT
    return steps, fate, begins, ends, returns


@record
class AsyncSnapshot:
    """The state as tensors: a row for every visit in flight, for every model sent, for every client seen."""

    clock: Tensor  # time, when to ask again, and the five sums of Tally
    counts: Tensor  # cohorts drawn, how far the last one was asked, dispatches
    visits: Tensor  # [n, 7]: client, visit, version, steps, order, fate, whether it waits in the buffer
    moments: Tensor  # [n, 5]: weight, dispatched, begins, ends, returns
    versions: Tensor  # [V]
    downs: Any  # a Down whose tensors have a row for every version
    clients: Tensor  # [c, 3]: client, visits, times used
    weights: Tensor  # [c, 2]: sum of weights, sum of weights times steps


class Tally:
    """How often each client was visited and used, and with what weight: grows with the clients seen.

    Distances to the intended weights p are kept as sums, so that a round costs what its cohort does:
    chi^2 = sum_i (p_i - w_i)^2 / w_i = (sum_i p_i^2 / W_i) (sum_i W_i) - 1   with w = W / sum W   (Wang et al. (103)).
    """

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int, float, float]] = {}  # visits, used, W, W by steps
        self.sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # sum of W and of p^2 / W, the same with steps, sum of p
        self.used = 0  # different clients
        self._undo: tuple[dict[int, tuple[int, int, float, float] | None], Any, int] | None = None

    def mark(self) -> None:
        """Remember this moment, which `rollback` restores."""
        self._undo = ({}, self.sums, self.used)

    def rollback(self) -> None:
        assert self._undo is not None
        rows, self.sums, self.used = self._undo
        for client, row in rows.items():
            if row is None:
                del self.rows[client]
            else:
                self.rows[client] = row

    def _set(self, client: int, row: tuple[int, int, float, float]) -> None:
        if self._undo is not None:
            self._undo[0].setdefault(client, self.rows.get(client))
        self.rows[client] = row

    def visits(self, client: int) -> int:
        return self.rows.get(client, (0, 0, 0.0, 0.0))[0]

    def dispatched(self, client: int) -> None:
        visits, used, W, WK = self.rows.get(client, (0, 0, 0.0, 0.0))
        self._set(client, (visits + 1, used, W, WK))

    def take(self, client: int, weight: float, steps: int, p: float) -> None:
        """An update was used with this weight (of all that were used with it, one in sum)."""
        visits, used, W, WK = self.rows[client]
        self.used += used == 0
        total, ratios, total_K, ratios_K, covered = self.sums
        W2, WK2 = W + weight, WK + weight * steps
        if weight > 0:
            total, total_K = total + weight, total_K + weight * steps
            ratios += p * p / W2 - (p * p / W if W else 0.0)
            ratios_K += p * p / WK2 - (p * p / WK if WK else 0.0)
            covered += 0.0 if W else p
        self.sums = total, ratios, total_K, ratios_K, covered
        self._set(client, (visits, used + 1, W2, WK2))

    def chi2(self) -> tuple[float, float]:
        """By participation alone, and with steps counted as weight; infinite while somebody has had no weight at all."""
        total, ratios, total_K, ratios_K, covered = self.sums
        if covered < 1 - 1e-9:
            return math.inf, math.inf
        return ratios * total - 1, ratios_K * total_K - 1


class AsyncState:
    """The live state of a run in virtual time; `form` is any message to a client, for the form of a record."""

    def __init__(self, form: Any) -> None:
        self.form = form
        self.time, self.wake = 0.0, math.inf
        self.cohorts, self.taken, self.dispatches = 0, 0, 0
        self.out: list[tuple[float, int, Visit]] = []  # a heap: who returns next
        self.buffer: list[Visit] = []  # arrived, in that order
        self.downs: dict[int, Any] = {}  # by version
        self.tally = Tally()
        self.busy: set[int] = set()  # out, or in the buffer

    def depart(self, visit: Visit) -> None:
        heappush(self.out, (visit.returns, visit.order, visit))
        self.busy.add(visit.client)

    def returned(self) -> Visit | None:
        """The next visit that is over by now, if any."""
        if self.out and self.out[0][0] <= self.time:
            return heappop(self.out)[2]
        return None

    def cancel(self, late: Callable[[Visit], bool]) -> list[Visit]:
        """Stop the visits that are late, out or in the buffer."""
        found = [v for v in (*self.buffer, *(v for _, _, v in self.out)) if late(v)]
        if found:
            self.buffer = [v for v in self.buffer if not late(v)]
            self.out = [each for each in self.out if not late(each[2])]
            heapify(self.out)
        return found

    def release(self, visits: Iterable[Visit]) -> None:
        """These clients may be asked again; models that nobody works on are forgotten."""
        self.busy.difference_update(v.client for v in visits)
        needed = {v.version for _, _, v in self.out} | {v.version for v in self.buffer}
        for version in [v for v in self.downs if v not in needed]:
            del self.downs[version]

    def mark(self) -> dict[str, Any]:
        """What `rollback` restores: visits never change, so short lists are all there is to copy."""
        self.tally.mark()
        return {name: copy(value) for name, value in vars(self).items() if name not in ("form", "tally")}

    def rollback(self, mark: dict[str, Any]) -> None:
        self.tally.rollback()
        vars(self).update(mark)

    def record(self) -> AsyncSnapshot:
        """As a record of tensors."""
        rows = [(v, 0) for _, _, v in sorted(self.out)] + [(v, 1) for v in self.buffer]
        ints = [(v.client, v.visit, v.version, v.steps, v.order, FATES.index(v.fate), b) for v, b in rows]
        floats = [(v.weight, v.dispatched, v.begins, v.ends, v.returns) for v, _ in rows]
        versions = sorted(self.downs)
        parts = [tensors(self.downs[v]) for v in versions]
        stacked = [
            torch.stack([part[f] for part in parts]) if parts else like.new_zeros((0, *like.shape))
            for f, like in enumerate(tensors(self.form))
        ]
        seen = sorted(self.tally.rows.items())
        return AsyncSnapshot(
            clock=_floats([self.time, self.wake, *self.tally.sums]),
            counts=_ints([self.cohorts, self.taken, self.dispatches]),
            visits=_ints(ints).reshape(-1, 7),
            moments=_floats(floats).reshape(-1, 5),
            versions=_ints(versions),
            downs=rebuild(self.form, iter(stacked)),
            clients=_ints([(i, visits, used) for i, (visits, used, _, _) in seen]).reshape(-1, 3),
            weights=_floats([(W, WK) for _, (_, _, W, WK) in seen]).reshape(-1, 2),
        )

    @staticmethod
    def restored(snapshot: AsyncSnapshot, form: Any) -> "AsyncState":
        """The live state that `record` was made of."""
        live = AsyncState(form)
        live.time, live.wake, *sums = snapshot.clock.tolist()
        if len(sums) != len(live.tally.sums):
            raise InvalidInput("this state in virtual time is of an older version of undrift: start the run anew")
        live.cohorts, live.taken, live.dispatches = snapshot.counts.tolist()
        for ints, floats in zip(snapshot.visits.tolist(), snapshot.moments.tolist(), strict=True):
            client, number, version, steps, order, fate, waits = ints
            weight, *moments = floats
            visit = Visit(client, number, version, steps, order, FATES[fate], weight, *moments)
            live.busy.add(visit.client)
            if waits:
                live.buffer.append(visit)
            else:
                live.out.append((visit.returns, visit.order, visit))
        heapify(live.out)
        for row, version in enumerate(snapshot.versions.tolist()):
            live.downs[version] = map_tensors(lambda t: t[row].clone(), snapshot.downs)  # noqa: B023 (used at once)
        for (i, visits, used), (W, WK) in zip(snapshot.clients.tolist(), snapshot.weights.tolist(), strict=True):
            live.tally.rows[i] = (visits, used, W, WK)
            live.tally.used += used > 0
        live.tally.sums = tuple(sums)  # pyright: ignore[reportAttributeAccessIssue]
        return live


def still_out(state: AsyncState | AsyncSnapshot | None) -> list[Visit]:
    """The visits that had not returned, as far as they had come."""
    if state is None:
        return []
    live = state if isinstance(state, AsyncState) else AsyncState.restored(state, None)
    return [
        replace(v, fate=OUT, begins=min(v.begins, live.time), ends=min(v.ends, live.time), returns=live.time)
        for _, _, v in sorted(live.out)
    ]


def _ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _floats(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class Timing:
    """What a round of virtual time was like.

    staleness   of every update used, in server updates, in the order of Round.clients; steps likewise
    lost        clients whose visits since the last round came to nothing
    in_flight   clients out when the server stepped
    waited      seconds that finished updates waited for the server's step, summed over them: the price of stragglers
    wasted      seconds of computing that came to nothing
    tau_eff     mean number of local steps, by the weights of the mean (FedNova's tau_eff for SGD)
    chi2        distance of the weights w that clients have had in the run so far to the intended ones,
                sum_i (p_i - w_i)^2 / w_i, infinite until every client has been used; chi2_steps counts a client's steps as
                weight, as plain averaging does
    used        different clients whose updates have been used so far
    visits      those that ended in this round, among the first of a run: for a picture of who did what when
    """

    staleness: tuple[int, ...]
    steps: tuple[int, ...]
    lost: tuple[int, ...]
    in_flight: int
    waited: float
    wasted: float
    tau_eff: float
    chi2: float
    chi2_steps: float
    used: int
    visits: tuple[Visit, ...]
