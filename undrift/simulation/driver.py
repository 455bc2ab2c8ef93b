"""A run: rounds of exchanges, and what is recorded of them."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from undrift.core.algorithm import Algorithm, Exchange, exchanges_of
from undrift.core.errors import Diverged, InvalidInput, Stopped, unknown
from undrift.core.rng import Key, Purpose, generator
from undrift.local.settings import Local
from undrift.problems import Problem
from undrift.simulation.aggregation import Party, Traffic, to_one
from undrift.simulation.asynchronous.async_state import InFlight, Timing
from undrift.simulation.asynchronous.policies import Buffer, ServerPolicy, Synchronous
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.checks import (
    check_first_records,
    check_fit,
    check_kinds,
    check_numbers,
    check_timed,
)
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines import Choice, choose
from undrift.simulation.participation import Draw, Everyone, Participation
from undrift.simulation.transport import Plan, site_of

log = logging.getLogger("undrift")


@dataclass(frozen=True)
class State:
    """All that a run needs to go on: its randomness has no state of its own.

    In virtual time `flight` holds the clock and everything under way: a record of tensors (`undrift.simulation.asynchronous.async_state.Flight`),
    in a round that has just been yielded the live book it is made of.
    """

    round: int
    server: Any
    clients: ClientStates
    flight: Any = None

    def settled(self) -> "State":
        """The same with what is under way as a record, which a run that goes on does not touch."""
        live = isinstance(self.flight, InFlight)
        return replace(self, flight=self.flight.record()) if live else self


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    clients     who took part          left_out   who of them returned something unusable
    metrics     the problem's figures of the model after the round, if it was evaluated
    bytes_down, bytes_up               over all clients and exchanges (a first contact counts in round 1)
    exchanges   how often the wire was crossed
    time        virtual seconds from the beginning, and `timing`: who was how late (engine "events" only)
    """

    round: int
    clients: tuple[int, ...]
    metrics: dict[str, float]
    bytes_down: int
    bytes_up: int
    seconds: float
    left_out: tuple[int, ...] = ()
    exchanges: int = 1
    _state: State | None = field(default=None, repr=False)
    time: float | None = None
    timing: Timing | None = field(default=None, repr=False)

    @property
    def x(self) -> Tensor:
        """The server's model after this round (not kept in a finished run's history)."""
        return self._kept().server.x

    @property
    def state(self) -> State:
        """All there is after this round, as it is: the next round writes over its clients."""
        return self._kept()

    def snapshot(self) -> State:
        """A state to go on from later, with `rounds(..., start=...)`; to be taken before the next round."""
        state = self._kept()
        return replace(state.settled(), clients=state.clients.copy(after_round=state.round))

    def _kept(self) -> State:
        if self._state is None:
            raise AttributeError("a history keeps no models: use ud.rounds to see each one")
        return self._state


@dataclass(frozen=True)
class Best:
    """The best model that was evaluated: by accuracy where there is one, else by loss."""

    round: int
    value: float
    x: Tensor = field(repr=False)


@dataclass(frozen=True)
class Result:
    """A finished run."""

    problem: Problem = field(repr=False)
    state: State = field(repr=False)
    history: list[Round] = field(repr=False)
    stopped: str | None = None  # why it ended early
    best: Best | None = field(default=None, repr=False)

    @property
    def x(self) -> Tensor:
        """The final model of the server, flat."""
        return self.state.server.x

    def final(self, metric: str, last: int = 100) -> float:
        """A run's quality as the papers report it: the mean over the last rounds in which it was recorded."""
        values = [r.metrics[metric] for r in self.history if metric in r.metrics]
        if not values:
            raise unknown("metric", metric, {name for r in self.history for name in r.metrics})
        return sum(values[-last:]) / len(values[-last:])

    def model(self) -> Any:
        """The final model as an nn.Module, for problems made from one."""
        make = getattr(self.problem, "module", None)
        if make is None:
            raise TypeError(f"{type(self.problem).__name__} is not made from an nn.Module: use x")
        return make(self.x)


