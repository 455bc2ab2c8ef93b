"""Answers of clients that are under way, computed for all of those on one model at once.

What a visit will answer is fixed when it is dispatched: its Down, the client's state and the key of its randomness do not
change before the server has used it.  So the first answer that is needed of a model brings those of the others along,
as many as fit a chunk; the batched engine gives the same bits in any company.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from undrift.core import exchanges_of, map_tensors, rebuild, tensors
from undrift.engines.sequential import sequential
from undrift.events.flight import InFlight, Visit
from undrift.keyed import Key
from undrift.run import Plan
from undrift.states import ClientStates
from undrift.work import Work


class Ahead:
    """The answers that are not used yet, and the visits that have none."""

    def __init__(self, plan: Plan, live: InFlight, clients: ClientStates):
        self.plan, self.live, self.clients = plan, live, clients
        # one after another there is nothing to gain by computing early
        self.together = 1 if plan.engine is sequential else plan.chunk
        self.waiting: dict[int, dict[int, Visit]] = {}  # by version and client
        self.answers: dict[int, tuple[Any, Any]] = {}  # by client: a row of Ups, a row of states
        for visit in [*live.buffer, *(v for _, _, v in live.out)]:
            self.expect(visit)

    def expect(self, visit: Visit) -> None:
        if visit.arrives:
            self.waiting.setdefault(visit.version, {})[visit.client] = visit

    @torch.no_grad()
    def prepare(self, needed: Sequence[Visit]) -> None:
        """See to it that these visits have answers."""
        for visit in needed:
            if visit.client not in self.answers:
                self._compute(visit.version, [v for v in needed if v.version == visit.version])

    def _compute(self, version: int, needed: Sequence[Visit]) -> None:
        plan, waiting = self.plan, self.waiting[version]
        first = {v.client for v in needed}
        soon = sorted(waiting.values(), key=lambda v: (v.client not in first, v.returns, v.order))
        group = sorted(soon[: max(self.together, len(first))], key=lambda v: v.client)
        steps = {v.client: v.steps for v in group}
        (exchange,) = exchanges_of(plan.algorithm, version + 1)
        key, solver = Key(plan.seed, version + 1), plan.local.solver(version + 1)

        def lend(clients: Sequence[int], single: bool) -> Work:
            return Work(plan.problem, solver, clients, [steps[i] for i in clients], key, single)

        ids, down = [v.client for v in group], self.live.downs[version]
        for some, up, state in plan.engine(
            exchange.local, down, self.clients, ids, lend, plan.chunk
        ):
            for row, client in enumerate(some):
                self.answers[client] = _row(up, row, len(some)), _row(state, row, len(some))
        for client in ids:
            del waiting[client]
        if not waiting:
            del self.waiting[version]

    def replayed(self, discount: dict[int, float]) -> Any:
        """An engine that hands out the answers that are there, each multiplied with its client's discount."""

        def replay(
            local: Any, down: Any, states: Any, clients: Sequence[int], lend: Any, chunk: int
        ) -> Iterator[tuple[Sequence[int], Any, Any]]:
            rows = [self.answers.pop(i) for i in clients]
            rows = [(_scaled(up, discount.get(i, 1.0)), s) for i, (up, s) in zip(clients, rows, strict=True)]
            joined = _joined([up for up, _ in rows]), _joined([s for _, s in rows])
            if None not in joined:
                yield clients, joined[0][0], joined[1][0]  # pyright: ignore[reportOptionalSubscript]
                return
            for i, (up, state) in zip(clients, rows, strict=True):
                yield [i], up, state

        return replay


def _row(record: Any, row: int, count: int) -> Any:
    """One client's part of an answer; all of it where it has not a row a client, which is then found out."""
    if any(t.dim() == 0 or len(t) != count for t in tensors(record)):
        return record
    return map_tensors(lambda t: t[row : row + 1], record)


def _scaled(up: Any, factor: float) -> Any:
    return up if factor == 1 else map_tensors(lambda t: factor * t, up)


def _joined(rows: list[Any]) -> tuple[Any] | None:
    """The rows as one record (in a tuple, for a record may be None); None if they are of different form."""
    parts = [tensors(row) for row in rows]
    forms = {(type(row), tuple((t.shape, t.dtype) for t in part)) for row, part in zip(rows, parts, strict=True)}
    if len(forms) > 1:
        return None
    columns = [torch.cat([part[f] for part in parts]) for f in range(len(parts[0]))]
    return (rebuild(rows[0], iter(columns)),)
