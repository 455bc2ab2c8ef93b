"""Runs played as one computation, set by set of those that are alike, or one by one where that cannot be."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from undrift.core.batched_scalar import NotBatchable
from undrift.core.errors import InvalidInput
from undrift.metrics import Metric
from undrift.simulation.batched_runs.batch import Batch, own_state
from undrift.simulation.batched_runs.trials import Played, SharedConfig, Trial, batchable_sets
from undrift.simulation.checks import fit_to_run
from undrift.simulation.engines.choice import EngineChoice
from undrift.simulation.participation import Everyone, Participation
from undrift.simulation.results import Best, Result, Round, State, better

log = logging.getLogger("undrift")


def run_together(
    trials: Sequence[Trial],
    *,
    rounds: int,
    participation: Participation | None = None,
    engine: str | EngineChoice = "auto",
    evaluate_every: int = 1,
    metrics: Sequence[str | Metric] | str | None = None,
) -> list[Result]:
    """Run trials that differ in seeds, step sizes or other floats as one computation; each equals `ud.run` alone.

    Trials that cannot be one computation are run one by one, after a line of notice (INFO) that says why.

    >>> import torch, undrift as ud, torch.nn.functional as F
    >>> data = torch.randn(60, 2), torch.arange(60) % 3
    >>> problem = ud.federate(data, model=torch.nn.Linear(2, 3), loss=F.cross_entropy, clients=ud.IID(4))
    >>> trials = [Trial(ud.FedAvg(), problem, ud.Local(steps=2, lr=lr), seed) for lr in (0.1, 0.5) for seed in (0, 1)]
    >>> [len(result.history) for result in run_together(trials, rounds=3)]
    [3, 3, 3, 3]
    """
    history: list[list[Round]] = [[] for _ in trials]
    best: list[Best | None] = [None for _ in trials]
    last: list[State | None] = [None for _ in trials]
    stopped: list[str | None] = [None for _ in trials]
    shared = SharedConfig(rounds, participation or Everyone(), engine, evaluate_every, metrics)
    for each in _play_all(trials, shared):
        for n, r in enumerate(each):
            if isinstance(r, Round):
                best[n], last[n] = better(best[n], r), r._state
                history[n].append(r.without_state())
            elif stopped[n] is None:
                last[n], stopped[n] = cast(State, r.state), str(r)
                log.warning("stopped: %s", stopped[n])
    found: list[Result] = []
    for n, trial in enumerate(trials):
        state = last[n]
        assert state is not None
        found.append(Result(trial.problem, own_state(state), history[n], stopped[n], best[n], shared.config(trial)))
    return found


def rounds_together(
    trials: Sequence[Trial],
    *,
    rounds: int,
    participation: Participation | None = None,
    engine: str | EngineChoice = "auto",
    evaluate_every: int = 1,
    metrics: Sequence[str | Metric] | str | None = None,
) -> Iterator[list[Played]]:
    """The same round by round: an item per trial, its round or, after its end, why it has ended.

    Everything is checked here, before the first round.
    """
    return _play_all(trials, SharedConfig(rounds, participation or Everyone(), engine, evaluate_every, metrics))


def _play_all(trials: Sequence[Trial], shared: SharedConfig) -> Iterator[list[Played]]:
    if not trials:
        raise InvalidInput("no trials to run: give at least one")
    for trial in trials:
        if not isinstance(trial, Trial):
            raise InvalidInput(f"each trial is ud.Trial(method, problem, local, seed), got {trial!r}")
    trials = [_fit(trial, shared) for trial in trials]
    sets = [(members, _play([trials[n] for n in members], shared)) for members in batchable_sets(trials)]
    return _side_by_side(sets, shared.rounds)


def _fit(trial: Trial, shared: SharedConfig) -> Trial:
    local = trial.local.for_run(shared.rounds)
    algorithm = fit_to_run(trial.algorithm, trial.problem.N, shared.participation, shared.rounds, local)
    return replace(trial, local=local, algorithm=algorithm)


def _play(trials: Sequence[Trial], shared: SharedConfig) -> Iterator[list[Played]]:
    """The rounds of alike trials: as one computation, or one by one if that cannot be."""
    if len(trials) > 1:
        try:
            return Batch(trials, shared).play()
        except NotBatchable as why:
            log.info("runs are computed one by one: %s", why)
    each = [shared.play_alone(trial) for trial in trials]
    return (list(row) for row in zip(*each, strict=False))


def _side_by_side(sets: Sequence[tuple[list[int], Iterator[list[Played]]]], last: int) -> Iterator[list[Played]]:
    for _ in range(last):
        found: dict[int, Played] = {}
        for members, playing in sets:
            found |= zip(members, next(playing), strict=True)
        yield [found[n] for n in range(len(found))]
        if not any(isinstance(r, Round) for r in found.values()):
            return  # nothing is left to do
