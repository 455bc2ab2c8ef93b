"""Exchanges of many runs at once: server records `[R, D]`, visits of all clients of all runs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from undrift.compiler.verify import Noise
from undrift.core.algorithm import Algorithm, Cohort, Exchange, exchanges_of
from undrift.core.batched_scalar import NotBatchable, at_rows, merge
from undrift.core.observe import LocalPath, Observe, Observed
from undrift.core.records import fits, map_tensors, nbytes, stack_records, tensors
from undrift.core.rng import Key
from undrift.core.work import Solver, Work
from undrift.local import Local
from undrift.simulation.aggregation import LocalSums, Reply, Traffic
from undrift.simulation.batched_runs.problem import StackedProblem, Visitor
from undrift.simulation.batched_runs.rows import Means, divide, not_finite, sum_rows
from undrift.simulation.client_states import ClientStates, StagedStates
from undrift.simulation.engines.compiled import Programs
from undrift.simulation.engines.row_check import CHECKED_ROUNDS, DisturbedWork, compare_with_alone
from undrift.simulation.participants import Participants
from undrift.simulation.transport import RunPlan, Transport, everyone

# in bytes, of a vector of all rows that are computed at once: a few of them fit into a processor's cache
STACKED_CHUNK_BYTES = 2**23


class NonFiniteRuns(Exception):
    """Runs in which something is not finite."""

    def __init__(self, runs: list[int]):
        super().__init__(runs)
        self.runs = runs


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows that are computed at once: of some seeds, some clients of the cohort, all runs."""

    seeds: slice
    clients: slice
    runs: Tensor  # the run of each row
    algorithm: Algorithm  # with its numbers row by row


@dataclass(frozen=True)
class KnownCohort:
    """What the servers know of their cohorts, for as long as it stays the same."""

    of: Any  # weights, steps and shares of clients, and the solver
    weights: Tensor
    cohorts: list[Cohort]
    merged: Any


