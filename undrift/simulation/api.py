"""`ud.run` and `ud.rounds`: everything is checked, an engine is chosen, and a loop of rounds is started."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from undrift.codecs import Codec, make_wire
from undrift.compiler import kernels
from undrift.core.algorithm import Algorithm
from undrift.core.errors import InvalidInput, Stopped
from undrift.local import Local
from undrift.metrics import Metric
from undrift.metrics.evaluator import Evaluator
from undrift.problems import Problem
from undrift.simulation.asynchronous import events
from undrift.simulation.asynchronous.policies import Buffer, ServerPolicy, Synchronous
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.checks import (
    check_first_records,
    check_kinds,
    check_method_fits_run,
    check_numbers,
    check_timed,
    fit_to_run,
)
from undrift.simulation.client_states import ClientStates
from undrift.simulation.driver import play
from undrift.simulation.engines import EngineChoice, choose
from undrift.simulation.participation import Everyone, Participation
from undrift.simulation.results import Best, Result, Round, State, better
from undrift.simulation.transport import InProcess, RunPlan, Transport

log = logging.getLogger("undrift")


@dataclass(frozen=True)
class RunConfig:
    """The arguments of `ud.run`, which explains them."""

    algorithm: Algorithm
    problem: Problem
    rounds: int
    participation: Participation = Everyone()
    local: Local = Local()
    engine: str | EngineChoice = "auto"
    seed: int = 0
    x0: Tensor | None = None
    chunk: int | None = None
    workers: int | None = None
    evaluate_every: int = 1
    population: Population | None = None
    server: ServerPolicy | None = None
    metrics: Sequence[str | Metric] | str | None = None
    codec: Codec | str | None = None

    @property
    def timed(self) -> bool:
        """Whether the run is in virtual time."""
        return events.asked_for(self.engine, self.population, self.server)

    def first_state(
        self, state_memory: int | None = None, folder: Any = None, timed: bool = False
    ) -> State:
        """Where the run starts."""
        x = _x0(self.problem, self.x0)
        server = self.algorithm.server(x)
        clients = ClientStates(self.algorithm.client(x), state_memory, folder)
        in_flight = events.empty_snapshot(self.algorithm.send(server)) if timed else None
        return State(0, server, clients, in_flight)


@dataclass(frozen=True)
class PreparedRun:
    """A run that has been checked, with its engine chosen."""

    config: RunConfig
    plan: RunPlan
    evaluator: Evaluator

    def play(self, start: "State | Result | None" = None) -> Iterator[Round]:
        """Its rounds, from the beginning or after a state of an earlier round."""
        config, plan = self.config, self.plan
        if start is not None and config.x0 is not None:
            raise InvalidInput("give x0 or start, not both: start holds a model already")
        fresh = config.first_state()
        policy = _policy(config)
        state = fresh if start is None else _resumed(start, fresh, config.rounds, policy)
        if policy is not None:
            population = config.population or Population()
            return events.play_events(
                plan, population, policy, state, self.evaluator, config.rounds
            )
        return self._play_synchronously(state)

    def _play_synchronously(self, state: State) -> Iterator[Round]:
        transport = transport_of(
            self.plan, state.clients
        )  # which may start workers, at the first round
        yield from play(self.plan, transport, state, self.evaluator, self.config.rounds)


def prepare(config: RunConfig) -> PreparedRun:
    """Check everything and choose the engine, before any work starts."""
    algorithm, problem, local = config.algorithm, config.problem, config.local
    check_kinds(algorithm, problem, config.participation, local)
    check_numbers(config.rounds, config.seed, config.chunk, config.evaluate_every)
    algorithm = fit_to_run(algorithm, problem.N, config.participation, config.rounds)
    config = replace(config, algorithm=algorithm)
    check_method_fits_run(algorithm, problem, config.rounds, config.participation, local)
    policy = _policy(config)
    if policy is not None:
        population = config.population or Population()
        check_timed(algorithm, problem, config.rounds, local, population, policy, config.seed)
    choice = choose_engine(config)
    server = algorithm.server(_x0(problem, config.x0))
    check_first_records(algorithm, server)
    largest = float(np.max(problem.weights))
    wire = make_wire(config.codec, problem.x0)
    plan = RunPlan(
        algorithm, problem, config.participation, local, choice, config.seed, largest, wire
    )
    evaluator = Evaluator(problem, config.metrics, config.evaluate_every, config.rounds)
    return PreparedRun(config, plan, evaluator)


def choose_engine(config: RunConfig) -> EngineChoice:
    """The engine of a run; it is logged at INFO."""
    engine, chunk, workers = config.engine, config.chunk, config.workers
    if isinstance(engine, EngineChoice) and (chunk is not None or workers is not None):
        raise InvalidInput(
            "an EngineChoice has chunk and workers of its own: give one or the other"
        )
    policy = _policy(config)
    if policy is not None:
        engine = events.inner_engine(engine, config.population or Population(), config.problem)
    how: dict[str, Any] = {
        "rounds": config.rounds, "participation": config.participation, "local": config.local
    }  # fmt: skip
    if engine == "ray" or (isinstance(engine, EngineChoice) and engine.engine == "ray"):
        from undrift.simulation.ray.choice import choose_on_ray  # Ray need not be installed

        asked = engine if isinstance(engine, EngineChoice) else EngineChoice("ray", workers=workers)
        choice = choose_on_ray(config.problem, asked, chunk, **how)
    else:
        concurrency = policy.at_work if isinstance(policy, Buffer) else None
        choice = choose(
            config.problem, engine=engine, chunk=chunk, workers=workers, concurrency=concurrency, **how
        )  # fmt: skip
    if "compiled" in (choice.engine, choice.inside):
        kernels.switched_off()  # refuses switches that are not there
    if not isinstance(config.engine, EngineChoice):
        log.info("engine: %s", choice)
    return choice


def transport_of(plan: RunPlan, clients: ClientStates) -> Transport:
    """How synchronous rounds reach clients."""
    if plan.choice.engine != "ray":
        return InProcess(plan, clients)
    from undrift.simulation.ray.transport import RayTransport  # Ray need not be installed

    return RayTransport(plan, clients)


def _policy(config: RunConfig) -> ServerPolicy | None:
    """When the server steps, in virtual time; None elsewhere."""
    if not config.timed:
        return None
    return Synchronous() if config.server is None else config.server


def run(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    participation: Participation | None = None,
    local: Local | None = None,
    engine: str | EngineChoice = "auto",
    seed: int = 0,
    x0: Tensor | None = None,
    chunk: int | None = None,
    workers: int | None = None,
    evaluate_every: int = 1,
    start: "State | Result | None" = None,
    population: Population | None = None,
    server: ServerPolicy | None = None,
    metrics: Sequence[str | Metric] | str | None = None,
    codec: Codec | str | None = None,
) -> Result:
    """Run a method and keep its history.

    participation    who takes part in a round, all clients by default: ud.Uniform(10), ...
    local            how clients train, one epoch by default: ud.Local(steps=10, batch=32, lr=0.1)
    engine           "auto", "sequential", "batched", "compiled", "ray" (docs/ray.md), or the EngineChoice of an earlier run;
                     "events": in virtual time, see docs/asynchrony.md; "auto" means it if population or server is given
    seed             decides cohorts, minibatches and all other randomness
    x0               where to start, the problem's own by default
    chunk            how many clients are computed at once
    workers          how many are computed side by side, a core each, by engines that take them one by one; on Ray, processes
    evaluate_every   metrics are recorded every so many rounds, and after the last
    start            a `snapshot()` of an earlier round, or a Result, to resume from as if there had been no pause; `rounds`
                     counts from the very beginning
    population       how clients differ as devices, in virtual time         server   when it makes its next step there
    metrics          what to record: names ("test", "train", ...; docs/experiments.md) and functions of a ud.Probe
    codec            what happens to the vectors that clients send: "fp16", ... or an object with encode and decode

    Everything is checked before the first round.  A run in which nothing finite is left stops: the result holds the last
    good state, and `stopped` why.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> ud.run(ud.Scaffold(), problem, rounds=200, local=ud.Local(steps=3, lr=0.1)).x
    tensor([2.0000])
    """
    return collect(prepare(_config(locals())), start)


def rounds(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    participation: Participation | None = None,
    local: Local | None = None,
    engine: str | EngineChoice = "auto",
    seed: int = 0,
    x0: Tensor | None = None,
    chunk: int | None = None,
    workers: int | None = None,
    evaluate_every: int = 1,
    start: "State | Result | None" = None,
    population: Population | None = None,
    server: ServerPolicy | None = None,
    metrics: Sequence[str | Metric] | str | None = None,
    codec: Codec | str | None = None,
) -> Iterator[Round]:
    """The same run as an iterator: each item is a finished round, with `x`, the model after it.

    The arguments are those of `ud.run`, and are checked here, before the first round.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> [round(float(r.x), 3) for r in ud.rounds(ud.FedAvg(), problem, rounds=3, local=ud.Local(lr=0.5))]
    [1.0, 1.5, 1.75]
    """
    return prepare(_config(locals())).play(start)


def _config(given: dict[str, Any]) -> RunConfig:
    """The arguments of `run` or `rounds`, with defaults for what is None."""
    defaults = {"participation": Everyone(), "local": Local()}
    values: dict[str, Any] = {
        name: defaults.get(name) if value is None else value
        for name, value in given.items()
        if name != "start"
    }
    return RunConfig(**values)


def collect(prepared: PreparedRun, start: "State | Result | None" = None) -> Result:
    """Play a run to its end."""
    history: list[Round] = []
    state: State | None = None
    best: Best | None = None
    stopped = None
    try:
        for r in prepared.play(start):
            state, best = r.state, better(best, r)
            history.append(r.without_state())
    except Stopped as end:
        state, stopped = cast(State, end.state), str(end)
        log.warning("stopped: %s", stopped)
    assert state is not None
    return Result(prepared.config.problem, state.settled(), history, stopped, best)


def _x0(problem: Problem, x0: Tensor | None) -> Tensor:
    own = problem.x0
    if x0 is None:
        return own.detach().clone()
    x0 = torch.as_tensor(x0).detach().to(own.device)
    if x0.shape != own.shape or x0.dtype != own.dtype:
        raise InvalidInput(
            f"x0 must be {list(own.shape)} of {own.dtype} as the problem's own; "
            f"got {list(x0.shape)} of {x0.dtype}"
        )
    if not x0.isfinite().all():
        raise InvalidInput("x0 has NaN or Inf in it")
    return x0.clone()


def _resumed(
    start: "State | Result", fresh: State, rounds: int, policy: ServerPolicy | None
) -> State:
    """The state to resume from, if it is one of this method on this problem."""
    state = start.state if isinstance(start, Result) else start
    if not isinstance(state, State):
        raise InvalidInput(f"start must be a snapshot() of a round or a Result, got {start!r}")
    if type(state.server) is not type(fresh.server) or state.server.x.shape != fresh.server.x.shape:
        raise InvalidInput("start is a state of another method or of another model")
    if state.round >= rounds:
        raise InvalidInput(
            f"start is after round {state.round}, rounds={rounds} leaves nothing to do: "
            "rounds counts from the very beginning"
        )
    if state.in_flight is not None and policy is None:
        raise InvalidInput("start is of a run in virtual time: resume it with engine='events'")
    if events.has_visits(state.in_flight) and not isinstance(policy, Buffer):
        raise InvalidInput("start has visits in flight: resume it with server=ud.Buffer(...)")
    return replace(state, clients=state.clients.copy())