def run(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    participation: Participation | None = None,
    local: Local | None = None,
    engine: str | Choice = "auto",
    seed: int = 0,
    x0: Tensor | None = None,
    chunk: int | None = None,
    workers: int | None = None,
    evaluate_every: int = 1,
    start: "State | Result | None" = None,
    population: Population | None = None,
    server: ServerPolicy | None = None,
) -> Result:
    """Run a method and keep its history; the arguments are explained at `rounds`.

    A run in which nothing finite is left stops: the result holds the last good state and says why.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> ud.run(ud.Scaffold(), problem, rounds=200, local=ud.Local(steps=3, lr=0.1)).x
    tensor([2.0000])
    """
    every_round = iterate(
        algorithm,
        problem,
        rounds=rounds,
        participation=participation,
        local=local,
        engine=engine,
        seed=seed,
        x0=x0,
        chunk=chunk,
        workers=workers,
        evaluate_every=evaluate_every,
        start=start,
        population=population,
        server=server,
    )
    history: list[Round] = []
    state: State | None = None
    stopped, best = None, None
    try:
        for r in every_round:
            state, best = r._state, better(best, r)
            history.append(replace(r, _state=None))
    except Stopped as end:
        state, stopped = cast(State, end.state), str(end)
        log.warning("stopped: %s", stopped)
    assert state is not None
    return Result(problem, state.settled(), history, stopped, best)


def better(best: Best | None, r: Round) -> Best | None:
    """The best model so far, that of this round taken into account."""
    name, sign = ("accuracy", 1) if "accuracy" in r.metrics else ("loss", -1)
    value = r.metrics.get(name, math.nan)
    if not math.isfinite(value) or (best is not None and sign * value <= sign * best.value):
        return best
    return Best(r.round, value, r.x)


def rounds(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    participation: Participation | None = None,
    local: Local | None = None,
    engine: str | Choice = "auto",
    seed: int = 0,
    x0: Tensor | None = None,
    chunk: int | None = None,
    workers: int | None = None,
    evaluate_every: int = 1,
    start: "State | Result | None" = None,
    population: Population | None = None,
    server: ServerPolicy | None = None,
) -> Iterator[Round]:
    """The same run as an iterator: each item is a finished round, with `x`, the model after it.

    participation   who takes part, all clients by default      local   how they work, one epoch by default
    engine          "auto", "sequential", "batched", "compiled", "ray" (docs/ray.md), or the Choice of an earlier run
                    "events": in virtual time, see docs/asynchrony.md; "auto" means it if population or server is given
    chunk           how many clients are computed at once
    workers         how many are computed side by side, a core each, by engines that take them one by one; on Ray, processes
    population      what clients are like as machines           server  when it makes its next step
    x0              where to start, the problem's own by default
    rounds          how many in all, those before `start` included
    start           a `snapshot()` of an earlier round, or a Result, to go on from as if there had been no pause

    Everything is checked here, before the first round.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> [round(float(r.x), 3) for r in ud.rounds(ud.FedAvg(), problem, rounds=3, local=ud.Local(lr=0.5))]
    [1.0, 1.5, 1.75]
    """
    from undrift.simulation.asynchronous import engine as events  # which needs Round and State

    participation = Everyone() if participation is None else participation
    local = Local() if local is None else local
    check_kinds(algorithm, problem, participation, local)
    check_numbers(rounds, seed, chunk, evaluate_every)
    check_fit(algorithm, problem, rounds, participation, local)
    timed = events.asked_for(engine, population, server)
    population = Population() if population is None else population
    if timed:
        server = Synchronous() if server is None else server
        check_timed(algorithm, problem, rounds, local, population, server, seed)
        engine = events.visits_by(engine, population, problem)
    choice = choose(
        problem,
        rounds=rounds,
        participation=participation,
        local=local,
        engine=engine,
        chunk=chunk,
        workers=workers,
        together=server.at_work if isinstance(server, Buffer) else None,
    )
    x = _x0(problem, x0)
    fresh = State(0, algorithm.server(x), ClientStates(algorithm.client(x)))
    check_first_records(algorithm, fresh.server)
    if start is not None and x0 is not None:
        raise InvalidInput("give x0 or start, not both: start holds a model already")
    state = fresh if start is None else _continued(start, fresh, rounds, server)
    largest = float(np.max(problem.weights))
    plan = Plan(algorithm, problem, participation, local, choice, seed, largest)
    if server is not None:
        return events.play(plan, population, server, state, rounds, evaluate_every)
    return _play(plan, state, rounds, evaluate_every)


