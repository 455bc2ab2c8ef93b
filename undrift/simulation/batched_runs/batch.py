"""Runs that are one computation: who is in the batch, and who has left it to go on alone."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from undrift.compiler.kernels.dense import own_products
from undrift.core.algorithm import Exchange, exchanges_of
from undrift.core.batched_scalar import NotBatchable, merge
from undrift.core.records import map_tensors, stack_records, tensors
from undrift.core.rng import Key
from undrift.simulation.aggregation import LocalSums, Reply
from undrift.simulation.api import prepare
from undrift.simulation.batched_runs.problem import StackedProblem
from undrift.simulation.batched_runs.rows import close, row_of
from undrift.simulation.batched_runs.transport import BatchedTransport, NonFiniteRuns
from undrift.simulation.batched_runs.trials import Played, SharedConfig, Trial, check_local
from undrift.simulation.client_states import ClientStates, half_of_memory
from undrift.simulation.driver import PlayedRound, evaluate_probe, play_exchanges, remember
from undrift.simulation.engines.choice import (
    EngineChoice,
    checked_for_torch,
    cohort_size,
    step_seconds,
    worth_compiling,
)
from undrift.simulation.engines.memory import keep_freed_memory
from undrift.simulation.results import Round, State
from undrift.simulation.transport import RunPlan

log = logging.getLogger("undrift")


@dataclass(frozen=True)
class SharedStates:
    """The client states of one run, among those of all runs of its seed."""

    states: ClientStates
    initial: Any
    number: int  # of the run among those of its seed

    def __len__(self) -> int:
        return len(self.states)

    def seen(self) -> list[int]:
        return self.states.seen()

    def gather(self, clients: Sequence[int]) -> Any:
        """The states of these clients, one row each."""
        return map_tensors(lambda t: t[:, self.number], self.states.gather(clients))

    def own(self) -> ClientStates:
        """The same in tables of their own."""
        own, who = ClientStates(self.initial), self.states.seen()
        if who:
            own.scatter(who, self.gather(who))
        own.round = self.states.round
        own.changed()
        return own


def own_state(state: State) -> State:
    """The state of a run by itself, which later rounds do not touch."""
    clients: Any = state.clients
    return replace(state, clients=clients.own()) if isinstance(clients, SharedStates) else state.settled()


class Batch:
    """Runs that are one computation: run r = s * width + c is the c-th of the s-th seed."""

    def __init__(self, trials: Sequence[Trial], shared: SharedConfig):
        keep_freed_memory()
        self.shared = shared
        self.order, self.width = _ordered(trials)
        runs = [trials[n] for n in self.order]
        self.runs, leaders = runs, runs[:: self.width]
        problems: Any = [run.problem for run in leaders]
        self.problem = StackedProblem(problems, [run.seed for run in leaders], self.width)
        algorithm = merge([run.algorithm for run in runs])
        check_local([run.local for run in runs])
        choice = _choose(shared, self.problem, runs[0])
        compiled = f"compiled from round {choice.since} on"
        how = compiled if choice.engine == "compiled" else "batched"
        log.info("engine: %d runs as one computation, %s", len(runs), how)
        # refuses what cannot run, before the first round
        self.alone = [prepare(shared.config(run, EngineChoice("batched"))) for run in runs]
        self.past: tuple[Tensor, ...] = ()  # mean pseudo-gradients of the last rounds, a row for each run
        firsts = [shared.config(run).first_state() for run in runs]
        S = cohort_size(runs[0].problem, shared.participation)
        self.careful = EngineChoice("batched", S)  # of runs that leave: not worth compiling for
        self.servers = stack_records([first.server for first in firsts])
        self.initial = [first.clients.initial for first in firsts]
        budget = half_of_memory() // len(leaders)
        of_seeds = [self.initial[a : a + self.width] for a in range(0, len(runs), self.width)]
        self.clients = [ClientStates(stack_records(each), budget) for each in of_seeds]
        plans = [
            RunPlan(run.algorithm, run.problem, shared.participation, run.local, choice, run.seed,
                    float(max(run.problem.weights)), observing=self.alone[0].plan.observing)
            for run in leaders
        ]  # fmt: skip
        self.plan = replace(plans[0], algorithm=algorithm, seed=0)
        locals = [run.local for run in runs]
        self.left: dict[int, Iterator[Played]] = {}  # runs that go on alone
        self.transport = BatchedTransport(self.plan, plans, locals, self.problem, self.clients, self.left)

    @property
    def inside(self) -> list[int]:
        """The runs that are still computed together."""
        return [r for r in range(len(self.runs)) if r not in self.left]

    def play(self) -> Iterator[list[Played]]:
        for t in range(1, self.shared.rounds + 1):
            found: list[Played | None] = [None] * len(self.runs)
            rounds: Callable[[], list[tuple[int, Round]]] = lambda: []
            while self.inside:
                try:
                    rounds = self._round(t)
                    break
                except NonFiniteRuns as nonfinite:
                    self._leave(nonfinite.runs, t, self.careful)
                except Exception as error:
                    named = f"{type(error).__name__}: {error}"
                    why = str(error) if isinstance(error, NotBatchable) else named
                    log.info("round %d: runs are computed one by one from here: %s", t, why)
                    self._leave(self.inside, t, self.shared.engine)
            for r, played in rounds():
                found[r] = played
            for r, alone in self.left.items():
                found[r] = next(alone)
            by_trial = dict(zip(self.order, found, strict=True))
            yield [cast(Played, by_trial[n]) for n in range(len(self.runs))]

    def _leave(self, runs: Sequence[int], t: int, engine: str | EngineChoice) -> None:
        """Let runs go on alone with round t."""
        self.transport.rollback()
        for r in runs:
            start = own_state(self._state(r, t - 1)) if t > 1 else None
            self.left[r] = self.shared.play_alone(self.runs[r], engine, start)

    def _state(self, r: int, t: int) -> State:
        s, c = divmod(r, self.width)
        clients: Any = SharedStates(self.clients[s], self.initial[r], c)
        return State(t, row_of(self.servers, r), clients, None, tuple(delta[r].clone() for delta in self.past))

    def _round(self, t: int) -> Callable[[], list[tuple[int, Round]]]:
        """Play round t of all runs, and look at it when it is called; nothing has happened if it raises."""
        began, transport, plan = perf_counter(), self.transport, self.plan
        exchanges, draws = plan.exchanges_in_round(t), transport.cohort(t)
        played = play_exchanges(plan, transport, self.servers, exchanges, lambda: draws, self._step)
        seconds = (perf_counter() - began) / len(self.runs)
        evaluated = self.alone[0].evaluator.is_due(t)
        metrics: list[dict[str, float]] = [{}] * len(self.runs)
        if evaluated:
            with own_products(plan.choice.compiles(t)):
                metrics = self._evaluate(played.server.x)
        probes = evaluated and bool(self.alone[0].evaluator.of_probe)
        before = {r: self._state(r, t - 1) for r in self.inside} if probes else {}
        transport.commit(t)
        self.servers = played.server
        self.past = remember(plan, self.past, played.local, t)
        down, up = played.traffic.bytes_down, played.traffic.bytes_up

        def looked_at(r: int) -> Round:
            clients = draws[r // self.width].clients
            state, found = None, metrics[r]
            if evaluated:
                state = self._state(r, t)
            if state is not None and r in before:
                found = found | self._evaluate_probe(r, before[r], state, played)
            return Round(t, clients, found, down, up, seconds, (), played.exchanges, state)

        return lambda: [(r, looked_at(r)) for r in self.inside]

    def _evaluate(self, x: Tensor) -> list[dict[str, float]]:
        """The metrics of every run's model, of all models at once if they are the default ones."""
        chosen = self.alone[0].evaluator.of_model
        if chosen is None or chosen == list(self.problem.first.default_metrics):
            found = self.problem.evaluate(x)
            for run, each in zip(self.alone, found, strict=True):
                run.evaluator.note_recorded(each)
            return found
        return [run.evaluator.evaluate_model(row) for run, row in zip(self.alone, x, strict=True)]

    def _evaluate_probe(self, r: int, before: State, after: State, played: PlayedRound) -> dict[str, float]:
        """The metrics of a round of one run."""
        run, sums = self.alone[r], played.local
        mine = replace(
            played,
            cohort=self.transport.cohorts[r],
            local=replace(sums, drift=sums.drift[r].item()) if isinstance(sums.drift, Tensor) else LocalSums(),
            everyone=None if played.everyone is None else played.everyone[r],
        )
        return evaluate_probe(run.plan, run.evaluator, before, after, mine)

    @torch.no_grad()
    def _step(self, exchange: Exchange, server: Any, reply: Reply, t: int) -> Any:
        """The server's step of all runs; now and then it is compared with every run's own."""
        updated = exchange.update(server, reply.mean, cast(Any, reply.cohort))
        self.transport.check_finite(updated)
        if t & (t - 1) == 0:
            self._check_rows(exchange, server, reply.mean, t)
        return updated

    def _check_rows(self, exchange: Exchange, server: Any, mean: Any, t: int) -> None:
        """Raise NotBatchable unless the server treats every row as it does alone; in float64, where it is plain to see."""
        server, mean = (map_tensors(torch.Tensor.double, each) for each in (server, mean))
        cohorts, number = self.transport.cohorts, self.transport.number
        batched = exchange.send(server), exchange.update(server, mean, merge(cohorts))
        for r in self.inside:
            own = exchanges_of(self.runs[r].algorithm, t)[number]
            mine = row_of(server, r)
            alone = own.send(mine), own.update(mine, row_of(mean, r), cohorts[r])
            rows = [x[r] for x in tensors(batched)]
            if not all(close(a, b) for a, b in zip(rows, tensors(alone), strict=True)):
                raise NotBatchable("the method's server does not treat the rows of a vector apart")


