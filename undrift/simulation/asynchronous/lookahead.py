"""Answers of clients at work, computed for many of them at once.

What a visit will answer is fixed when it is dispatched: its Down, the client's state and the key of its randomness do not
change before the server has used it.  So the first answer that is needed brings others along, as many as fit a chunk,
also of clients on other models: each row has a Down and a round of its own.  A row has the same bits in any company.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import nsmallest
from typing import Any, TypeAlias

import torch
from torch import Tensor

from undrift.core.observe import Observe
from undrift.core.records import rebuild, stack_records, tensors
from undrift.core.rng import Key
from undrift.core.work import NoCommonRound
from undrift.problems.protocols import DrawsByRound
from undrift.simulation.aggregation import ClientResults
from undrift.simulation.asynchronous.async_state import AsyncState, Visit
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines import engine_of
from undrift.simulation.participants import Participants
from undrift.simulation.transport import RunPlan

AnswerRow: TypeAlias = tuple[Any, list[Tensor]]  # a record, for its form, and one client's tensors of it


class Lookahead:
    """The answers that are not used yet, and the visits that have none."""

    def __init__(self, plan: RunPlan, live: AsyncState, clients: ClientStates):
        self.plan, self.live, self.clients = plan, live, clients
        self.waiting: dict[int, Visit] = {}  # by client
        self.answers: dict[int, tuple[AnswerRow, AnswerRow, AnswerRow]] = {}  # by client: Up, state, what was observed
        # Until a method asks for the round, which clients on different models do not share.
        self.mixed = plan.choice.engine == "batched" and isinstance(plan.problem, DrawsByRound)
        # Which server step uses an answer is not known when it is computed, so every visit is observed, if any is.
        seen = plan.observing
        self._observe = None if seen is None else Observe(seen.drift, seen.window > 0)
        self._rule = lru_cache(10_000)(self._rule_of)
        for visit in [*live.buffer, *(v for _, _, v in live.out)]:
            self.expect(visit)

    def expect(self, visit: Visit) -> None:
        if visit.arrives:
            self.waiting[visit.client] = visit

    def forget(self, clients: Iterable[int]) -> None:
        """What these were to answer is not needed."""
        for client in clients:
            self.waiting.pop(client, None)
            self.answers.pop(client, None)

    @torch.no_grad()
    def prepare(self, needed: Sequence[Visit]) -> None:
        """See to it that these visits have answers."""
        for visit in needed:
            if visit.client not in self.answers:
                self._compute(visit, {v.client for v in needed})

    def _compute(self, visit: Visit, needed: set[int]) -> None:
        """Compute an answer, and those that can be computed together with it: first the needed, then the soonest."""
        rule, choice = self._alike(visit.version), self.plan.choice
        # One after another there is nothing to gain by computing more than is needed.
        most = choice.workers or 1 if choice.one_by_one else choice.chunk
        alike = [v for v in self.waiting.values() if self._alike(v.version) == rule]
        most = max(most, sum(v.client in needed for v in alike))
        soon = nsmallest(most, alike, key=lambda v: (v.client not in needed, v.returns, v.order))
        group = sorted(soon, key=lambda v: v.client)
        try:
            answers = list(self._visit(group))
        except NoCommonRound:
            self.mixed = False
            return self._compute(visit, needed)
        for clients, up, state, _, observed in answers:
            ups, states, seen = (_rows(each, len(clients)) for each in (up, state, observed))
            for row, client in enumerate(clients):
                self.answers[client] = ups[row], states[row], seen[row]
        for v in group:
            del self.waiting[v.client]

    def _alike(self, version: int) -> Hashable:
        """What visits on this model must have in common to be computed together."""
        return self._rule(version) if self.mixed else version

    def _rule_of(self, version: int) -> Hashable:
        (exchange,) = self.plan.exchanges(version + 1)
        return exchange.local, self.plan.solver(version + 1)

    def _visit(self, group: Sequence[Visit]) -> Iterator[ClientResults]:
        plan, version = self.plan, group[0].version
        (exchange,) = plan.exchanges(version + 1)
        of = {v.client: v for v in group}
        shared = all(v.version == version for v in group)

        def downs(clients: Sequence[int]) -> Any:
            return stack_records([self.live.downs[of[i].version] for i in clients])

        def rounds(clients: Sequence[int]) -> list[int] | None:
            return None if shared else [of[i].version + 1 for i in clients]

        ids, ones = [v.client for v in group], [1.0] * len(group)
        participants = Participants(ids, ones, [v.steps for v in group], ones)
        request = plan.request(
            exchange,
            self.live.downs[version],
            self.clients,
            participants,
            Key(plan.seed, version + 1),
            may_sum=False,
            downs=downs if plan.choice.engine == "batched" else None,
            rounds=rounds,
            observe=self._observe,
        )
        return engine_of(plan.choice, version + 1)(request)

    def take(self, clients: Sequence[int]) -> Iterator[ClientResults]:
        """Hand out answers that are there."""
        ups, states, seen = zip(*[self.answers.pop(i) for i in clients], strict=True)
        if _are_alike(ups) and _are_alike(states):
            yield ClientResults(clients, _join(ups), _join(states), observed=_join(seen))
            return
        for i, up, state, each in zip(clients, ups, states, seen, strict=True):
            yield ClientResults([i], _join([up]), _join([state]), observed=_join([each]))


def _rows(record: Any, count: int) -> list[AnswerRow]:
    """Each client's part of an answer; all of it where it does not have a row per client, which aggregation reports."""
    whole = tensors(record)
    if not whole or any(t.dim() == 0 or len(t) != count for t in whole):
        return [(record, whole)] * count
    columns = [t.split(1) for t in whole]
    return [(record, [column[row] for column in columns]) for row in range(count)]


def _are_alike(rows: Sequence[AnswerRow]) -> bool:
    """Whether rows are of one form, so that they can be joined."""
    if len(rows) == 1:
        return True
    return len({(type(form), *((t.shape, t.dtype) for t in row)) for form, row in rows}) == 1


def _join(rows: Sequence[AnswerRow]) -> Any:
    """Rows as one record."""
    if len(rows) == 1:
        return rebuild(rows[0][0], iter(rows[0][1]))
    columns = [torch.cat(column) for column in zip(*(row for _, row in rows), strict=True)]
    return rebuild(rows[0][0], iter(columns))
