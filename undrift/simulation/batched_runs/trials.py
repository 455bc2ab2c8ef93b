"""One of several runs, what all of them have in common, and which of them can be one computation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torch import Tensor

from undrift.core.algorithm import Algorithm
from undrift.core.batched_scalar import NotBatchable, merge
from undrift.core.errors import Stopped
from undrift.local import Local
from undrift.metrics import Metric
from undrift.problems import Problem
from undrift.simulation.api import RunConfig, prepare
from undrift.simulation.engines.choice import EngineChoice
from undrift.simulation.participation import Participation
from undrift.simulation.results import Round, State

Played: TypeAlias = Round | Stopped  # a round of a run, or why there is none


@dataclass(frozen=True)
class Trial:
    """One of several runs; see `run_together`."""

    algorithm: Algorithm
    problem: Problem
    local: Local = field(default_factory=Local)
    seed: int = 0
    x0: Tensor | None = None


def batchable_sets(trials: Sequence[Trial]) -> list[list[int]]:
    """The numbers of trials that differ in floats, seeds and partitions only, set by set."""
    sets: list[list[int]] = []
    for n, trial in enumerate(trials):
        for members in sets:
            first = trials[members[0]]
            try:
                merge([first.algorithm, trial.algorithm])
                check_local([first.local, trial.local])
            except NotBatchable:
                continue
            members.append(n)
            break
        else:
            sets.append([n])
    return sets


def check_local(each: Sequence[Local]) -> None:
    """Raise NotBatchable unless the local solvers differ in floats only."""
    for name in ("steps", "epochs", "batch"):
        merge([vars(local)[name] for local in each], name)
    merge([local.solver(1) for local in each])


@dataclass(frozen=True)
class SharedConfig:
    """What all trials have in common."""

    rounds: int
    participation: Participation
    engine: str | EngineChoice
    evaluate_every: int
    metrics: Sequence[str | Metric] | str | None = None

    def config(self, trial: Trial, engine: str | EngineChoice | None = None) -> RunConfig:
        """A trial as a run by itself."""
        return RunConfig(
            trial.algorithm,
            trial.problem,
            self.rounds,
            self.participation,
            trial.local,
            engine=engine or self.engine,
            seed=trial.seed,
            x0=trial.x0,
            evaluate_every=self.evaluate_every,
            metrics=self.metrics,
        )

    def play_alone(
        self, trial: Trial, engine: str | EngineChoice | None = None, start: State | None = None
    ) -> Iterator[Played]:
        """The rounds of a trial by itself, checked at once; then, if it ends early, why, again and again."""
        config = self.config(trial, engine)
        if start is not None:
            config = replace(config, x0=None)
        return to_the_end(prepare(config).play(start))


def to_the_end(rounds: Iterator[Round]) -> Iterator[Played]:
    """The rounds of a run and then, if it ends early, why, again and again."""
    try:
        yield from rounds
    except Stopped as end:
        while True:
            yield end
