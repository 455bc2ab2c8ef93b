"""Trials kept by Optuna in an SQLite file, a study a method.

Only finished trials are written, each in one transaction: whatever kills a sweep leaves whole trials and nothing else.
A trial that is running lives in a study in memory, which knows all earlier trials of its method; its sampler is made
again for every trial from (seed, number), so that an interruption changes nothing.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.experiments.sweeps.plan import MethodSearch, Plan
from undrift.experiments.sweeps.space import Candidates, Range
from undrift.experiments.sweeps.trial import Outcome, TrialDone
from undrift.metrics.quality import higher_is_better

DATABASE = "sweep.db"
STARTUP = 5  # finished trials before any is pruned
WARMUP = 0.25  # of the rounds, in which none is


def optuna() -> Any:
    """The library, which is an extra."""
    try:
        import optuna
    except ImportError:
        raise InvalidInput('a sweep needs Optuna, which is not installed: pip install "undrift[sweep]"') from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Store:
    """The database of a sweep's directory."""

    def __init__(self, directory: Path, labels: Iterable[str], metric: str):
        self.optuna, self.metric, path = optuna(), metric, directory / DATABASE
        self.direction = "maximize" if higher_is_better(metric) else "minimize"
        if not path.exists():  # made aside: under its own name it is always whole
            aside = directory / f".{DATABASE}.part"
            aside.unlink(missing_ok=True)
            self._open(aside)
            for label in labels:
                self.optuna.create_study(study_name=label, storage=self.storage, direction=self.direction)
            self.close()
            os.replace(aside, path)
        self._open(path)

    def _open(self, path: Path) -> None:
        try:
            self.storage = self.optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}")
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput(
                f"{path} cannot be used ({reason}): remove the directory and start the sweep again"
            ) from error

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    def study(self, label: str) -> Any:
        return self.optuna.load_study(study_name=label, storage=self.storage)

    def trials(self, search: MethodSearch) -> list[TrialDone]:
        """The finished trials of a method."""
        return [
            self._read(search, trial.number, trial.params, trial.user_attrs)
            for trial in self.study(search.label).get_trials(deepcopy=False)
        ]

    def _read(self, search: MethodSearch, number: int, chosen: dict[str, Any], kept: Mapping[str, Any]) -> TrialDone:
        ended = Outcome(kept["state"], tuple(kept["qualities"]), kept["reason"])
        ordered = {path: chosen[path] for path in search.choices}
        return TrialDone(search.label, number, search.trials, self.metric, ordered, kept["words"], ended)

    def ask(self, search: MethodSearch, plan: Plan, rounds: int) -> "Asked":
        """The next trial of a method, with its parameters."""
        earlier = self.study(search.label).trials
        number = len(earlier)
        study = self.optuna.create_study(
            direction=self.direction,
            sampler=self._sampler(plan, number),
            pruner=self.optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=int(WARMUP * rounds)),
        )
        study.add_trials(earlier)
        if search.points is not None:
            study.enqueue_trial(search.points[number])
        return Asked(self, search, study, study.ask(self._distributions(search.choices)))

    def _sampler(self, plan: Plan, number: int) -> Any:
        seed = int(np.random.SeedSequence([plan.seed, number]).generate_state(1)[0])
        if plan.sampler == "tpe":
            return self.optuna.samplers.TPESampler(seed=seed)
        return self.optuna.samplers.RandomSampler(seed=seed)

    def _distributions(self, choices: Mapping[str, Candidates]) -> dict[str, Any]:
        kinds = self.optuna.distributions

        def of(choice: Candidates) -> Any:
            if not isinstance(choice, Range):
                return kinds.CategoricalDistribution(choice)
            if choice.whole:
                return kinds.IntDistribution(int(choice.low), int(choice.high), log=choice.log)
            return kinds.FloatDistribution(choice.low, choice.high, log=choice.log)

        return {path: of(choice) for path, choice in choices.items()}


class Asked:
    """A running trial."""

    def __init__(self, store: Store, search: MethodSearch, study: Any, trial: Any):
        self.store, self.search, self.study, self.trial = store, search, study, trial
        self.chosen: dict[str, Any] = trial.params

    def tell(self, ended: Outcome, words: dict[str, Any]) -> TrialDone:
        """Write how it ended."""
        states = self.store.optuna.trial.TrialState
        kept = {"state": ended.state, "qualities": list(ended.qualities), "reason": ended.reason, "words": words}
        for key, value in kept.items():
            self.trial.set_user_attr(key, value)
        if ended.state == "done":
            finished = self.study.tell(self.trial, ended.quality)
        else:  # what diverged is to Optuna a trial that was pruned
            finished = self.study.tell(self.trial, state=states.PRUNED)
        self.store.study(self.search.label).add_trial(finished)
        number = self.trial.number
        return self.store._read(self.search, number, self.chosen, kept)
