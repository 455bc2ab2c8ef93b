"""From clients' answers to the server's step: decode, check, add up, update; bytes are counted where they cross the wire."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from undrift.core.algorithm import Cohort, Exchange
from undrift.core.batched_scalar import NotBatchable
from undrift.core.errors import Diverged, MethodFailure
from undrift.core.observe import Observed
from undrift.core.records import checked_record, fits, map_tensors, nbytes, rebuild, tensors
from undrift.core.rng import Key
from undrift.core.work import Solver
from undrift.local.parameters import initial_of
from undrift.problems import Problem
from undrift.simulation.client_states import ClientStates, States
from undrift.simulation.participants import Participants, cohort_of

log = logging.getLogger("undrift.clients")

T = TypeVar("T")


class ClientResults(NamedTuple):
    """What some clients answer, with a row each; or, if `summed`, the weighted sum of it, which is known to be finite."""

    clients: Sequence[int]
    up: Any
    state: Any
    summed: bool = False
    observed: Observed | None = None  # of their local loops, a row each


@dataclass(frozen=True)
class Traffic:
    """What an exchange cost, and whose answers could not be used."""

    bytes_down: int = 0
    bytes_up: int = 0
    left_out: tuple[int, ...] = ()

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.bytes_down + other.bytes_down, self.bytes_up + other.bytes_up, (*self.left_out, *other.left_out)
        )


@dataclass(frozen=True)
class LocalSums:
    """What was seen of the local loops of some clients, added up; of batched runs a row for each."""

    drift: Any = 0.0
    clients: int = 0  # whose drift it is
    delta: Tensor | None = None  # weighted as Ups are

    @property
    def mean_drift(self) -> Any:
        return self.drift / self.clients if self.clients else None

    def __add__(self, other: "LocalSums") -> "LocalSums":
        known = [each for each in (self.delta, other.delta) if each is not None]
        delta = known[0] if len(known) == 1 else known[0] + known[1] if known else None
        return LocalSums(self.drift + other.drift, self.clients + other.clients, delta)

    @staticmethod
    def of(observed: Observed | None, rows: Sequence[int], weights: Sequence[float]) -> "LocalSums":
        """Of these rows, one after another."""
        if observed is None:
            return LocalSums()
        drifts = [] if observed.drift is None else [observed.drift[row, 0].item() for row in rows]
        total = None
        if observed.delta is not None:
            total = torch.zeros_like(observed.delta[0])
            for row in rows:
                total.add_(observed.delta[row], alpha=weights[row])
        return LocalSums(sum(drifts), len(drifts), total)


@dataclass(frozen=True)
class PartialAggregate:
    """What the answers of some clients come to.  All that the server needs of them are sums."""

    clients: list[int]  # those whose answers could be used, in ascending order
    total: Any  # the weighted sum of their Ups; None if there is none
    weight: float
    states: States  # their new states, not written yet
    traffic: Traffic
    local: LocalSums = LocalSums()


@dataclass(frozen=True)
class Reply:
    """What an exchange leads to: the mean of the Ups, or None if the server does not step, and who is still there."""

    mean: Any
    cohort: Cohort | None
    traffic: Traffic
    lost: tuple[int, ...] = ()  # clients that do not come to the round's next exchange
    amend: Callable[[Any], Any] | None = None  # what becomes of the server after its step
    local: LocalSums = LocalSums()  # with `delta` as a mean


def is_finite(t: Tensor) -> bool:
    """Whether all numbers are finite: where their sum is they are, which takes less to see than each of them.

    >>> is_finite(torch.tensor([1.0, torch.nan])), is_finite(torch.tensor([3e38, 3e38]))
    (False, True)
    """
    return math.isfinite(float(t.sum())) or bool(t.isfinite().all())


class RunningSum:
    """The weighted sum of records, added in a fixed order; row by row it has the same bits for any chunking."""

    def __init__(self) -> None:
        self.sums: list[Tensor] | None = None
        self.weight = 0.0
        self.form: Any = None

    def add(self, rows: Any, which: Sequence[int], weights: Sequence[float]) -> None:
        """Add these rows, one after another."""
        if not which:
            return  # what is wrong with all of them may be their shape
        columns = tensors(rows)
        if self.sums is None:
            self.form = rows
            self.sums = [torch.zeros_like(t[0]) for t in columns]
        for total, t in zip(self.sums, columns, strict=True):
            each = t.unbind()
            for row in which:
                total.add_(each[row], alpha=weights[row])
        for row in which:
            self.weight += weights[row]

    def add_sum(self, record: Any, weights: Sequence[float]) -> None:
        """Add what is already the sum of rows with these weights."""
        sums = tensors(record)
        self.form = record
        self.sums = sums if self.sums is None else [a + b for a, b in zip(self.sums, sums, strict=True)]
        for weight in weights:
            self.weight += weight

    def add_all(self, rows: Any, weights: Sequence[float]) -> bool:
        """Add all rows if the sums stay finite, as they do unless some row is not; otherwise change nothing.

        To look at the sums takes less than to look at every row, if there are several.
        """
        if len(weights) == 1:
            sound = all(map(is_finite, tensors(rows)))
            self.add(rows, [0] if sound else [], weights)
            return sound
        before = None if self.sums is None else [total.clone() for total in self.sums], self.weight
        self.add(rows, range(len(weights)), weights)
        if all(map(is_finite, self.sums or ())):
            return True
        self.sums, self.weight = before
        return False

    def total(self) -> Any:
        """The sum, a record like those that were added; None if there were none."""
        return None if self.sums is None else rebuild(self.form, iter(self.sums))


@torch.no_grad()
def aggregate(
    results: Iterable[ClientResults],
    exchange: Exchange,
    states: ClientStates,
    participants: Participants,
    problem: Problem,
    t: int,
    discount: Mapping[int, float] | None = None,
) -> PartialAggregate:
    """Check what clients answered, and add it up; with `discount`, each times a factor of its client."""
    weight_of = dict(zip(participants.clients, participants.weights, strict=True))
    ups, traffic = RunningSum(), Traffic()
    present: list[int] = []
    new_states: States = []
    local = LocalSums()
    initial = initial_of(problem)
    own = 1 if initial is None else initial.numel()
    for clients, up, client, summed, observed in results:
        states.check(client, f"round {t}")
        weights = [weight_of[i] for i in clients]
        good: Sequence[int] = range(len(clients))
        sent = nbytes(up)
        if summed:
            sent *= len(clients)
            ups.add_sum(up, weights)
        else:
            up = _decode(exchange, up, t)
            factors = [(discount or {}).get(i, 1.0) for i in clients]
            if discount:
                up = map_tensors(partial(_scale_rows, factors=factors), up)
            fit = fits(up, client, len(clients), problem.x0, own)
            if not (fit and _rows_are_finite(client) and ups.add_all(up, weights)):
                sound = _finite_rows(up, client, len(clients)) if fit else []
                good = [row for row, ok in enumerate(sound) if ok]
                ups.add(up, good, weights)
            weights = [w * f for w, f in zip(weights, factors, strict=True)]
        who, lost = clients, ()
        if len(good) < len(clients):
            who, client = [clients[row] for row in good], map_tensors(lambda c: c[good], client)  # noqa: B023 (used at once)
            lost = tuple(i for i in clients if i not in who)
        new_states.append((who, client))
        traffic += Traffic(bytes_up=sent, left_out=lost)
        present += who
        local += LocalSums.of(observed, good, weights)
    return PartialAggregate(present, ups.total(), ups.weight, new_states, traffic, local)


def _decode(exchange: Exchange, payload: Any, t: int) -> Any:
    wire = exchange.wire
    return payload if wire is None else run_stage("decode", t, lambda: checked_record(wire.decode(payload)))


def join_partials(parts: Sequence[PartialAggregate]) -> PartialAggregate:
    """Partial aggregates as one, added one after another; a single one stays as it is."""
    first, *others = [part for part in parts if part.clients] or parts[:1]
    totals = tensors(first.total)
    for part in others:
        totals = [a + b for a, b in zip(totals, tensors(part.total), strict=True)]
    traffic = sum((part.traffic for part in parts), Traffic())
    return PartialAggregate(
        [i for part in parts for i in part.clients],
        rebuild(first.total, iter(totals)),
        sum((part.weight for part in others), first.weight),
        [each for part in parts for each in part.states],
        replace(traffic, left_out=tuple(sorted(traffic.left_out))),
        sum((part.local for part in parts), LocalSums()),
    )


@torch.no_grad()
def reply_of(part: PartialAggregate, participants: Participants, problem: Problem, solver: Solver, key: Key) -> Reply:
    """The mean of what clients sent, and what the server is told of them; raises Diverged if nobody's can be used."""
    t = key.round
    if left := part.traffic.left_out:
        who = f"client {left[0]}" + (f" and {len(left) - 1} more" if left[1:] else "")
        log.warning("round %d: %s returned NaN, Inf, a wrong shape or dtype; left out", t, who)
    if not part.clients:
        raise Diverged(
            f"round {t}: no client returned a finite result of the right shape; "
            "if it grew from round to round, a smaller lr may help",
            t,
            None,
        )
    mean = map_tensors(lambda total: total / part.weight, part.total)
    position = {i: j for j, i in enumerate(participants.clients)}
    present = participants.at(sorted(position[i] for i in part.clients))
    local = part.local
    if local.delta is not None:
        local = replace(local, delta=local.delta / part.weight)
    return Reply(mean, cohort_of(present, problem, solver, key), part.traffic, local=local)