class BatchedTransport(Transport):
    """All clients of all runs, in this process.  `left` are the runs that are not in the batch any more."""

    def __init__(
        self,
        plan: RunPlan,
        plans: Sequence[RunPlan],
        locals: Sequence[Local],
        problem: StackedProblem,
        clients: Sequence[ClientStates],
        left: Collection[int],
    ):
        self.plan, self.plans, self.locals = plan, plans, locals
        self.problem, self.clients, self.left = problem, clients, left
        self.staged = [StagedStates(each) for each in clients]
        self.width = problem.width
        self.number = 0  # of the exchange in its round
        self.cohorts: list[Cohort] = []  # of each run, in the last exchange
        self.layouts: dict[int, list[Chunk]] = {}
        # what was merged last, and of what
        self.solvers: tuple[int, list[Solver], Any] = (-1, [], None)
        self.solver_rows: dict[Chunk, Any] = {}
        self.known: KnownCohort | None = None
        self.programs = Programs()

    def cohort(self, t: int) -> Any:
        """Those of a round, one for each seed."""
        return tuple(plan.draw(t) for plan in self.plans)

    @torch.no_grad()
    def exchange(self, exchange: Exchange, server: Any, draw: Any, key: Key) -> Reply:
        t, self.number = key.round, key.exchange
        draws = draw if isinstance(draw, tuple) else [draw] * len(self.plans)  # nobody yet, in the initialisation round
        each = [
            plan.participants(exchange, own, replace(key, seed=plan.seed))
            for plan, own in zip(self.plans, draws, strict=True)
        ]
        sizes = {len(participants.clients) for participants in each}
        if len(sizes) > 1 or not all(p.have_weight for p in each):
            raise NotBatchable("cohorts differ in size from seed to seed")
        S = sizes.pop()
        down = exchange.send(server)
        known = self._known(each, t)
        observe = self.plan.observe(exchange, t)
        mean, kept, up_bytes, local = self._visit_all(down, each, key, known.weights, observe)
        self._stage(kept, each)
        runs = len(self.locals)
        traffic = Traffic(nbytes(down) // runs * S, up_bytes // runs)
        self.cohorts = [replace(cohort, round=t) for cohort in known.cohorts]
        return Reply(mean, replace(known.merged, round=t), traffic, local=local)

    @torch.no_grad()
    def of_everyone(self, exchange: Exchange, server: Any, key: Key) -> Tensor | None:
        """The mean pseudo-gradients of all clients, a row for each run."""
        self.number = key.exchange
        each = [everyone(plan, exchange, replace(key, seed=plan.seed)) for plan in self.plans]
        weights = torch.tensor([p.share for p in each], dtype=torch.float64)
        weights = weights / weights.sum(1, keepdim=True)
        self._solver(key.round)
        return self._visit_all(exchange.send(server), each, key, weights, Observe(delta=True))[3].delta

    def _visit_all(
        self, down: Any, each: Sequence[Participants], key: Key, weights: Tensor, observe: Observe | None
    ) -> tuple[Any, list[tuple[Chunk, Any]], int, LocalSums]:
        """Visit these clients of every seed: the mean of what they send, new states, bytes, what was seen of their loops."""
        states = stack_records([c.gather(p.clients) for c, p in zip(self.clients, each, strict=True)])
        means, kept, up_bytes = Means(len(self.clients), self.width), [], 0
        local = LocalSums()
        for chunk in self._chunks(weights.shape[1]):
            mine = weights[chunk.seeds, chunk.clients]
            up, client, seen = self._visit(chunk, down, states, each, key, mine, observe)
            means.add(up, chunk.seeds)
            kept.append((chunk, client))
            up_bytes += nbytes(up) * mine.shape[1]
            if seen is not None:
                local += self._sums(seen, chunk, mine)
        mean = means.total()
        if len(kept) > 1:  # each part is finite, but their sum may be too large
            self.check_finite(mean)
        watched = isinstance(local.drift, Tensor)  # an exchange without local steps has no drift to take the mean of
        return mean, kept, up_bytes, replace(local, clients=weights.shape[1] if watched else 0)

    def _sums(self, seen: Observed, chunk: Chunk, weights: Tensor) -> LocalSums:
        """What was seen of a chunk, added up over clients: a row for each run."""

        def of_runs(rows: Tensor, weights: Tensor) -> Tensor:
            found = rows.new_zeros(len(self.clients), self.width, rows.shape[1])
            found[chunk.seeds] = sum_rows(rows, weights).view_as(found[chunk.seeds])
            return found.flatten(0, 1)

        drift = 0.0 if seen.drift is None else of_runs(seen.drift, torch.ones_like(weights))[:, 0]
        return LocalSums(drift, delta=None if seen.delta is None else of_runs(seen.delta, weights))

    def _visit(
        self,
        chunk: Chunk,
        down: Any,
        states: Any,
        participants: Sequence[Participants],
        key: Key,
        weights: Tensor,
        observe: Observe | None,
    ) -> tuple[Any, Any, Observed | None]:
        """One visit of all rows of a chunk: what they send, added up over clients, their new states, what was observed."""
        mine = map_tensors(lambda x: x[chunk.seeds, chunk.clients].flatten(0, 2), states)
        first = key.round <= CHECKED_ROUNDS and chunk is self._chunks(len(participants[0].clients))[0]
        work = self._work(chunk, participants, key, observe)
        if self.plan.choice.compiles(max(key.round, 1)):
            if first:
                rows = self._visit_rows(chunk, down, mine, self._work(chunk, participants, key))
                self._check_row(chunk, rows, down, mine, participants, key)
            runs = slice(chunk.seeds.start * self.width, chunk.seeds.stop * self.width)
            sent = map_tensors(lambda x: x[runs], down)
            found = self.programs.visit(chunk.algorithm, sent, mine, work, weights)
            if found is not None:
                up, client, totals = found
                self._check_state(client, key.round)
                self.part_with(runs.start + r for r in not_finite(totals))
                return up, client, work.observed(len(chunk.runs))
        up, client = self._visit_rows(chunk, down, mine, work)
        if not fits(up, client, len(chunk.runs), self.problem.x0):
            raise NotBatchable("a client's answer has another shape or dtype than the model")
        self._check_state(client, key.round)
        if first:
            self._check_row(chunk, (up, client), down, mine, participants, key)
        for x in tensors(client):
            self.part_with(int(chunk.runs[row]) for row in not_finite(x.sum(1)))
        up = map_tensors(lambda x: sum_rows(x, weights), up)
        self.check_finite(up, chunk.seeds.start * self.width)
        return up, client, work.observed(len(chunk.runs))

    def _visit_rows(self, chunk: Chunk, down: Any, states: Any, work: Work) -> tuple[Any, Any]:
        """The same uncompiled, with a row for each client of each run."""
        local = exchanges_of(chunk.algorithm, work.key.round)[work.key.exchange].local
        return local(map_tensors(lambda x: x[chunk.runs], down), states, work)

    def _check_row(
        self, chunk: Chunk, rows: Any, down: Any, states: Any, participants: Sequence[Participants], key: Key
    ) -> None:
        """Raise NotBatchable unless a client of a run, alone, computes its row; a run by itself then says what is wrong."""
        s = chunk.seeds.stop - 1
        plan, own = self.plans[s], participants[s]
        clients, steps = own.clients[chunk.clients], own.steps[chunk.clients]
        exchange = plan.exchanges(key.round)[key.exchange]
        for place in {0, len(clients) - 1}:
            row = len(chunk.runs) - (len(clients) - place) * self.width  # of the first run of the seed

            def alone(disturb: Noise, row: int = row, place: int = place) -> tuple[Any, Any]:
                who = [clients[place]], [steps[place]], replace(key, seed=plan.seed)
                work = DisturbedWork(Work(plan.problem, plan.solver(key.round), *who, single=True), disturb)
                sent = map_tensors(lambda x: disturb(x[s * self.width]), down)
                return exchange.local(sent, map_tensors(lambda x: disturb(x[row]), states), work)

            if compare_with_alone(map_tensors(lambda x: x[row], rows), alone):  # noqa: B023 (used at once)
                raise NotBatchable("the method's `local` does not treat the rows of a cohort apart")

    def _work(
        self, chunk: Chunk, participants: Sequence[Participants], key: Key, observe: Observe | None = None
    ) -> Work:
        visitors: list[Visitor] = []
        steps: list[int] = []
        for s in range(chunk.seeds.start, chunk.seeds.stop):
            own = participants[s]
            for i, K in zip(own.clients[chunk.clients], own.steps[chunk.clients], strict=True):
                visitors += [(s, i)] * self.width
                steps += [K] * self.width
        solver = self._solver_of(chunk, key.round)
        problem, rows = cast(Any, self.problem), cast(Any, visitors)
        path = None if observe is None else LocalPath(observe, steps)
        return Work(problem, solver, rows, steps, key, single=False, path=path)

    def _check_state(self, client: Any, t: int) -> None:
        self.clients[0].check(client, f"round {t}")

    def _stage(self, kept: Sequence[tuple[Chunk, Any]], participants: Sequence[Participants]) -> None:
        new: list[Any] = [[] for _ in participants]
        for chunk, client in kept:
            for n, s in enumerate(range(chunk.seeds.start, chunk.seeds.stop)):
                who = participants[s].clients[chunk.clients]
                shape = chunk.seeds.stop - chunk.seeds.start, len(who), self.width
                mine = map_tensors(lambda x: x.view(*shape, -1)[n], client)  # noqa: B023
                new[s].append((who, mine))
        for staged, each in zip(self.staged, new, strict=True):
            staged.stage(each)

    # what makes runs leave the batch

    def part_with(self, runs: Iterable[int]) -> None:
        """Raise if these runs, in which something is not finite, are still in the batch."""
        nonfinite = sorted({*runs} - {*self.left})
        if nonfinite:
            raise NonFiniteRuns(nonfinite)

    def check_finite(self, record: Any, first: int = 0) -> None:
        """Of a record with a row for each run, from the first of them on."""
        for x in tensors(record):
            self.part_with(first + r for r in not_finite(x.sum(1)))

    # what stays the same from round to round

    def _known(self, participants: Sequence[Participants], t: int) -> KnownCohort:
        """The weights of clients, `[seeds, clients]`, and what servers know of their cohorts: mostly as in the last round."""
        solver = self._solver(t)
        of = [(p.weights, p.steps, p.share) for p in participants], solver
        if self.known is None or self.known.of != of:
            weights = torch.tensor([p.weights for p in participants], dtype=torch.float64)
            weights = weights / weights.sum(1, keepdim=True)
            cohorts = self._cohorts(participants, weights, t)
            self.known = KnownCohort(of, weights, cohorts, merge(cohorts))
        return self.known

    def _cohorts(self, participants: Sequence[Participants], weights: Tensor, t: int) -> list[Cohort]:
        """What the server of each run knows of its cohort."""
        steps = torch.tensor([p.steps for p in participants], dtype=torch.float64)
        K, shares = (weights * steps).sum(1).tolist(), [sum(p.share) for p in participants]
        each, ages = weights.unbind(), torch.zeros_like(weights[0])
        if bool((weights == weights[0]).all()):
            each = each[:1] * len(participants)
        N = self.plans[0].problem.N
        return [
            Cohort(t, len(ages), N, shares[s], each[s], ages, solver.lr, K[s], steps=steps[s])
            for r, solver in enumerate(self.solvers[1])
            for s in [r // self.width]
        ]

    def _solver(self, t: int) -> Any:
        """The local solver of round t, with batched scalars for what differs."""
        last, each, solver = self.solvers
        if t != last:
            new = [local.solver(t) for local in self.locals]
            if new != each:
                solver, self.solver_rows = merge(new), {}
            self.solvers = t, new, solver
        return self.solvers[2]

    def _solver_of(self, chunk: Chunk, t: int) -> Any:
        """The same row by row."""
        solver = self._solver(t)
        if chunk not in self.solver_rows:
            self.solver_rows[chunk] = at_rows(solver, chunk.runs)
        return self.solver_rows[chunk]

    def _chunks(self, S: int) -> list[Chunk]:
        """How the rows of a cohort of S clients are divided."""
        if S not in self.layouts:
            row = self.problem.x0.numel() * self.problem.x0.element_size()
            most = max(1, STACKED_CHUNK_BYTES // (row * self.width))  # visitors at a time
            seeds, clients = divide(len(self.clients), most // S), divide(S, most)
            runs = torch.arange(len(self.locals)).view(len(self.clients), 1, self.width)
            self.layouts[S] = [
                Chunk(a, b, rows, at_rows(self.plan.algorithm, rows))
                for a in seeds
                for b in clients
                for rows in [runs[a].expand(-1, b.stop - b.start, -1).flatten()]
            ]
        return self.layouts[S]

    # states

    def apply(self) -> None:
        for staged in self.staged:
            staged.apply()

    def commit(self, t: int) -> None:
        for staged in self.staged:
            staged.commit()
            staged.clients.round = t

    def rollback(self) -> None:
        for staged in self.staged:
            staged.rollback()