iterate = rounds  # inside `run` the name is taken by the number of rounds


def _play(plan: Plan, state: State, last: int, evaluate_every: int) -> Iterator[Round]:
    problem, site = plan.problem, site_of(plan, state.clients)
    try:
        while state.round < last:
            t, began = state.round + 1, perf_counter()
            draw = plan.participation.draw(plan.seed, t, problem.weights)
            server, traffic, count = state.server, Traffic(), 0
            try:
                for when, number, exchange in exchanges_in(plan.algorithm, t):
                    site.write()  # what the exchange before led to
                    party = party_of(plan, exchange, draw, when, number)
                    if not any(party.weights):
                        continue  # nobody came, or nobody who counts
                    outcome = site.carry_out(exchange, server, party, Key(plan.seed, when, number))
                    server = outcome.server
                    traffic, count = traffic + outcome.traffic, count + 1
                seconds = perf_counter() - began
                evaluated = t % evaluate_every == 0 or t == last
                metrics = plan.evaluate(server.x, t) if evaluated else {}
            except BaseException as end:  # also Ctrl-C: a round happens whole or not at all
                site.undo()
                if isinstance(end, Diverged):
                    raise Diverged(str(end), t, state) from None
                raise
            site.keep(t)
            state = State(t, server, state.clients)
            yield Round(
                t,
                draw.clients,
                metrics,
                traffic.bytes_down,
                traffic.bytes_up,
                seconds,
                traffic.left_out,
                count,
                state,
            )
    finally:
        site.close()


def exchanges_in(algorithm: Algorithm, t: int) -> list[tuple[int, int, Exchange]]:
    """(round, number in the round, exchange) of a round; the first contact, round 0, belongs to round 1."""
    rounds = (0, t) if t == 1 else (t,)
    return [(s, number, e) for s in rounds for number, e in enumerate(exchanges_of(algorithm, s))]


def party_of(plan: Plan, exchange: Exchange, draw: Draw, t: int, number: int) -> Party:
    """Who takes part in an exchange, with which weight and how many steps."""
    problem = plan.problem
    if exchange.to == "everyone":
        draw = Draw(tuple(range(problem.N)))
    share = [float(problem.weights[i]) for i in draw.clients]
    # relative to the largest, so that equal weights are exactly one
    weights = draw.counts or [s / plan.largest_weight for s in share]
    key = Key(plan.seed, t, number)
    steps = plan.local.count(problem, key, draw.clients)
    party = Party(draw.clients, weights, steps, share)
    if exchange.to == "one" and draw.clients:
        random = generator(Purpose.COHORT, key, client=1)  # client 0's stream drew the cohort
        return to_one(party, int(random.integers(len(draw.clients))))
    return party


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


def _continued(
    start: "State | Result", fresh: State, rounds: int, server: ServerPolicy | None
) -> State:
    """The state to go on from, if it is one of this method on this problem."""
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
    if state.flight is not None and server is None:
        raise InvalidInput("start is of a run in virtual time: go on with engine='events'")
    if state.flight is not None and len(state.flight.visits) and not isinstance(server, Buffer):
        raise InvalidInput("start has clients under way: go on with server=ud.Buffer(...)")
    return replace(state, clients=state.clients.copy())
