"""`ud.run` and `ud.rounds`: everything is checked, an engine is chosen, and a loop of rounds is started."""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from undrift.codecs import Codec, make_wire
from undrift.compiler import kernels
from undrift.core.algorithm import Algorithm, Wire
from undrift.core.errors import InvalidInput, Stopped
from undrift.core.records import difference
from undrift.local import Local
from undrift.local.optimiser_state import with_optimiser_state
from undrift.local.parameters import with_local_parameters
from undrift.local.wrapping import method_of
from undrift.metrics import Metric
from undrift.metrics.evaluator import Evaluator
from undrift.privacy import Privacy, make_privacy
from undrift.problems import Problem
from undrift.simulation.asynchronous import events
from undrift.simulation.asynchronous.policies import Buffer, ServerPolicy, Synchronous
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.averages import Averages, begin
from undrift.simulation.checks import (
    check_first_records,
    check_kinds,
    check_method_fits_run,
    check_numbers,
    check_private_time,
    check_timed,
    fit_to_run,
)
from undrift.simulation.client_states import ClientStates
from undrift.simulation.driver import play
from undrift.simulation.engines import EngineChoice, choose_engine
from undrift.simulation.participation import Everyone, Participation
from undrift.simulation.privacy import make_private, resolve
from undrift.simulation.progress import progress_of
from undrift.simulation.results import Best, FinishedRun, Result, Round, State, better
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
    average: Averages | None = None
    privacy: Privacy | Mapping[str, Any] | None = None

    @property
    def timed(self) -> bool:
        """Whether the run is in virtual time."""
        return events.asked_for(self.engine, self.population, self.server)

    def first_state(self, state_memory: int | None = None, folder: Any = None, timed: bool = False) -> State:
        """Where the run starts."""
        x = _x0(self.problem, self.x0)
        algorithm = with_local_parameters(with_optimiser_state(self.algorithm, self.local), self.problem)
        wire = make_wire(self.codec, x, algorithm, check=False)
        server, client = algorithm.server(x), algorithm.client(x)
        clients = ClientStates(client if wire is None else wire.client(client), state_memory, folder)
        in_flight = events.empty_snapshot(algorithm.send(server)) if timed else None
        privacy = resolve(self.privacy, self.participation, self.problem.N, self.rounds)
        kept = None if privacy is None else (privacy, self.participation)
        averages, N = begin(self.average, x, self.rounds), self.problem.N
        return State(0, server, clients, in_flight, averages=averages, privacy=kept, N=N, seed=self.seed)


@dataclass(frozen=True)
class PreparedRun:
    """A run that has been checked, with its engine chosen."""

    config: RunConfig
    plan: RunPlan
    evaluator: Evaluator

    def play(self, start: "State | FinishedRun | None" = None) -> Iterator[Round]:
        """Its rounds, from the beginning or after a state of an earlier round."""
        config, plan = self.config, self.plan
        if start is not None and config.x0 is not None:
            raise InvalidInput("give x0 or start, not both: start holds a model already")
        fresh = config.first_state()
        policy = _policy(config)
        state = fresh if start is None else _resumed(start, fresh, config.rounds, policy)
        if policy is not None:
            population = config.population or Population()
            return events.play_events(plan, population, policy, state, self.evaluator, config.rounds)
        return self._play_synchronously(state)

    def _play_synchronously(self, state: State) -> Iterator[Round]:
        transport = transport_of(self.plan, state.clients)  # which may start workers, at the first round
        yield from play(self.plan, transport, state, self.evaluator, self.config.rounds)


