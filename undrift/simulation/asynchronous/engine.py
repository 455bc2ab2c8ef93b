"""A run in virtual time."""

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

from undrift.core.errors import InvalidInput, Stopped
from undrift.problems import Problem
from undrift.simulation.asynchronous.async_state import InFlight
from undrift.simulation.asynchronous.buffer import Buffered
from undrift.simulation.asynchronous.clock import Clock
from undrift.simulation.asynchronous.cohorts import Cohorts
from undrift.simulation.asynchronous.policies import Buffer, ServerPolicy
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.client_states import written
from undrift.simulation.driver import Round, State
from undrift.simulation.engines import Choice
from undrift.simulation.transport import Plan

NAMES = {"events": "auto", "events-sequential": "sequential", "events-batched": "batched"}


def asked_for(engine: str | Choice, population: Any, server: Any) -> bool:
    """Whether a run is to be in virtual time."""
    given = population is not None or server is not None
    if isinstance(engine, Choice) and engine.engine == "ray":
        engine = "ray"
    if given and isinstance(engine, str) and engine not in (*NAMES, "auto"):
        raise InvalidInput(
            f"population and server are for runs in virtual time: use engine='events', not {engine!r}"
        )
    return given or engine in NAMES


def visits_by(engine: str | Choice, population: Population, problem: Problem) -> str | Choice:
    """The engine that visits clients: not compiled, since who is computed together differs from time to time.

    Where nothing takes time there is a reference to be equal to, bit for bit: the sequential engine.
    """
    if isinstance(engine, Choice):
        return engine
    inner = NAMES.get(engine, "auto")
    if inner != "auto":
        return inner
    return "sequential" if population.instant else getattr(problem, "engine", "batched")


def play(
    plan: Plan,
    population: Population,
    server: ServerPolicy,
    state: State,
    last: int,
    evaluate_every: int,
) -> Iterator[Round]:
    """A round for every step of the server."""
    live = _book(plan, state)
    state = replace(state, flight=live)
    clock = Clock(plan, population, live)
    rounds = (
        Buffered(clock, server, state) if isinstance(server, Buffer) else Cohorts(clock, server)
    )
    while state.round < last:
        t, began, mark = state.round + 1, perf_counter(), clock.begin()
        try:
            made = rounds.round(state, t)
            seconds = perf_counter() - began
            evaluated = t % evaluate_every == 0 or t == last
            metrics = plan.evaluate(made.server.x, t) if evaluated else {}
        except BaseException as end:  # also Ctrl-C: a round happens whole or not at all
            clock.undo(mark, state.clients)
            if isinstance(end, Stopped):
                raise type(end)(str(end), t, state.settled()) from None
            raise
        written(made.states, state.clients)
        state.clients.round = t
        state = State(t, made.server, state.clients, live)
        yield Round(
            t,
            tuple(v.client for v in made.used),
            metrics,
            made.traffic.bytes_down,
            made.traffic.bytes_up,
            seconds,
            made.traffic.left_out,
            made.exchanges,
            state,
            live.time,
            clock.timing(made, t),
        )


def _book(plan: Plan, state: State) -> InFlight:
    form = plan.algorithm.send(state.server)
    if state.flight is not None:
        return InFlight.restored(state.flight, form)
    live = InFlight(form)
    live.cohorts = state.round  # a run that went on without a clock has drawn so many
    return live