@torch.no_grad()
def step_server(exchange: Exchange, server: Any, reply: Reply, t: int) -> Any:
    """The server's step on the mean of what came."""
    assert reply.cohort is not None
    cohort = reply.cohort
    updated = run_stage("update", t, lambda: exchange.update(server, reply.mean, cohort))
    if not all(map(is_finite, tensors(updated))):
        raise Diverged(f"round {t}: the server's state would become NaN or Inf; a smaller lr may help", t, None)
    return updated


def send(exchange: Exchange, server: Any, t: int) -> Any:
    """What travels to clients."""
    return run_stage("send", t, lambda: checked_record(exchange.send(server)))


def run_stage(name: str, t: int, function: Callable[[], T]) -> T:
    """Run code of a method on the server; its errors name round and stage."""
    try:
        return function()
    except NotBatchable:
        raise
    except Exception as error:
        where = f"server, round {t}, stage {name}"
        raise MethodFailure(f"{where}: {type(error).__name__}: {error}") from error


def _scale_rows(t: Tensor, factors: Sequence[float]) -> Tensor:
    if t.dim() == 0 or len(t) != len(factors):
        return t  # of a wrong shape, and left out for it
    return t * t.new_tensor(factors).view(-1, *[1] * (t.dim() - 1))


def _rows_are_finite(record: Any) -> bool:
    """Whether a sum over each row is finite, which it is not if a number in it is not."""
    return all(bool(t.sum(1).isfinite().all()) for t in tensors(record))


def _finite_rows(up: Any, client: Any, count: int) -> list[bool]:
    """Whether each row may enter the mean: all numbers in it are finite."""
    sound = torch.ones(count, dtype=torch.bool)
    for t in (*tensors(up), *tensors(client)):
        sound &= t.isfinite().all(1).cpu()
    return sound.tolist()