def prepare(config: RunConfig) -> PreparedRun:
    """Check everything and choose the engine, before any work starts."""
    algorithm, problem = config.algorithm, config.problem
    check_kinds(algorithm, problem, config.participation, config.local)
    check_numbers(config.rounds, config.seed, config.chunk, config.evaluate_every)
    local = config.local.for_run(config.rounds)
    algorithm = fit_to_run(algorithm, problem.N, config.participation, config.rounds, local)
    algorithm = with_local_parameters(algorithm, problem)
    config = replace(config, algorithm=algorithm, local=local)
    check_method_fits_run(algorithm, problem, config.rounds, config.participation, local)
    policy = _policy(config)
    if policy is not None:
        population = config.population or Population()
        check_timed(algorithm, problem, config.rounds, local, population, policy, config.seed)
    choice = engine_of_run(config)
    server = algorithm.server(_x0(problem, config.x0))
    check_first_records(algorithm, server)
    largest = float(np.max(problem.weights))
    wire: Wire | None = make_wire(config.codec, problem.x0, algorithm)
    release = None
    if config.privacy is not None:
        if policy is not None:
            check_private_time(config.population or Population(), policy, make_privacy(config.privacy))
        release, wire = make_private(
            config.privacy, wire, algorithm, problem, config.participation, local, config.rounds
        )
    evaluator = Evaluator(problem, config.metrics, config.evaluate_every, config.rounds)
    evaluator.check(method_of(algorithm), local.client_optimiser)
    observing = evaluator.observing(method_of(algorithm))
    plan = RunPlan(
        algorithm, problem, config.participation, local, choice, config.seed, largest, wire, observing, release
    )
    return PreparedRun(config, plan, evaluator)


def engine_of_run(config: RunConfig) -> EngineChoice:
    """The engine of a run; it is logged at INFO."""
    engine, chunk, workers = config.engine, config.chunk, config.workers
    if isinstance(engine, EngineChoice) and (chunk is not None or workers is not None):
        raise InvalidInput("an EngineChoice has chunk and workers of its own: give one or the other")
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
        choice = choose_engine(
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


class Settings(TypedDict, total=False):
    """What `ud.run`, `ud.rounds` and `ud.compare` take besides method, problem and rounds; defaults are in RunConfig."""

    participation: Participation | None
    local: Local | None
    engine: str | EngineChoice
    seed: int
    x0: Tensor | None
    chunk: int | None
    workers: int | None
    evaluate_every: int
    population: Population | None
    server: ServerPolicy | None
    metrics: Sequence[str | Metric] | str | None
    codec: Codec | str | None
    average: Averages | None
    privacy: Privacy | Mapping[str, Any] | None


SETTINGS = """\
participation    who takes part in a round, all clients by default: ud.Uniform(10), ud.Cyclic(10), ud.Bernoulli(0.1), ...
    local            how clients train, one epoch of all their data by default: ud.Local(steps=10, batch=32, lr=0.1)
    engine           how clients are computed: "auto" chooses by what the run is (model, cohort, steps, rounds, threads),
                     never by the clock; "sequential", "batched", "compiled", "ray" (docs/ray.md), or the EngineChoice of an
                     earlier run; "events": in virtual time (docs/asynchrony.md), which "auto" means with population or server
    seed             decides cohorts, minibatches and all other randomness: the same seed gives the same bits
    x0               the model to start from, flat; the problem's own by default
    chunk            how many clients are computed at once; by memory and cohort by default
    workers          how many are computed side by side, a core each, by engines that take them one by one; on Ray, processes
    evaluate_every   metrics are recorded every so many rounds, and after the last
    population       how clients differ as devices, in virtual time: ud.Population(...)
    server           when it makes its next step there: ud.Synchronous(), ud.Deadline(...), ud.Buffer(...)
    metrics          what to record: names ("test", "train", ...; docs/experiments.md) and functions of a ud.Probe;
                     the problem's own by default
    codec            what happens to the vectors that clients send: "fp16", "top-k:0.01,feedback", "quantised:4,stochastic",
                     ud.TopK(0.01, feedback=True), ... or an object with encode and decode
    average          a mean of the models that is kept along the way: ud.Average(...), or a dictionary of several
    privacy          differential privacy of clients: ud.Privacy(clip=1.0, noise=0.8) or ud.Privacy(clip=1.0, epsilon=2.0)
                     (docs/privacy.md)"""

F = TypeVar("F", bound=Callable[..., Any])


def takes_settings(function: F) -> F:
    """Let help() show the settings of a run in place of `**settings`, and the docstring explain them."""
    own = signature(function)
    kept = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    defaults = {f.name: f.default for f in fields(RunConfig)} | {"participation": None, "local": None}
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in Settings.__annotations__.items()
        if name not in own.parameters and not (name == "seed" and "seeds" in own.parameters)
    ]
    function.__signature__ = own.replace(parameters=[*kept, *shared])  # pyright: ignore[reportFunctionMemberAccess]
    known = {p.name for p in shared}
    explained = [line for line in SETTINGS.split("\n") if line.split()[0] != "seed" or "seed" in known]
    function.__doc__ = (function.__doc__ or "").replace("{settings}", "\n".join(explained))
    return function


