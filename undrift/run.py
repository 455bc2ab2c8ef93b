"""A run: rounds of exchanges, and what is recorded of them."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from undrift.core import Algorithm, Exchange, exchanges_of
from undrift.engines import ENGINES, Engine
from undrift.errors import Diverged, InvalidInput, unknown
from undrift.exchange import Party, Setting, Traffic, carry_out, to_one
from undrift.hyper import Spec
from undrift.keyed import Key, Purpose, generator
from undrift.local import Local
from undrift.participation import Draw, Everyone, Participation
from undrift.problems import Problem
from undrift.states import ClientStates

log = logging.getLogger("undrift")

CHUNK_BYTES = (
    256 * 2**20
)  # what one chunk of the batched engine may take for the vectors of its clients
VECTORS_A_CLIENT = 8  # model, gradient, state and temporaries, by rule of thumb


@dataclass(frozen=True)
class State:
    """All that a run needs to go on: its randomness has no state of its own."""

    round: int
    server: Any
    clients: ClientStates


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    clients     who took part          left_out   who of them returned something unusable
    metrics     the problem's figures of the model after the round, if it was evaluated
    bytes_down, bytes_up               over all clients and exchanges (a first contact counts in round 1)
    exchanges   how often the wire was crossed
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

    @property
    def x(self) -> Tensor:
        """The server's model after this round (not kept in a finished run's history)."""
        return self._kept().server.x

    def snapshot(self) -> State:
        """A state to go on from later, with `rounds(..., start=...)`; to be taken before the next round."""
        state = self._kept()
        return State(state.round, state.server, state.clients.copy(after_round=state.round))

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
    engine: str = "auto",
    seed: int = 0,
    x0: Tensor | None = None,
    chunk: int | None = None,
    evaluate_every: int = 1,
    start: State | None = None,
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
        evaluate_every=evaluate_every,
        start=start,
    )
    history: list[Round] = []
    state, stopped, best = start, None, None
    try:
        for r in every_round:
            state, best = r._state, _better(best, r)
            history.append(replace(r, _state=None))
    except Diverged as end:
        state, stopped = cast(State, end.state), str(end)
        log.warning("stopped: %s", stopped)
    assert state is not None
    return Result(problem, state, history, stopped, best)


def _better(best: Best | None, r: Round) -> Best | None:
    if "accuracy" in r.metrics:
        value, better = r.metrics["accuracy"], best is None or r.metrics["accuracy"] > best.value
    elif "loss" in r.metrics:
        value, better = r.metrics["loss"], best is None or r.metrics["loss"] < best.value
    else:
        return best
    return Best(r.round, value, r.x) if better else best


def rounds(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    participation: Participation | None = None,
    local: Local | None = None,
    engine: str = "auto",
    seed: int = 0,
    x0: Tensor | None = None,
    chunk: int | None = None,
    evaluate_every: int = 1,
    start: State | None = None,
) -> Iterator[Round]:
    """The same run as an iterator: each item is a finished round, with `x`, the model after it.

    participation   who takes part, all clients by default      local   how they work, one epoch by default
    engine          "sequential", "batched", or "auto"          chunk   how many clients the batched engine takes at once
    x0              where to start, the problem's own by default
    start           a `snapshot()` of an earlier round to go on from: the rest is as if there had been no pause

    Everything is checked here, before the first round.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> [round(float(r.x), 3) for r in ud.rounds(ud.FedAvg(), problem, rounds=3, local=ud.Local(lr=0.5))]
    [1.0, 1.5, 1.75]
    """
    participation, local = participation or Everyone(), local or Local()
    _check_numbers(rounds, seed, chunk, evaluate_every)
    participation.check(problem.N, rounds)
    local.check(problem.N, rounds)
    _check_fit(algorithm, problem.N, rounds, participation, local)
    visit = _engine(engine, problem)
    if start is None:
        x = _x0(problem, x0)
        start = State(0, algorithm.server(x), ClientStates(algorithm.client(x)))
    elif x0 is not None:
        raise InvalidInput("give x0 or start, not both: start holds a model already")
    else:
        start = replace(start, clients=start.clients.copy())
    chunk = chunk or _chunk(problem)
    largest = float(np.max(problem.weights))
    plan = _Plan(algorithm, problem, participation, local, visit, seed, chunk, largest)
    return _play(plan, start, rounds, evaluate_every)


iterate = rounds  # inside `run` the name is taken by the number of rounds


@dataclass(frozen=True)
class _Plan:
    algorithm: Algorithm
    problem: Problem
    participation: Participation
    local: Local
    engine: Engine
    seed: int
    chunk: int
    largest_weight: float


def _play(plan: _Plan, state: State, last: int, evaluate_every: int) -> Iterator[Round]:
    problem = plan.problem
    while state.round < last:
        t, began = state.round + 1, perf_counter()
        draw = plan.participation.draw(plan.seed, t, problem.weights)
        server, traffic, count = state.server, Traffic(), 0
        try:
            for when in (0, t) if t == 1 else (t,):  # the first contact belongs to round 1
                for number, exchange in enumerate(exchanges_of(plan.algorithm, when)):
                    party = _party(plan, exchange, draw, when, number)
                    if not party.clients:
                        continue  # nobody came
                    setting = Setting(problem, plan.engine, plan.chunk, plan.local.solver(when))
                    key = Key(plan.seed, when, number)
                    server, cost = carry_out(exchange, server, state.clients, party, setting, key)
                    traffic, count = traffic + cost, count + 1
        except Diverged as end:
            raise Diverged(str(end), t, state) from None
        seconds = perf_counter() - began
        evaluated = t % evaluate_every == 0 or t == last
        metrics = problem.evaluate(server.x) if evaluated else {}
        state.clients.round = t
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


def _party(plan: _Plan, exchange: Exchange, draw: Draw, t: int, number: int) -> Party:
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
        return own.clone()
    x0 = torch.as_tensor(x0)
    if x0.shape != own.shape or x0.dtype != own.dtype:
        raise InvalidInput(
            f"x0 must be {list(own.shape)} of {own.dtype} as the problem's own; "
            f"got {list(x0.shape)} of {x0.dtype}"
        )
    if not x0.isfinite().all():
        raise InvalidInput("x0 has NaN or Inf in it")
    return x0.clone()


def _engine(name: str, problem: Problem) -> Engine:
    if name == "auto":
        name = getattr(problem, "engine", "batched")  # a problem may know which suits it
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    refusal = getattr(problem, "not_batched", None)
    if name == "batched" and refusal:
        raise InvalidInput(f"engine 'batched' cannot run this problem: {refusal}")
    return ENGINES[name]


def _chunk(problem: Problem) -> int:
    a_client = problem.x0.numel() * problem.x0.element_size() * VECTORS_A_CLIENT
    return max(1, CHUNK_BYTES // a_client)


def _check_numbers(rounds: int, seed: int, chunk: int | None, evaluate_every: int) -> None:
    if int(rounds) != rounds or rounds < 1:
        raise InvalidInput(f"rounds must be a whole number from 1 up, got {rounds}")
    if not 0 <= seed < 2**64:
        raise InvalidInput(f"seed must be from 0 to 2**64 - 1, got {seed}")
    if chunk is not None and chunk < 1:
        raise InvalidInput(f"chunk must be at least 1, got {chunk}")
    if evaluate_every < 1:
        raise InvalidInput(f"evaluate_every must be at least 1, got {evaluate_every}")


def _check_fit(
    algorithm: Algorithm, N: int, rounds: int, participation: Participation, local: Local
) -> None:
    """Refuse what a method is not defined for."""
    for name in ("server", "client", "send", "local", "update"):
        if not callable(getattr(algorithm, name, None)):
            raise InvalidInput(
                f"{algorithm!r} is not a method: it has no {name}(); "
                "give an object such as ud.FedAvg() or ud.method('fedavg')"
            )
    own_check = getattr(algorithm, "check", None)
    if own_check is not None:
        own_check(N, rounds)
    spec: Spec | None = getattr(algorithm, "spec", None)
    if spec is None:
        return
    if spec.everyone and not isinstance(participation, Everyone):
        raise InvalidInput(f"{spec.name} is defined for full participation: use ud.Everyone()")
    if spec.equal_steps and local.unequal:
        raise InvalidInput(f"{spec.name} needs the same number of steps of every client")
    if local.momentum and not spec.local_momentum:
        raise InvalidInput(
            f"{spec.name} has a local rule of its own: use ud.Local(momentum=0) with it"
        )