def _choose(shared: SharedConfig, problem: StackedProblem, run: Trial) -> EngineChoice:
    """Whether visits are compiled: as asked for, or if the runs are long enough to repay it."""
    engine = shared.engine
    if isinstance(engine, EngineChoice) and engine.engine in ("batched", "compiled"):
        return checked_for_torch(engine)
    if engine in ("batched", "compiled"):
        return checked_for_torch(EngineChoice(str(engine)))
    if engine != "auto":
        name = engine.engine if isinstance(engine, EngineChoice) else engine
        raise NotBatchable(f"engine {name!r} computes one run at a time")
    return EngineChoice("compiled", since=2) if _repays(shared, problem, run) else EngineChoice("batched")


def _repays(shared: SharedConfig, problem: StackedProblem, run: Trial) -> bool:
    """Whether compiled visits would save more than compiling takes."""
    cohort = cohort_size(run.problem, shared.participation)
    steps = max(run.local.count(run.problem, Key(0, 1), range(cohort)))
    rows = cohort * len(problem.seeds) * problem.width
    seconds = shared.rounds * steps * step_seconds(run.problem, rows, run.local)
    return worth_compiling(seconds, one_by_one=False)


def _ordered(trials: Sequence[Trial]) -> tuple[list[int], int]:
    """The numbers of trials, those of one seed on one problem together, and how many each seed has."""
    found: dict[tuple[int, int], list[int]] = {}
    for n, trial in enumerate(trials):
        found.setdefault((id(trial.problem), trial.seed), []).append(n)
    widths = {len(each) for each in found.values()}
    if len(widths) > 1:  # each as if it were the only one of its seed
        return list(range(len(trials))), 1
    return [n for each in found.values() for n in each], widths.pop()
