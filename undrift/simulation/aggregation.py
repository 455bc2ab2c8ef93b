"""Carrying out one exchange: send, visit, check, average, update; bytes booked where they cross the wire."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from undrift.core.algorithm import Cohort, Exchange
from undrift.core.errors import Diverged, MethodFailure
from undrift.core.records import fits, map_tensors, nbytes, rebuild, tensors
from undrift.core.rng import Key
from undrift.core.work import Solver, Work
from undrift.problems import Problem
from undrift.simulation.client_states import ClientStates, States
from undrift.simulation.engines import Added, Engine, Results

log = logging.getLogger("undrift")

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What stays the same during a round: who computes, on what, how."""

    problem: Problem
    engine: Engine
    chunk: int
    solver: Solver


@dataclass(frozen=True)
class Party:
    """The clients of one exchange, in ascending order, with their weights in the mean and their steps."""

    clients: Sequence[int]
    weights: Sequence[float]
    steps: Sequence[int]
    share: Sequence[float]  # of the population's weight, client by client
    staleness: Sequence[int] | None = None  # of the models they worked on; None: all fresh


@dataclass(frozen=True)
class Traffic:
    """What an exchange cost, and whom it lost."""

    bytes_down: int = 0
    bytes_up: int = 0
    left_out: tuple[int, ...] = ()

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            (*self.left_out, *other.left_out),
        )


def finite(t: Tensor) -> bool:
    """Whether all numbers are finite: where their sum is they are, which takes less to see than each of them.

    >>> finite(torch.tensor([1.0, torch.nan])), finite(torch.tensor([3e38, 3e38]))
    (False, True)
    """
    return math.isfinite(float(t.sum())) or bool(t.isfinite().all())


class RunningSum:
    """The weighted sum of records, added in a fixed order; row by row it has the same bits for any chunking."""

    def __init__(self) -> None:
        self.sums: list[Tensor] | None = None
        self.weight = 0.0
        self.shape: Any = None

    def add(self, rows: Any, which: Sequence[int], weights: Sequence[float]) -> None:
        """Add these rows, one after another."""
        if not which:
            return  # what is wrong with all of them may be their shape
        columns = tensors(rows)
        if self.sums is None:
            self.shape = rows
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
        self.shape = record
        self.sums = (
            sums if self.sums is None else [a + b for a, b in zip(self.sums, sums, strict=True)]
        )
        for weight in weights:
            self.weight += weight

    def add_all(self, rows: Any, weights: Sequence[float]) -> bool:
        """Add all rows, if sums stay finite as they do unless some row is not; otherwise change nothing.

        To look at the sums takes less than to look at every row, if there are several.
        """
        if len(weights) == 1:
            sound = all(map(finite, tensors(rows)))
            self.add(rows, [0] if sound else [], weights)
            return sound
        before = None if self.sums is None else [total.clone() for total in self.sums], self.weight
        self.add(rows, range(len(weights)), weights)
        if all(map(finite, self.sums or ())):
            return True
        self.sums, self.weight = before
        return False

    def total(self) -> Any:
        """The sum, a record like those that were added; None if there were none."""
        return None if self.sums is None else rebuild(self.shape, iter(self.sums))


@dataclass(frozen=True)
class Part:
    """What visits to some clients of an exchange came to.  All that the server needs of them are sums."""

    clients: list[int]  # those whose answers could be used, in ascending order
    total: Any  # the weighted sum of their Ups; None if there is none
    weight: float
    states: States  # their new states, not written yet
    traffic: Traffic


@dataclass(frozen=True)
class Outcome:
    """What an exchange leads to: nothing is written yet."""

    server: Any
    states: States
    traffic: Traffic


def carry_out(
    exchange: Exchange,
    server: Any,
    states: ClientStates,
    party: Party,
    setting: Setting,
    key: Key,
) -> Outcome:
    """One exchange with clients that are visited here: send, visit, check, average, update."""

    def collect(down: Any) -> list[Part]:
        return [visited(exchange.local, down, states, party, setting, key)]

    return concluded(exchange, server, party, setting, key, collect)


@torch.no_grad()
def visited(
    local: Callable[[Any, Any, Work], tuple[Any, Any]],
    down: Any,
    states: ClientStates,
    party: Party,
    setting: Setting,
    key: Key,
) -> Part:
    """Visit clients, check what they answer, add it up."""
    problem, solver = setting.problem, setting.solver
    steps = dict(zip(party.clients, party.steps, strict=True))

    def lend(clients: Sequence[int], single: bool) -> Work:
        return Work(problem, solver, clients, [steps[i] for i in clients], key, single)

    engine, chunk = setting.engine, setting.chunk
    results = engine(local, down, states, party.clients, lend, chunk, party.weights)
    return collected(results, states, party, problem, key.round)


