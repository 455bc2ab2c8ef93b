"""One trial: a method with certain parameters, run with every seed."""

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from undrift.core.errors import Diverged, Stopped
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federation
from undrift.experiments.runs.running import config_of
from undrift.metrics.quality import higher_is_better, usual_first
from undrift.problems.model import ModelProblem
from undrift.simulation.api import RunConfig, prepare
from undrift.simulation.batched_runs import Played, Trial, rounds_together, to_the_end
from undrift.simulation.results import Round

REPORTS = 100  # of a trial to the pruner, at most

Metrics = dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: `qualities`, one a seed, if it is done; else why not."""

    state: Literal["done", "pruned", "diverged", "deserted"]
    qualities: tuple[float, ...] = ()
    reason: str = ""

    @property
    def quality(self) -> float:
        """The mean over seeds."""
        return sum(self.qualities) / len(self.qualities) if self.qualities else math.nan


class Watcher(Protocol):
    """Whoever may end a trial early (an Optuna trial)."""

    def report(self, value: float, step: int) -> None: ...
    def should_prune(self) -> bool: ...


def group_curves(experiment: Experiment, problems: Mapping[int, ModelProblem]) -> Iterator[tuple[int, list[Metrics]]]:
    """Run a method with every seed, side by side: the metrics of all seeds after every evaluated round.

    The one place where trials are computed.
    """
    for each in _side_by_side(_runs(experiment, problems)):
        yield from _evaluated(each)


def run_trials(
    experiments: Sequence[Experiment], problems: Mapping[int, ModelProblem], metric: str, last: int
) -> list[Outcome]:
    """How several trials end, all of them and all seeds as one computation where that can be."""
    runs = [run for experiment in experiments for run in _runs(experiment, problems)]
    # without the models of every round, which would fill the memory
    rounds = [[r.without_state() if isinstance(r, Round) else r for r in each] for each in _side_by_side(runs)]
    width = len(problems)

    def curve(n: int) -> Iterator[tuple[int, list[Metrics]]]:
        for each in rounds:
            yield from _evaluated(each[n * width : (n + 1) * width])

    return [judge_trial(curve(n), metric, last, None) for n in range(len(experiments))]


def played_together(
    experiment: Experiment, problems: Mapping[int, ModelProblem]
) -> tuple[list[list[Round]], str | None]:
    """The rounds of a method with every seed, without its states, and why it ended early, if it did."""
    histories: list[list[Round]] = [[] for _ in problems]
    for each in _side_by_side(_runs(experiment, problems)):
        for history, r in zip(histories, each, strict=True):
            if isinstance(r, Stopped):
                return histories, str(r)
            history.append(r.without_state())
    return histories, None


def _runs(experiment: Experiment, problems: Mapping[int, ModelProblem]) -> list[RunConfig]:
    (label,) = experiment.labels
    return [config_of(experiment.single(label, seed), Federation(problem, {})) for seed, problem in problems.items()]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Clients that are left out are no news in a trial: that a step size is too large is what it is to find out."""
    log = logging.getLogger("undrift.clients")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _side_by_side(runs: Sequence[RunConfig]) -> Iterator[list[Played]]:
    """The rounds of runs; an item a run, its round or why it has ended."""
    first = runs[0]
    with _without_warnings():
        if first.timed or first.codec is not None or first.privacy is not None:  # which one computation does not have
            alone = [to_the_end(prepare(run).play()) for run in runs]
            yield from map(list, zip(*alone, strict=False))
        else:
            yield from rounds_together(
                [Trial(run.algorithm, run.problem, run.local, run.seed) for run in runs],
                rounds=first.rounds,
                participation=first.participation,
                engine=first.engine,
                evaluate_every=first.evaluate_every,
            )


def _evaluated(each: Sequence[Played]) -> Iterator[tuple[int, list[Metrics]]]:
    """The metrics of a trial's seeds after a round, if it was evaluated; raises what the first to end has ended with."""
    metrics = []
    for r in each:
        if isinstance(r, Stopped):
            raise r
        metrics.append(r.metrics)
    if metrics[0]:
        yield cast(Round, each[0]).round, metrics


def judge_trial(
    evaluated: Iterator[tuple[int, list[Metrics]]], metric: str, last: int, watcher: Watcher | None, every: int = 1
) -> Outcome:
    """Follow a trial to its end, or until it is hopeless."""
    seen: deque[list[float]] = deque(maxlen=last)
    try:
        for number, (round, metrics) in enumerate(evaluated):
            if not all(math.isfinite(m["loss"]) for m in metrics):
                return Outcome("diverged", reason=f"the loss is not finite after round {round}")
            seen.append([m[metric] for m in metrics])
            if watcher is not None and number % every == 0:
                watcher.report(sum(seen[-1]) / len(metrics), round)
                if watcher.should_prune():
                    reason = f"worse than the median of earlier trials after round {round}"
                    return Outcome("pruned", reason=reason)
    except Stopped as end:
        state = "diverged" if isinstance(end, Diverged) else "deserted"
        return Outcome(state, reason=str(end))
    return Outcome("done", tuple(sum(values) / len(values) for values in zip(*seen, strict=True)))


def metric_of(problem: ModelProblem) -> str:
    """What trials are judged by: accuracy where there is one, else loss."""
    return usual_first(problem.evaluate(problem.x0))[0]


@dataclass(frozen=True)
class TrialDone:
    """A trial of a sweep that has ended.

    number    its place among the trials of its method, from 0       of   how many there will be
    chosen    the parameters, as the space names them                words   the resulting [algorithms.LABEL]
    """

    label: str
    number: int
    of: int
    metric: str
    chosen: dict[str, Any]
    words: dict[str, Any]
    outcome: Outcome


def best_of(trials: Sequence[TrialDone]) -> TrialDone | None:
    """The best finished one, the first of equals."""
    done = [t for t in trials if t.outcome.state == "done"]
    if not done:
        return None
    sign = 1 if higher_is_better(done[0].metric) else -1
    return max(done, key=lambda t: sign * t.outcome.quality)
