"""Answers of clients that are under way, computed for many of them at once.

What a visit will answer is fixed when it is dispatched: its Down, the client's state and the key of its randomness do not
change before the server has used it.  So the first answer that is needed brings others along, as many as fit a chunk,
also of clients on other models: each row has a Down and a round of its own.  A row has the same bits in any company.
"""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from heapq import nsmallest
from typing import Any, TypeAlias

import torch
from torch import Tensor

from undrift.core.algorithm import exchanges_of
from undrift.core.records import rebuild, tensors
from undrift.core.rng import Key
from undrift.core.work import NoCommonRound, Work
from undrift.simulation.asynchronous.async_state import InFlight, Visit
from undrift.simulation.asynchronous.clock import visitor
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines import Results
from undrift.simulation.engines.batched import in_chunks
from undrift.simulation.transport import Plan

Row: TypeAlias = tuple[Any, list[Tensor]]  # a record, for its form, and one client's tensors of it


class Ahead:
    """The answers that are not used yet, and the visits that have none."""

    def __init__(self, plan: Plan, live: InFlight, clients: ClientStates):
        self.plan, self.live, self.clients = plan, live, clients
        self.waiting: dict[int, Visit] = {}  # by client
        self.answers: dict[int, tuple[Row, Row]] = {}  # by client: Up and state
        # until a method asks for the round, which clients on different models do not share
        self.mixed = plan.choice.engine == "batched" and hasattr(plan.problem, "draw_each")
        self._rule = lru_cache(10_000)(self._rule_of)
        for visit in [*live.buffer, *(v for _, _, v in live.out)]:
            self.expect(visit)

    def expect(self, visit: Visit) -> None:
        if visit.arrives:
            self.waiting[visit.client] = visit

    @torch.no_grad()
    def prepare(self, needed: Sequence[Visit]) -> None:
        """See to it that these visits have answers."""
        for visit in needed:
            if visit.client not in self.answers:
                self._compute(visit, {v.client for v in needed})

    def _compute(self, visit: Visit, needed: set[int]) -> None:
        """Compute an answer, and those that can be computed together with it: first the needed, then the soonest."""
        rule, most = self._alike(visit.version), visitor(self.plan, visit.version + 1)[1]
        alike = [v for v in self.waiting.values() if self._alike(v.version) == rule]
        most = max(most, sum(v.client in needed for v in alike))
        soon = nsmallest(most, alike, key=lambda v: (v.client not in needed, v.returns, v.order))
        group = sorted(soon, key=lambda v: v.client)
        try:
            answers = list(self._visited(group))
        except NoCommonRound:
            self.mixed = False
            return self._compute(visit, needed)
        for some, up, state in answers:
            ups, states = _rows(up, len(some)), _rows(state, len(some))
            for row, client in enumerate(some):
                self.answers[client] = ups[row], states[row]
        for v in group:
            del self.waiting[v.client]

    def _alike(self, version: int) -> Hashable:
        """What visits on this model must have in common to be computed together."""
        return self._rule(version) if self.mixed else version

    def _rule_of(self, version: int) -> Hashable:
        (exchange,) = exchanges_of(self.plan.algorithm, version + 1)
        return exchange.local, self.plan.local.solver(version + 1)

    def _visited(self, group: Sequence[Visit]) -> Results:
        plan, ids = self.plan, [v.client for v in group]
        of, version = {v.client: v for v in group}, group[0].version
        (exchange,) = exchanges_of(plan.algorithm, version + 1)
        solver, key = plan.local.solver(version + 1), Key(plan.seed, version + 1)
        shared = all(v.version == version for v in group)

        def lend(clients: Sequence[int], single: bool) -> Work:
            steps = [of[i].steps for i in clients]
            rounds = None if shared else [of[i].version + 1 for i in clients]
            return Work(plan.problem, solver, clients, steps, key, single, rounds)

        def downs(clients: Sequence[int]) -> Any:
            each = [self.live.downs[of[i].version] for i in clients]
            columns = zip(*map(tensors, each), strict=True)
            return rebuild(each[0], iter([torch.stack(column) for column in columns]))

        engine, chunk = visitor(plan, version + 1)
        if plan.choice.engine != "batched":
            down = self.live.downs[version]
            return engine(exchange.local, down, self.clients, ids, lend, chunk)
        return in_chunks(exchange.local, downs, self.clients, ids, lend, chunk)

    def taken(self, clients: Sequence[int], discount: dict[int, float]) -> Results:
        """Hand out answers that are there, each multiplied with its client's discount."""
        found = [self.answers.pop(i) for i in clients]
        ups = [_scaled(up, discount.get(i, 1.0)) for i, (up, _) in zip(clients, found, strict=True)]
        states = [state for _, state in found]
        if _alike(ups) and _alike(states):
            yield clients, _joined(ups), _joined(states)
            return
        for i, up, state in zip(clients, ups, states, strict=True):
            yield [i], _joined([up]), _joined([state])


def _rows(record: Any, count: int) -> list[Row]:
    """Each client's part of an answer; all of it where it has not a row a client, which is then found out."""
    whole = tensors(record)
    if not whole or any(t.dim() == 0 or len(t) != count for t in whole):
        return [(record, whole)] * count
    columns = [t.split(1) for t in whole]
    return [(record, [column[row] for column in columns]) for row in range(count)]


def _scaled(row: Row, factor: float) -> Row:
    return row if factor == 1 else (row[0], [factor * t for t in row[1]])


def _alike(rows: list[Row]) -> bool:
    """Whether rows are of one form, so that they can be joined."""
    if len(rows) == 1:
        return True
    return len({(type(form), *((t.shape, t.dtype) for t in row)) for form, row in rows}) == 1


def _joined(rows: list[Row]) -> Any:
    """Rows as one record."""
    if len(rows) == 1:
        return rebuild(rows[0][0], iter(rows[0][1]))
    columns = [torch.cat(column) for column in zip(*(row for _, row in rows), strict=True)]
    return rebuild(rows[0][0], iter(columns))