OnRound: TypeAlias = Callable[[Round], object]


@takes_settings
def run(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    start: "State | FinishedRun | None" = None,
    progress: bool | str = "auto",
    on_round: OnRound | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Run a method and keep its history.

    algorithm        the method: ud.Scaffold(), ud.method("scaffold"), or an object with the five functions
    problem          what is minimised: ud.federate(...), ud.Quadratic(...), ...
    rounds           rounds of communication, counted from the very beginning
    start            a `snapshot()` of an earlier round, a Result or a loaded run, to resume from as if there had been no pause
    progress         True: show a bar, False: none, "auto": on a terminal or in a notebook only
    on_round         called with every finished Round (r.x, r.metrics, r.snapshot()); if it returns True or raises StopIteration
                     the run ends there, and `stopped` says so
    {settings}

    Everything is checked before the first round.  A run in which nothing finite is left stops: the result holds the last
    good state, and `stopped` why.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> ud.run(ud.Scaffold(), problem, rounds=200, local=ud.Local(steps=3, lr=0.1)).x
    tensor([2.0000])
    """
    prepared = prepare(config_from(algorithm, problem, rounds, settings))
    return collect(prepared, start, progress, on_round)


@takes_settings
def rounds(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    start: "State | FinishedRun | None" = None,
    **settings: Unpack[Settings],
) -> Iterator[Round]:
    """The same run as an iterator: each item is a finished round, with `x`, the model after it.

    Everything is checked here, before the first round.

    algorithm        the method, as for `ud.run`
    problem          what is minimised
    rounds           rounds of communication, counted from the very beginning
    start            a `snapshot()` of an earlier round, a Result or a loaded run, to resume from
    {settings}

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> [round(float(r.x), 3) for r in ud.rounds(ud.FedAvg(), problem, rounds=3, local=ud.Local(lr=0.5))]
    [1.0, 1.5, 1.75]
    """
    return prepare(config_from(algorithm, problem, rounds, settings)).play(start)


def config_from(algorithm: Algorithm, problem: Problem, rounds: int, settings: Mapping[str, Any]) -> RunConfig:
    """The arguments of `run`, with defaults for what is None."""
    for name in settings:
        if name not in Settings.__annotations__:
            near = get_close_matches(name, Settings.__annotations__, n=1)
            hint = (
                f"; did you mean {near[0]!r}?"
                if near
                else f"; give local=ud.Local({name}=...)."
                if name in Local.__dataclass_fields__
                else "."
            )
            raise TypeError(f"a run has no setting {name!r}{hint} Known: {', '.join(Settings.__annotations__)}")
    usual = ("participation", "local")  # None there: the default of RunConfig
    given: dict[str, Any] = {k: value for k, value in settings.items() if value is not None or k not in usual}
    return RunConfig(algorithm, problem, rounds, **given)


def collect(
    prepared: PreparedRun,
    start: "State | FinishedRun | None" = None,
    progress: bool | str = False,
    on_round: OnRound | None = None,
    label: str | None = None,
) -> Result:
    """Play a run to its end; `label` is what its progress is called."""
    config, choice = prepared.config, prepared.plan.choice
    if on_round is not None and not callable(on_round):
        raise InvalidInput(f"on_round is a function of a Round, got {on_round!r}")
    history: list[Round] = []
    state: State | None = None
    best: Best | None = None
    stopped = None
    playing = prepared.play(start)
    with progress_of(progress, label or type(config.algorithm).__name__, config.rounds) as show, closing_of(playing):
        try:
            for r in playing:
                state, best = r.state, better(best, r)
                history.append(r.without_state())
                show(r)
                if on_round is not None and _asks_to_stop(on_round, r):
                    stopped = f"on_round ended it after round {r.round}" if r.round < config.rounds else None
                    state = r.snapshot()
                    break
        except Stopped as end:
            state, stopped = cast(State, end.state), str(end)
            log.warning("stopped: %s", stopped)
    assert state is not None
    return Result(config.problem, state.settled(), history, stopped, best, config, choice)


def _asks_to_stop(on_round: OnRound, r: Round) -> bool:
    try:
        return on_round(r) is True
    except StopIteration:
        return True


@contextmanager
def closing_of(playing: Iterator[Round]) -> Iterator[None]:
    """End a run that is left before its end: workers are let go."""
    try:
        yield
    finally:
        if isinstance(playing, Generator):
            playing.close()


def _x0(problem: Problem, x0: Tensor | None) -> Tensor:
    own = problem.x0
    if x0 is None:
        return own.detach().clone()
    x0 = torch.as_tensor(x0).detach().to(own.device)
    if x0.shape != own.shape or x0.dtype != own.dtype:
        raise InvalidInput(
            f"x0 must be {list(own.shape)} of {own.dtype} as the problem's own; got {list(x0.shape)} of {x0.dtype}"
        )
    if not x0.isfinite().all():
        raise InvalidInput("x0 has NaN or Inf in it")
    return x0.clone()


def _resumed(start: "State | FinishedRun", fresh: State, rounds: int, policy: ServerPolicy | None) -> State:
    """The state to resume from, if it is one of this method on this problem."""
    state = start.state if isinstance(start, FinishedRun) else start
    if isinstance(start, FinishedRun) and state.N is None:
        state = replace(state, N=start.problem.N, seed=start.seed)
    if not isinstance(state, State):
        raise InvalidInput(f"start must be a snapshot() of a round or a Result, got {start!r}")
    if type(state.server) is not type(fresh.server) or state.server.x.shape != fresh.server.x.shape:
        raise InvalidInput("start is a state of another method or of another model")
    _check_form(state, fresh)
    if state.round >= rounds:
        raise InvalidInput(
            f"start is after round {state.round}, rounds={rounds} leaves nothing to do: "
            "rounds counts from the very beginning"
        )
    if state.in_flight is not None and policy is None:
        raise InvalidInput("start is of a run in virtual time: resume it with engine='events'")
    if events.has_visits(state.in_flight) and not isinstance(policy, Buffer):
        raise InvalidInput("start has visits in flight: resume it with server=ud.Buffer(...)")
    if state.round > 0 and state.privacy != fresh.privacy:
        raise InvalidInput(
            f"start is of a run with privacy={_said(state.privacy)}, this one has {_said(fresh.privacy)}: epsilon is that of "
            "all rounds, so noise, clip and participation stay what they were"
        )
    kinds, asked = ({name: mean.kind for name, mean in each.averages.items()} for each in (state, fresh))
    if asked and kinds != asked:
        raise InvalidInput(
            f"start is of a run with average={kinds or None}, this one has {asked or None}: an average is of all rounds"
        )
    if state.seed not in (None, fresh.seed):
        log.warning(
            "start is of a run with seed %d, this one has seed %d: its rounds are not those that would have followed",
            state.seed,
            fresh.seed,
        )
    averages = state.averages if asked else {}
    return replace(state, clients=state.clients.copy(), averages=averages, N=fresh.N, seed=fresh.seed)


def _check_form(state: State, fresh: State) -> None:
    """Refuse a state of another federation, or one that this run would not know how to go on from."""
    assert fresh.N is not None
    N = state.N or max(state.clients.seen(), default=-1) + 1
    if N > fresh.N or (state.N is not None and N < fresh.N):
        least = "" if state.N is not None else "at least "
        raise InvalidInput(
            f"start is of a federation of {least}{N} clients, this one has {fresh.N}: what the server keeps of all clients "
            "would not be theirs; give start.x as x0 to begin anew from its model"
        )
    found = difference(state.server, fresh.server, "the server's state", may_grow=True)
    found = found or difference(state.clients.initial, fresh.clients.initial, "a client's state")
    if found:
        raise InvalidInput(
            f"start does not fit this run: {found}; give the method, the codec, the client optimiser with its "
            "optimiser_state and the dtype that it had, or its model alone as x0"
        )


def _said(privacy: Any) -> str:
    return "None" if privacy is None else f"{privacy[0]} and {privacy[1]}"