@torch.no_grad()
def collected(
    results: Results, states: ClientStates, party: Party, problem: Problem, t: int
) -> Part:
    """Check what clients answered, add it up."""
    weight_of = dict(zip(party.clients, party.weights, strict=True))
    ups, traffic = RunningSum(), Traffic()
    present: list[int] = []
    new_states: States = []
    for clients, up, client in results:
        states.check(client, f"round {t}")
        weights = [weight_of[i] for i in clients]
        if isinstance(up, Added):  # nothing in it is wrong
            ups.add_sum(up.record, weights)
            new_states.append((clients, client))
            traffic += Traffic(bytes_up=nbytes(up.record) * len(clients))
            present += clients
            continue
        fit = fits(up, client, len(clients), problem.x0)
        if fit and _finite(client) and ups.add_all(up, weights):
            good = list(range(len(clients)))
        else:
            sound = _sound(up, client, len(clients)) if fit else [False] * len(clients)
            good = [row for row, ok in enumerate(sound) if ok]
            ups.add(up, good, weights)
        kept = client if len(good) == len(clients) else _rows(client, good)
        new_states.append(([clients[row] for row in good], kept))
        lost = tuple(clients[row] for row in sorted({*range(len(clients))} - {*good}))
        traffic += Traffic(bytes_up=nbytes(up), left_out=lost)
        present += [clients[row] for row in good]
    return Part(present, ups.total(), ups.weight, new_states, traffic)


@torch.no_grad()
def concluded(
    exchange: Exchange,
    server: Any,
    party: Party,
    setting: Setting,
    key: Key,
    collect: Callable[[Any], Sequence[Part]],
) -> Outcome:
    """One exchange whose visits `collect` makes, wherever they take place; parts are added in the order given."""
    t = key.round
    down, size = _stage("send", t, lambda: _sized(exchange.send(server)))
    parts = collect(down)
    outcome = stepped(exchange.update, server, parts, party, setting.problem, setting.solver, t)
    sent = Traffic(bytes_down=size * len(party.clients))
    return replace(outcome, traffic=sent + outcome.traffic)


@torch.no_grad()
def stepped(
    update: Callable[[Any, Any, Cohort], Any],
    server: Any,
    parts: Sequence[Part],
    party: Party,
    problem: Problem,
    solver: Solver,
    t: int,
) -> Outcome:
    """The server's step on what came."""
    part = _joined(parts)
    for i in part.traffic.left_out:
        log.warning("round %d: client %d returned NaN, Inf, a wrong shape or dtype; left out", t, i)
    if not part.clients:
        raise Diverged(
            f"round {t}: no client returned a finite result of the right shape; "
            "if it grew from round to round, a smaller lr may help",
            t,
            None,
        )
    mean = map_tensors(lambda total: total / part.weight, part.total)
    position = {i: j for j, i in enumerate(party.clients)}
    present = sorted(position[i] for i in part.clients)
    cohort = _cohort(problem, solver, party, present, t)
    updated = _stage("update", t, lambda: update(server, mean, cohort))
    if not all(map(finite, tensors(updated))):
        raise Diverged(
            f"round {t}: the server's state would become NaN or Inf; a smaller lr may help", t, None
        )
    return Outcome(updated, part.states, part.traffic)


def _joined(parts: Sequence[Part]) -> Part:
    """Parts as one, added one after another; a single one stays as it is."""
    first, *others = [part for part in parts if part.clients] or parts[:1]
    totals = tensors(first.total)
    for part in others:
        totals = [a + b for a, b in zip(totals, tensors(part.total), strict=True)]
    traffic = sum((part.traffic for part in parts), Traffic())
    return Part(
        [i for part in parts for i in part.clients],
        rebuild(first.total, iter(totals)),
        sum((part.weight for part in others), first.weight),
        [each for part in parts for each in part.states],
        replace(traffic, left_out=tuple(sorted(traffic.left_out))),
    )


def _sized(message: Any) -> tuple[Any, int]:
    """A message and its bytes."""
    return message, nbytes(message)


def _cohort(
    problem: Problem, solver: Solver, party: Party, present: Sequence[int], t: int
) -> Cohort:
    ages = party.staleness or [0] * len(party.clients)
    rows = [[each[j] for j in present] for each in (party.weights, party.steps, ages)]
    weights, steps, staleness = np.array(rows, dtype=np.float64)  # tiny, where torch is slower
    weights = weights / weights.sum()
    return Cohort(
        round=t,
        S=len(present),
        N=problem.N,
        share=sum(party.share[j] for j in present),
        weights=torch.from_numpy(weights),
        staleness=torch.from_numpy(staleness),
        lr=solver.lr,
        K=float(weights @ steps),
    )


def _finite(record: Any) -> bool:
    """Whether a sum over each row is finite, which it is not if a number in it is not."""
    return all(bool(t.sum(1).isfinite().all()) for t in tensors(record))


def _sound(up: Any, client: Any, count: int) -> list[bool]:
    """Whether each row may enter the mean: all numbers in it are finite."""
    sound = torch.ones(count, dtype=torch.bool)
    for t in (*tensors(up), *tensors(client)):
        sound &= t.isfinite().all(1).cpu()
    return sound.tolist()


def _rows(record: Any, rows: list[int]) -> Any:
    return rebuild(record, iter([t[rows] for t in tensors(record)]))


def _stage(name: str, t: int, function: Callable[[], T]) -> T:
    try:
        return function()
    except Exception as error:
        where = f"server, round {t}, stage {name}"
        raise MethodFailure(f"{where}: {type(error).__name__}: {error}") from error


def to_one(party: Party, chosen: int) -> Party:
    """The same party with a single client in it."""
    j = chosen
    return replace(
        party,
        clients=[party.clients[j]],
        weights=[1.0],
        steps=[party.steps[j]],
        share=[party.share[j]],
    )
