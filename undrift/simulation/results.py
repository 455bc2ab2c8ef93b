"""What a run yields and leaves: rounds, its state, its result."""

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from undrift.core.errors import unknown
from undrift.problems import Problem
from undrift.problems.protocols import FromModule
from undrift.simulation.client_states import ClientStates


@runtime_checkable
class Recordable(Protocol):
    """Something live that can be turned into a record of tensors."""

    def record(self) -> Any: ...


@dataclass(frozen=True)
class State:
    """All that a run needs to continue: its randomness has no state of its own.

    In virtual time `in_flight` holds the clock and every visit in flight: a record of tensors
    (`undrift.simulation.asynchronous.async_state.AsyncSnapshot`), in a round that has just been yielded the live object.
    """

    round: int
    server: Any
    clients: ClientStates
    in_flight: Any = None

    @property
    def flight(self) -> Any:
        """The name of `in_flight` in 0.1."""
        warnings.warn("State.flight is now State.in_flight", DeprecationWarning, stacklevel=2)
        return self.in_flight

    def settled(self) -> "State":
        """The same with what is in flight as a record, which a run that continues does not touch."""
        live = isinstance(self.in_flight, Recordable)
        return replace(self, in_flight=self.in_flight.record()) if live else self


@dataclass(frozen=True)
class Round:
    """What happened in one round.

    clients     who took part          left_out   who of them returned something unusable
    metrics     the metrics of the model after the round, if it was evaluated
    bytes_down, bytes_up               over all clients and exchanges (the initialisation round counts in round 1)
    exchanges   how often the wire was crossed
    time        virtual seconds since the beginning, and `timing`: who was how late (engine "events" only)
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
    timing: Any = field(default=None, repr=False)

    @property
    def x(self) -> Tensor:
        """The server's model after this round (not kept in a finished run's history)."""
        return self.state.server.x

    @property
    def state(self) -> State:
        """All there is after this round, as it is: the next round overwrites client states."""
        if self._state is None:
            raise AttributeError("a history keeps no models: use ud.rounds to see each one")
        return self._state

    def snapshot(self) -> State:
        """A state to resume from later, with `rounds(..., start=...)`; to be taken before the next round."""
        state = self.state
        return replace(state.settled(), clients=state.clients.copy(after_round=state.round))

    def without_state(self) -> "Round":
        """The same for a history, which keeps no models."""
        return replace(self, _state=None)


@dataclass(frozen=True)
class Best:
    """The best model that was evaluated: by accuracy where there is one, else by loss."""

    round: int
    value: float
    x: Tensor = field(repr=False)


def better(best: Best | None, r: Round) -> Best | None:
    """The best model so far, that of this round taken into account."""
    name, sign = ("accuracy", 1) if "accuracy" in r.metrics else ("loss", -1)
    value = r.metrics.get(name, math.nan)
    if not math.isfinite(value) or (best is not None and sign * value <= sign * best.value):
        return best
    return Best(r.round, value, r.x)


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

    def model(self) -> nn.Module:
        """The final model as an nn.Module, for problems made from one."""
        if not isinstance(self.problem, FromModule):
            raise TypeError(f"{type(self.problem).__name__} is not made from an nn.Module: use x")
        return self.problem.module(self.x)
