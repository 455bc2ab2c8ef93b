"""Answers of clients that are under way, computed for all of those on one model at once.

What a visit will answer is fixed when it is dispatched: its Down, the client's state and the key of its randomness do not
change before the server has used it.  So the first answer that is needed of a model brings those of the others along,
as many as fit a chunk; the batched engine gives the same bits in any company.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from undrift.core import exchanges_of, rebuild, tensors
from undrift.events.clock import visitor
from undrift.events.flight import InFlight, Visit
from undrift.keyed import Key
from undrift.site import Plan
from undrift.states import ClientStates
from undrift.work import Work

Row: TypeAlias = tuple[Any, list[Tensor]]  # a record, for its form, and one client's tensors of it


class Ahead:
    """The answers that are not used yet, and the visits that have none."""

    def __init__(self, plan: Plan, live: InFlight, clients: ClientStates):
        self.plan, self.live, self.clients = plan, live, clients
        self.waiting: dict[int, dict[int, Visit]] = {}  # by version and client
        self.answers: dict[int, tuple[Row, Row]] = {}  # by client: Up and state
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
        engine, chunk = visitor(plan, version + 1)
        group = sorted(soon[: max(chunk, len(first))], key=lambda v: v.client)
        steps = {v.client: v.steps for v in group}
        (exchange,) = exchanges_of(plan.algorithm, version + 1)
        key, solver = Key(plan.seed, version + 1), plan.local.solver(version + 1)

        def lend(clients: Sequence[int], single: bool) -> Work:
            return Work(plan.problem, solver, clients, [steps[i] for i in clients], key, single)

        ids, down = [v.client for v in group], self.live.downs[version]
        answers = engine(exchange.local, down, self.clients, ids, lend, chunk)
        for some, up, state in answers:
            ups, states = _rows(up, len(some)), _rows(state, len(some))
            for row, client in enumerate(some):
                self.answers[client] = ups[row], states[row]
        for client in ids:
            del waiting[client]
        if not waiting:
            del self.waiting[version]

    def replayed(self, discount: dict[int, float]) -> Any:
        """An engine that hands out the answers that are there, each multiplied with its client's discount."""

        def replay(
            local: Any, down: Any, states: Any, clients: Sequence[int], lend: Any, chunk: int
        ) -> Iterator[tuple[Sequence[int], Any, Any]]:
            found = [self.answers.pop(i) for i in clients]
            ups = [
                _scaled(up, discount.get(i, 1.0)) for i, (up, _) in zip(clients, found, strict=True)
            ]
            states = [state for _, state in found]
            if _alike(ups) and _alike(states):
                yield clients, _joined(ups), _joined(states)
                return
            for i, up, state in zip(clients, ups, states, strict=True):
                yield [i], _joined([up]), _joined([state])

        return replay


def _rows(record: Any, count: int) -> list[Row]:
    """Each client's part of an answer; all of it where it has not a row a client, which is then found out."""
    whole = tensors(record)
    if any(t.dim() == 0 or len(t) != count for t in whole):
        return [(record, whole)] * count
    return [(record, [t[row : row + 1] for t in whole]) for row in range(count)]


def _scaled(row: Row, factor: float) -> Row:
    return row if factor == 1 else (row[0], [factor * t for t in row[1]])


def _alike(rows: list[Row]) -> bool:
    """Whether rows are of one form, so that they can be joined."""
    return len({(type(form), *((t.shape, t.dtype) for t in row)) for form, row in rows}) == 1


def _joined(rows: list[Row]) -> Any:
    """Rows as one record."""
    columns = [torch.cat(column) for column in zip(*(row for _, row in rows), strict=True)]
    return rebuild(rows[0][0], iter(columns))
