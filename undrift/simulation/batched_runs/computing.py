"""Rounds of runs that are one computation."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from undrift.compiler.kernels.dense import own_products
from undrift.compiler.visit import columns_of, with_columns, without
from undrift.core.algorithm import Algorithm, Cohort, Exchange, exchanges_of
from undrift.core.batched_scalar import NotBatchable, at_rows, merge
from undrift.core.records import fits, map_tensors, nbytes, tensors
from undrift.core.rng import Key
from undrift.core.work import Carried, Runner, Solver, Work
from undrift.local.settings import Local
from undrift.simulation.aggregation import Party
from undrift.simulation.batched_runs.problem import Stacked, Visitor
from undrift.simulation.batched_runs.rows import (
    Means,
    added,
    close,
    divided,
    not_finite,
    row_of,
    stacked,
)
from undrift.simulation.batched_runs.trials import Ended, Setting, Trial, check_local
from undrift.simulation.client_states import ClientStates, Pending, half_of_memory
from undrift.simulation.driver import Round, State, _x0, exchanges_in, party_of
from undrift.simulation.engines.choice import (
    Choice,
    cohort_of,
    step_seconds,
    without_compiling_if_untested,
    worth_compiling,
)
from undrift.simulation.engines.compiled import Compiler
from undrift.simulation.engines.memory import keep_freed_memory
from undrift.simulation.transport import Plan

log = logging.getLogger("undrift")

# in bytes, of a vector of all rows that are computed at once: a few of them fit into a processor's cache
CHUNK_BYTES = 2**23


class Unsound(Exception):
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
class Known:
    """What was known of a round's cohorts, for as long as it stays the same."""

    given: Any  # weights, steps and shares of clients, and the solver
    weights: Tensor
    cohort: Any


@dataclass(frozen=True)
class Of:
    """What the clients of one run remember, among those of all runs of its seed."""

    states: ClientStates
    initial: Any
    number: int  # of the run among those of its seed

    def own(self) -> ClientStates:
        """The same in tables of their own."""
        own, who = ClientStates(self.initial), self.states.seen()
        if who:
            own.scatter(who, map_tensors(lambda t: t[:, self.number], self.states.gather(who)))
        own.round = self.states.round
        own.changed()
        return own


def whole(state: State) -> State:
    """The state of a run by itself, which later rounds do not touch."""
    clients: Any = state.clients
    return replace(state, clients=clients.own()) if isinstance(clients, Of) else state.settled()


