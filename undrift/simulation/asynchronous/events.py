"""The engine "events": a run in virtual time."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.metrics.evaluator import Evaluator
from undrift.problems import Problem
from undrift.simulation.asynchronous.async_state import AsyncSnapshot, AsyncState
from undrift.simulation.asynchronous.buffered_rounds import play_buffered_round
from undrift.simulation.asynchronous.clock import VirtualClock
from undrift.simulation.asynchronous.policies import Buffer, ServerPolicy
from undrift.simulation.asynchronous.population import Population
from undrift.simulation.asynchronous.virtual_buffer import VirtualBuffer
from undrift.simulation.asynchronous.virtual_transport import VirtualTransport
from undrift.simulation.driver import play as play_rounds
from undrift.simulation.engines import EngineChoice
from undrift.simulation.engines.choice import preference
from undrift.simulation.results import Round, State
from undrift.simulation.transport import RunPlan

EVENT_ENGINES = {"events": "auto", "events-sequential": "sequential", "events-batched": "batched"}


def asked_for(engine: str | EngineChoice, population: Any, server: Any) -> bool:
    """Whether a run is to be in virtual time."""
    given = population is not None or server is not None
    if isinstance(engine, EngineChoice) and engine.engine == "ray":
        engine = "ray"
    if given and isinstance(engine, str) and engine not in (*EVENT_ENGINES, "auto"):
        raise InvalidInput(f"population and server are for runs in virtual time: use engine='events', not {engine!r}")
    return given or engine in EVENT_ENGINES


def inner_engine(engine: str | EngineChoice, population: Population, problem: Problem) -> str | EngineChoice:
    """The engine that visits clients: not compiled, since who is computed together differs from time to time.

    Where nothing takes time there is a reference to be equal to, bit for bit: the sequential engine.
    """
    if isinstance(engine, EngineChoice):
        return engine
    inner = EVENT_ENGINES.get(engine, "auto")
    if inner != "auto":
        return inner
    return "sequential" if population.instant else preference(problem)[0]


def play_events(
    plan: RunPlan, population: Population, policy: ServerPolicy, state: State, evaluator: Evaluator, last: int
) -> Iterator[Round]:
    """A round for every step of the server."""
    live = _live_state(plan, state)
    state = replace(state, in_flight=live)
    clock = VirtualClock(plan, population, live, state.clients)
    if isinstance(policy, Buffer):
        buffer = VirtualBuffer(clock, policy, started=state.round > 0)
        return play_rounds(plan, buffer, state, evaluator, last, play_buffered_round)
    return play_rounds(plan, VirtualTransport(clock, policy), state, evaluator, last)


def empty_snapshot(down: Any) -> AsyncSnapshot:
    """What is in flight before the first round."""
    return AsyncState(down).record()


def has_visits(in_flight: Any) -> bool:
    """Whether visits are in flight."""
    return isinstance(in_flight, AsyncSnapshot) and len(in_flight.visits) > 0


def _live_state(plan: RunPlan, state: State) -> AsyncState:
    form = plan.algorithm.send(state.server)
    if state.in_flight is not None:
        return AsyncState.restored(state.in_flight, form)
    live = AsyncState(form)
    live.cohorts = state.round  # a run that began without a clock has drawn so many
    return live
