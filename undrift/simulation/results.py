"""What a run yields and leaves: rounds, its state, its result."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from undrift.core.errors import unknown
from undrift.core.hyper import check_value
from undrift.local.parameters import initial_of
from undrift.metrics.quality import usual_last
from undrift.problems import Problem
from undrift.problems.protocols import FromModule
from undrift.simulation.averages import RunningAverage, pick
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
    pseudo_gradients: tuple[Tensor, ...] = ()  # mean ones of the last rounds, where a metric asks for them
    averages: Mapping[str, RunningAverage] = field(default_factory=dict)  # of the models so far, if they are asked for
    privacy: Any = None  # the ud.Privacy that all rounds so far have had, with its noise, and the participation
    N: int | None = None  # clients of the federation, and the seed of the run; None: not known
    seed: int | None = None

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


UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


class Presenter(Protocol):
    """What draws and reports runs, in a higher layer: `undrift.experiments.comparison`."""

    def plot(self, run: "FinishedRun", metric: str | None, against: str, ax: Any, best_so_far: bool) -> Any: ...
    def report(self, run: "FinishedRun", path: Any, options: Mapping[str, Any]) -> Any: ...


_presenters: list[Presenter] = []


def present_with(presenter: Presenter) -> None:
    """Draw and report runs with this."""
    _presenters[:] = [presenter]


def _presenter() -> Presenter:
    if not _presenters:
        import_module("undrift.public")  # all layers, of which one presents
    return _presenters[0]


class FinishedRun:
    """What can be asked of a run, whether it was played just now (`Result`) or read from a directory (`ud.load_run`).

    label     the method in words           planned   rounds that it was to have       seed
    engine    how clients were computed     history   every round, without models      stopped   why it ended early
    """

    problem: Problem
    state: State
    history: list[Round]
    stopped: str | None
    best: "Best | None"
    label: str
    planned: int
    seed: int
    engine: Any

    @property
    def x(self) -> Tensor:
        """The final model of the server, flat."""
        return self.state.server.x

    def average(self, name: str = "") -> Tensor:
        """A mean of the run's models, flat, as asked for with `average=`; by name, if there are several."""
        return pick(self.state.averages, name, self.x)

    def model(self, client: int | None = None) -> nn.Module:
        """The final model as an nn.Module, for problems made from one; that of a client, with the parameters of its own."""
        if not isinstance(self.problem, FromModule):
            raise TypeError(f"{type(self.problem).__name__} is not made from an nn.Module: use x")
        if client is None or initial_of(self.problem) is None:
            return self.problem.module(self.x)
        (own,) = self.state.clients.gather([client]).local_parameters
        return self.problem.module(torch.cat([self.x, own]), client)

    def final(self, metric: str, last: int | None = None) -> float:
        """A run's quality as reports tell it: the mean over the last rounds in which the metric was recorded.

        last   how many of them; by default a tenth, at least 1, at most the 100 of the papers
        """
        check_value("final", "last", last, int, default=None, within="[1, inf)")
        values = [r.metrics[metric] for r in self.history if metric in r.metrics]
        if not values:
            raise unknown("metric", metric, {name for r in self.history for name in r.metrics})
        kept = values[-(usual_last(len(values)) if last is None else last) :]
        return sum(kept) / len(kept)

    @property
    def bytes(self) -> int:
        """Sent over all rounds, down and up."""
        return sum(r.bytes_down + r.bytes_up for r in self.history)

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary a round: number, metrics, bytes of the round and by its end, seconds, participants."""
        sent, found = 0, []
        for r in self.history:
            sent += r.bytes_down + r.bytes_up
            row: dict[str, Any] = {"round": r.round, **r.metrics}
            row |= {"bytes_down": r.bytes_down, "bytes_up": r.bytes_up, "cumulative_bytes": sent}
            row |= {"seconds": r.seconds, "participants": len(r.clients)}
            found.append(row if r.time is None else row | {"virtual_seconds": r.time})
        return found

    def frame(self) -> Any:
        """The history as a pandas DataFrame, a row a round; where nothing was evaluated there is NaN.

        >>> import torch, undrift as ud
        >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
        >>> ud.run(ud.FedAvg(), problem, rounds=3).frame()["round"].tolist()
        [1, 2, 3]
        """
        return to_frame(self.rows())

    def plot(
        self, metric: str | None = None, against: str = "rounds", ax: Any = None, best_so_far: bool = False
    ) -> Any:
        """Draw a metric over the run; returns matplotlib axes.

        metric    the accuracy by default where it was recorded, else the loss
        against   "rounds", "bytes" (down and up, over all clients), "seconds" or "virtual" (seconds of virtual time)
        ax        axes to draw into; new ones by default
        best_so_far   draw the best that the run has had by then: smooth where a metric jumps from round to round
        """
        return _presenter().plot(self, metric, against, ax, best_so_far)

    def report(self, path: Any, **options: Any) -> Any:
        """Write report.html, curves.png, summary.csv and rounds.csv into a folder; returns the path of the page.

        options   target, metric, last: as for `undrift report`
        """
        return _presenter().report(self, path, options)

    def facts(self) -> dict[str, str]:
        """The run in a few words: rounds, last metrics, bytes, engine."""
        done = self.history[-1].round if self.history else 0
        last = next((r.metrics for r in reversed(self.history) if r.metrics), {})
        found = {"rounds": f"{done}" if done == self.planned else f"{done} of {self.planned}"}
        found |= {name: f"{value:.4g}" for name, value in last.items()}
        found["sent"] = next(
            f"{self.bytes / size:.3g} {unit}" for size, unit in UNITS if self.bytes >= size or size == 1
        )
        if self.engine is not None:
            found["engine"] = str(self.engine)
        return found if self.stopped is None else found | {"stopped": self.stopped}

    def __repr__(self) -> str:
        said = "; ".join(f"{name} {value}" for name, value in self.facts().items())
        return f"{type(self).__name__}({self.label}, seed {self.seed}; {said})"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in self.facts().items()
        )
        return f"<table><caption>{escape(self.label)}, seed {self.seed}</caption>{cells}</table>"


@dataclass(frozen=True, repr=False)
class Result(FinishedRun):
    """A finished run: what `ud.run` returns.  `config` is what it was asked for, `engine` what was chosen.

    >>> import torch, undrift as ud
    >>> problem = ud.Quadratic(torch.ones(2, 1, 1), torch.tensor([[1.0], [3.0]]))
    >>> ud.run(ud.FedAvg(), problem, rounds=2, local=ud.Local(lr=0.5))
    Result(FedAvg(server_lr=1.0), seed 0; rounds 2; loss -1.875; gap 0.125; grad_norm 0.5; distance 0.5; sent 32 B; engine clients in chunks of 2, batched)
    """

    problem: Problem
    state: State
    history: list[Round]
    stopped: str | None = None  # why it ended early
    best: Best | None = None
    config: Any = None
    engine: Any = None

    @property
    def label(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "a run" if self.config is None else repr(self.config.algorithm)

    @property
    def planned(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.history) if self.config is None else self.config.rounds

    @property
    def seed(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0 if self.config is None else self.config.seed


def to_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas DataFrame."""
    try:
        import pandas  # which need not be installed, and is slow to import
    except ImportError as error:
        raise ImportError("frame() needs pandas: pip install pandas; rows() gives the same as dictionaries") from error
    return pandas.DataFrame.from_records(rows, columns=list(dict.fromkeys(name for row in rows for name in row)))