class Together:
    """Runs that are one computation: run r = s * width + c is the c-th of the s-th seed."""

    def __init__(self, trials: Sequence[Trial], setting: Setting):
        keep_freed_memory()
        self.setting = setting
        self.order, self.width = _ordered(trials)
        runs = [trials[n] for n in self.order]
        self.runs, leaders = runs, runs[:: self.width]
        self.problem = Stacked(
            cast(Any, [run.problem for run in leaders]), [run.seed for run in leaders], self.width
        )
        self.algorithm = merge([run.algorithm for run in runs])
        check_local([run.local for run in runs])
        self.choice = _choice(setting, self.problem, runs[0].local)
        compiled = f"compiled from round {self.choice.since} on"
        how = compiled if self.choice.engine == "compiled" else "batched"
        log.info("engine: %d runs as one computation, %s", len(runs), how)
        for run in runs:  # refuses what cannot run, before the first round
            setting.alone(run, Choice("batched"))
        starts = [_x0(run.problem, run.x0) for run in runs]
        S = cohort_of(runs[0].problem, setting.participation)
        self.careful = Choice("batched", S)  # of runs that leave: not worth compiling for
        self.servers = stacked(
            [run.algorithm.server(x) for run, x in zip(runs, starts, strict=True)]
        )
        self.initial = [run.algorithm.client(x) for run, x in zip(runs, starts, strict=True)]
        budget = half_of_memory() // len(leaders)
        of_seeds = [self.initial[a : a + self.width] for a in range(0, len(runs), self.width)]
        self.clients = [ClientStates(stacked(each), budget) for each in of_seeds]
        self.pending = [Pending(each) for each in self.clients]
        self.plans = [
            Plan(run.algorithm, run.problem, setting.participation, run.local, self.choice, run.seed,
                 float(max(run.problem.weights)))
            for run in leaders
        ]  # fmt: skip
        self.gone: dict[int, Iterator[Ended]] = {}  # runs that go on alone
        self.layouts: dict[int, list[Chunk]] = {}
        # what was merge last, and of what
        self.solvers: tuple[int, list[Solver], Any] = (-1, [], None)
        self.at_rows: dict[Chunk, Any] = {}
        self.known: Known | None = None
        self.compiler = Compiler()

    @property
    def inside(self) -> list[int]:
        """The runs that are still computed together."""
        return [r for r in range(len(self.runs)) if r not in self.gone]

    def play(self) -> Iterator[list[Ended]]:
        for t in range(1, self.setting.rounds + 1):
            found: list[Ended | None] = [None] * len(self.runs)
            while self.inside:
                try:
                    for r, played in self._round(t):
                        found[r] = played
                    break
                except Unsound as unsound:
                    self._leave(unsound.runs, t, self.careful)
                except Exception as error:
                    why = (
                        str(error)
                        if isinstance(error, NotBatchable)
                        else f"{type(error).__name__}: {error}"
                    )
                    log.info("round %d: runs are computed one by one from here: %s", t, why)
                    self._leave(self.inside, t, self.setting.engine)
            for r, playing in self.gone.items():
                found[r] = next(playing)
            by_trial = dict(zip(self.order, found, strict=True))
            yield [cast(Ended, by_trial[n]) for n in range(len(self.runs))]

    def _leave(self, runs: Sequence[int], t: int, engine: str | Choice) -> None:
        """Let runs go on alone with round t."""
        for pending in self.pending:
            pending.undo()
        for r in runs:
            start = whole(self._state(r, t - 1)) if t > 1 else None
            self.gone[r] = self.setting.alone(self.runs[r], engine, start)

    def _state(self, r: int, t: int) -> State:
        s, c = divmod(r, self.width)
        clients: Any = Of(self.clients[s], self.initial[r], c)
        return State(t, row_of(self.servers, r), clients)

    def _round(self, t: int) -> list[tuple[int, Round]]:
        """Round t of all runs; nothing has happened if it raises."""
        began, setting = perf_counter(), self.setting
        draws = [p.participation.draw(p.seed, t, p.problem.weights) for p in self.plans]
        server, down, up, count = self.servers, 0, 0, 0
        for when, number, exchange in exchanges_in(self.algorithm, t):
            for pending in self.pending:
                pending.write()
            pairs = zip(self.plans, draws, strict=True)
            parties = [party_of(plan, exchange, draw, when, number) for plan, draw in pairs]
            sizes = {len(party.clients) for party in parties}
            if len(sizes) > 1 or not all(any(party.weights) for party in parties):
                raise NotBatchable("cohorts differ in size from seed to seed")
            key = Key(0, when, number)
            server, sent, came = self._carry_out(number, exchange, server, parties, key)
            down, up, count = down + sent, up + came, count + 1
        seconds = (perf_counter() - began) / len(self.runs)
        evaluated = setting.evaluated(t)
        with own_products(self.choice.compiles(t)):
            metrics = self.problem.evaluate(server.x) if evaluated else [{}] * len(self.runs)
        for pending in self.pending:
            pending.keep()
            pending.clients.round = t
        self.servers = server
        found = []
        for r in self.inside:
            draw, state = draws[r // self.width], self._state(r, t) if evaluated else None
            r_th = Round(t, draw.clients, metrics[r], down, up, seconds, (), count, state)
            found.append((r, r_th))
        return found

    @torch.no_grad()
    def _carry_out(
        self, number: int, exchange: Exchange, server: Any, parties: Sequence[Party], key: Key
    ) -> tuple[Any, int, int]:
        """One exchange of all runs: the new server, and the bytes down and up of one run."""
        t, S = key.round, len(parties[0].clients)
        down = exchange.send(server)
        weights, cohort = self._known(parties, t)
        states = stacked([c.gather(p.clients) for c, p in zip(self.clients, parties, strict=True)])
        means, kept, came = Means(len(self.clients), self.width), [], 0
        for chunk in self._chunks(S):
            mine = weights[chunk.seeds, chunk.clients]
            up, client = self._visit(number, chunk, down, states, parties, key, mine)
            means.add(up, chunk.seeds)
            kept.append((chunk, client))
            came += nbytes(up) * mine.shape[1]
        mean = means.found()
        if len(kept) > 1:  # each part is finite, but their sum may be too large
            self._check_finite(mean)
        updated = exchange.update(server, mean, cohort)
        self._check_finite(updated)
        if t & (t - 1) == 0:
            self._check_rows(exchange, number, server, mean, self._cohorts(parties, weights, t))
        self._hold(kept, parties)
        R = len(self.runs)
        return updated, nbytes(down) // R * S, came // R

    def _visit(
        self,
        number: int,
        chunk: Chunk,
        down: Any,
        states: Any,
        parties: Sequence[Party],
        key: Key,
        weights: Tensor,
    ) -> tuple[Any, Any]:
        """One visit of all rows of a chunk: what they send, added up over clients, and what they keep."""
        local = exchanges_of(chunk.algorithm, key.round)[number].local
        mine = map_tensors(lambda x: x[chunk.seeds, chunk.clients].flatten(0, 2), states)
        work = self._work(chunk, parties, key)
        if self.choice.compiles(max(key.round, 1)):
            runs = slice(chunk.seeds.start * self.width, chunk.seeds.stop * self.width)
            sent = map_tensors(lambda x: x[runs], down)
            found = self.compiler.visit(local, sent, mine, work, weights)
            if found is not None:
                up, client, totals = found
                self._check_kept(client, key.round)
                self._part_with(runs.start + r for r in not_finite(totals))
                return up, client
        up, client = local(map_tensors(lambda x: x[chunk.runs], down), mine, work)
        if not fits(up, client, len(chunk.runs), self.problem.x0):
            raise NotBatchable("a client's answer has another shape or dtype than the model")
        self._check_kept(client, key.round)
        for x in tensors(client):
            self._part_with(int(chunk.runs[row]) for row in not_finite(x.sum(1)))
        up = map_tensors(lambda x: added(x, weights), up)
        self._check_finite(up, chunk.seeds.start * self.width)
        return up, client

    def _work(self, chunk: Chunk, parties: Sequence[Party], key: Key) -> Work:
        visitors: list[Visitor] = []
        steps: list[int] = []
        for s in range(chunk.seeds.start, chunk.seeds.stop):
            for i, K in zip(
                parties[s].clients[chunk.clients], parties[s].steps[chunk.clients], strict=True
            ):
                visitors += [(s, i)] * self.width
                steps += [K] * self.width
        solver = self._solver_of(chunk, key.round)
        problem, rows = cast(Any, self.problem), cast(Any, visitors)
        work = Work(problem, solver, rows, steps, key, single=False)
        if self.choice.compiles(max(key.round, 1)):
            work.runner = partial(_with_columns, self.compiler.run)
        return work

    def _check_kept(self, client: Any, t: int) -> None:
        self.clients[0].check(client, f"round {t}")

    def _hold(self, kept: Sequence[tuple[Chunk, Any]], parties: Sequence[Party]) -> None:
        """Hold back what clients will remember until the round has happened."""
        new: list[Any] = [[] for _ in parties]
        for chunk, client in kept:
            for n, s in enumerate(range(chunk.seeds.start, chunk.seeds.stop)):
                who = parties[s].clients[chunk.clients]
                shape = chunk.seeds.stop - chunk.seeds.start, len(who), self.width
                mine = map_tensors(lambda x: x.view(*shape, -1)[n], client)  # noqa: B023
                new[s].append((who, mine))
        for pending, each in zip(self.pending, new, strict=True):
            pending.hold(each)

    def _known(self, parties: Sequence[Party], t: int) -> tuple[Tensor, Any]:
        """The weights of clients, `[seeds, clients]`, and what servers know of their cohorts, with columns for what
        differs: mostly the same as in the last round."""
        given = [(party.weights, party.steps, party.share) for party in parties], self._solver(t)
        if self.known is None or self.known.given != given:
            weights = torch.tensor([party.weights for party in parties], dtype=torch.float64)
            weights = weights / weights.sum(1, keepdim=True)
            self.known = Known(given, weights, merge(self._cohorts(parties, weights, t)))
        return self.known.weights, replace(self.known.cohort, round=t)

    def _cohorts(self, parties: Sequence[Party], weights: Tensor, t: int) -> list[Cohort]:
        """What the server of each run knows of its cohort."""
        steps = torch.tensor([party.steps for party in parties], dtype=torch.float64)
        K, shares = (weights * steps).sum(1).tolist(), [sum(party.share) for party in parties]
        each, ages = weights.unbind(), torch.zeros_like(weights[0])
        if bool((weights == weights[0]).all()):
            each = each[:1] * len(parties)
        first = self.runs[0].problem
        return [
            Cohort(t, len(ages), first.N, shares[s], each[s], ages, solver.lr, K[s])
            for r, solver in enumerate(self._solvers(t))
            for s in [r // self.width]
        ]

    # what makes runs go on alone

    def _part_with(self, runs: Iterable[int]) -> None:
        """Raise if these runs, in which something is not finite, are still among those that are computed together."""
        unsound = sorted({*runs} - {*self.gone})
        if unsound:
            raise Unsound(unsound)

    def _check_finite(self, record: Any, first: int = 0) -> None:
        """Of a record with a row for each run, from the first of them on."""
        for x in tensors(record):
            self._part_with(first + r for r in not_finite(x.sum(1)))

    def _check_rows(
        self,
        exchange: Exchange,
        number: int,
        server: Any,
        mean: Any,
        cohorts: Sequence[Cohort],
    ) -> None:
        """Raise NotBatchable unless the server treats every row as it does alone; in float64, where it is plain to see."""
        server, mean = (
            map_tensors(torch.Tensor.double, server),
            map_tensors(torch.Tensor.double, mean),
        )
        together = exchange.send(server), exchange.update(server, mean, merge(cohorts))
        for r in self.inside:
            own = exchanges_of(self.runs[r].algorithm, cohorts[r].round)[number]
            mine = row_of(server, r)
            alone = own.send(mine), own.update(mine, row_of(mean, r), cohorts[r])
            rows = [x[r] for x in tensors(together)]
            if not all(close(a, b) for a, b in zip(rows, tensors(alone), strict=True)):
                raise NotBatchable("the method's server does not treat the rows of a vector apart")

    # what stays the same from round to round

    def _solvers(self, t: int) -> list[Solver]:
        return [run.local.solver(t) for run in self.runs]

    def _solver(self, t: int) -> Any:
        """The local solver of round t, with columns for what differs."""
        last, each, solver = self.solvers
        if t != last:
            new = self._solvers(t)
            if new != each:
                solver, self.at_rows = merge(new), {}
            self.solvers = t, new, solver
        return self.solvers[2]

    def _solver_of(self, chunk: Chunk, t: int) -> Any:
        """The same row by row."""
        solver = self._solver(t)
        if chunk not in self.at_rows:
            self.at_rows[chunk] = at_rows(solver, chunk.runs)
        return self.at_rows[chunk]

    def _chunks(self, S: int) -> list[Chunk]:
        """How the rows of a cohort of S clients are divided."""
        if S not in self.layouts:
            row = self.problem.x0.numel() * self.problem.x0.element_size()
            most = max(1, CHUNK_BYTES // (row * self.width))  # visitors at a time
            seeds, clients = divided(len(self.clients), most // S), divided(S, most)
            runs = torch.arange(len(self.runs)).view(len(self.clients), 1, self.width)
            self.layouts[S] = [
                Chunk(a, b, rows, at_rows(self.algorithm, rows))
                for a in seeds
                for b in clients
                for rows in [runs[a].expand(-1, b.stop - b.start, -1).flatten()]
            ]
        return self.layouts[S]


def _with_columns(
    run: Runner, work: Work, step: Callable[..., Any], start: Carried, steps: Sequence[int]
) -> Carried:
    """Make compiled steps whose solver may have columns."""
    whole, columns = work.solver, columns_of(work)
    bare = without(work, columns)
    work.solver, work.lr = bare.solver, bare.lr
    try:
        return run(work, with_columns(work, step, columns), start, steps)
    finally:
        work.solver, work.lr = whole, whole.lr


def _choice(setting: Setting, problem: Stacked, local: Local) -> Choice:
    """Whether steps are compiled: as asked for, or if the runs are long enough to repay it."""
    return without_compiling_if_untested(_asked(setting, problem, local))


def _asked(setting: Setting, problem: Stacked, local: Local) -> Choice:
    engine = setting.engine
    if isinstance(engine, Choice) and engine.engine in ("batched", "compiled"):
        return engine
    if engine in ("batched", "compiled"):
        return Choice(str(engine))
    if engine != "auto":
        name = engine.engine if isinstance(engine, Choice) else engine
        raise NotBatchable(f"engine {name!r} computes a run at a time")
    return Choice("compiled", since=2) if _repays(setting, problem, local) else Choice("batched")


def _repays(setting: Setting, problem: Stacked, local: Local) -> bool:
    """Whether compiled steps would save more than compiling takes."""
    cohort = cohort_of(problem.first, setting.participation)
    some = range(min(cohort, 10))
    rows: Any = [
        (s, i) for s in range(len(problem.seeds)) for i in some for _ in range(problem.width)
    ]
    steps = max(local.count(problem.first, Key(0, 1), some))
    seconds = setting.rounds * steps * step_seconds(problem, rows, local) * cohort / len(some)
    return worth_compiling(seconds, alone=False)


def _ordered(trials: Sequence[Trial]) -> tuple[list[int], int]:
    """The numbers of trials, those of one seed on one problem together, and how many each seed has."""
    found: dict[tuple[int, int], list[int]] = {}
    for n, trial in enumerate(trials):
        found.setdefault((id(trial.problem), trial.seed), []).append(n)
    widths = {len(each) for each in found.values()}
    if len(widths) > 1:  # each as if it were the only one of its seed
        return list(range(len(trials))), 1
    return [n for each in found.values() for n in each], widths.pop()
