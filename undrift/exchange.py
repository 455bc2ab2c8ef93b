"""Carrying out one exchange: send, visit, check, average, update; bytes booked where they cross the wire."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from undrift.core import Cohort, Exchange, nbytes, rebuild, tensors
from undrift.engines import Engine
from undrift.errors import Diverged, MethodFailure
from undrift.keyed import Key
from undrift.problems import Problem
from undrift.states import ClientStates
from undrift.work import Solver, Work

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


class RunningMean:
    """The weighted mean of records, added row by row in a fixed order: the same bits for any chunking."""

    def __init__(self) -> None:
        self.sums: list[Tensor] | None = None
        self.weight = 0.0
        self.shape: Any = None

    def add(self, rows: Any, row: int, weight: float) -> None:
        columns = tensors(rows)
        if self.sums is None:
            self.shape = rows
            self.sums = [torch.zeros_like(t[0]) for t in columns]
        for total, t in zip(self.sums, columns, strict=True):
            total.add_(t[row], alpha=weight)
        self.weight += weight

    def mean(self) -> Any:
        assert self.sums is not None
        return rebuild(self.shape, iter([total / self.weight for total in self.sums]))


@dataclass(frozen=True)
class Outcome:
    """What an exchange leads to: nothing is written yet."""

    server: Any
    states: list[tuple[Sequence[int], Any]]  # the new states of clients, chunk by chunk
    traffic: Traffic


@torch.no_grad()
def carry_out(
    exchange: Exchange,
    server: Any,
    states: ClientStates,
    party: Party,
    setting: Setting,
    key: Key,
) -> Outcome:
    """One exchange: send, visit, check, average, update."""
    problem, t = setting.problem, key.round
    steps = dict(zip(party.clients, party.steps, strict=True))
    position = {i: j for j, i in enumerate(party.clients)}

    def lend(clients: Sequence[int], single: bool) -> Work:
        return Work(problem, setting.solver, clients, [steps[i] for i in clients], key, single)

    down, size = _stage("send", t, lambda: _sized(exchange.send(server)))
    mean, traffic = RunningMean(), Traffic(size * len(party.clients))
    present: list[int] = []
    new_states: list[tuple[Sequence[int], Any]] = []
    results = setting.engine(exchange.local, down, states, party.clients, lend, setting.chunk)
    for clients, up, client in results:
        states.check(client, f"round {t}")
        sound = _sound(up, client, len(clients), problem.x0)
        good = [row for row, ok in enumerate(sound) if ok]
        for row in good:
            mean.add(up, row, party.weights[position[clients[row]]])
        kept = client if len(good) == len(clients) else _rows(client, good)
        new_states.append(([clients[row] for row in good], kept))
        lost = tuple(i for i, ok in zip(clients, sound, strict=True) if not ok)
        for i in lost:
            log.warning(
                "round %d: client %d returned NaN, Inf, a wrong shape or dtype; left out", t, i
            )
        traffic += Traffic(bytes_up=nbytes(up), left_out=lost)
        present += [clients[row] for row in good]
    if not present:
        raise Diverged(
            f"round {t}: no client returned a finite result of the right shape; "
            "if it grew from round to round, a smaller lr may help",
            t,
            None,
        )
    cohort = _cohort(problem, setting, party, [position[i] for i in present], t)
    updated = _stage("update", t, lambda: exchange.update(server, mean.mean(), cohort))
    if not all(bool(v.isfinite().all()) for v in tensors(updated)):
        raise Diverged(
            f"round {t}: the server's state would become NaN or Inf; a smaller lr may help", t, None
        )
    return Outcome(updated, new_states, traffic)


def _sized(message: Any) -> tuple[Any, int]:
    """A message and its bytes."""
    return message, nbytes(message)


def _cohort(
    problem: Problem, setting: Setting, party: Party, present: Sequence[int], t: int
) -> Cohort:
    weights = torch.tensor([party.weights[j] for j in present], dtype=torch.float64)
    weights = weights / weights.sum()
    steps = torch.tensor([party.steps[j] for j in present], dtype=torch.float64)
    return Cohort(
        round=t,
        S=len(present),
        N=problem.N,
        share=sum(party.share[j] for j in present),
        weights=weights,
        staleness=_staleness(party, present),
        lr=setting.solver.lr,
        K=float(weights @ steps),
    )


def _staleness(party: Party, present: Sequence[int]) -> Tensor:
    ages = [0 if party.staleness is None else party.staleness[j] for j in present]
    return torch.tensor(ages, dtype=torch.float64)


def _sound(up: Any, client: Any, count: int, x: Tensor) -> list[bool]:
    """Whether each row may enter the mean: vectors like the model, or single numbers, all finite."""
    sound = torch.ones(count, dtype=torch.bool)
    for t in [*tensors(up), *tensors(client)]:
        if (
            t.dim() != 2
            or len(t) != count
            or t.shape[1] not in (x.numel(), 1)
            or t.dtype != x.dtype
        ):
            return [False] * count
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
