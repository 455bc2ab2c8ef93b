"""One of several runs, what all of them have in common, and which of them can be one computation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from undrift.core.algorithm import Algorithm
from undrift.core.batched_scalar import NotBatchable, merge
from undrift.core.errors import Stopped
from undrift.local.settings import Local
from undrift.problems import Problem
from undrift.simulation.driver import Round, State, rounds
from undrift.simulation.engines.choice import Choice
from undrift.simulation.participation import Participation

Ended: TypeAlias = Round | Stopped  # a round of a run, or why there is none


@dataclass(frozen=True)
class Trial:
    """One of several runs; see `run_together`."""

    algorithm: Algorithm
    problem: Problem
    local: Local = field(default_factory=Local)
    seed: int = 0
    x0: Tensor | None = None


def alike(trials: Sequence[Trial]) -> list[list[int]]:
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
        merge([getattr(local, name) for local in each], name)
    merge([local.solver(1) for local in each])


@dataclass(frozen=True)
class Setting:
    """What all trials have in common."""

    rounds: int
    participation: Participation
    engine: str | Choice
    evaluate_every: int

    def alone(
        self, trial: Trial, engine: str | Choice | None = None, start: State | None = None
    ) -> Iterator[Ended]:
        """The rounds of a trial by itself, checked at once; then, if it ends early, why, again and again."""
        playing = rounds(
            trial.algorithm,
            trial.problem,
            rounds=self.rounds,
            participation=self.participation,
            local=trial.local,
            engine=engine or self.engine,
            seed=trial.seed,
            x0=trial.x0 if start is None else None,
            evaluate_every=self.evaluate_every,
            start=start,
        )
        return to_the_end(playing)

    def evaluated(self, t: int) -> bool:
        return t % self.evaluate_every == 0 or t == self.rounds


def to_the_end(playing: Iterator[Round]) -> Iterator[Ended]:
    """The rounds of a run and then, if it ends early, why, again and again."""
    try:
        yield from playing
    except Stopped as end:
        while True:
            yield end
