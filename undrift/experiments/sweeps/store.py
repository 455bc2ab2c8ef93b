"""Trials kept by Optuna in an SQLite file, a study a method.

Only finished trials are written, each in one transaction: whatever kills a sweep leaves whole trials and nothing else.
A trial that is running lives in a study in memory, which knows all earlier trials of its method; its sampler is made
again for every trial from (seed, number), so that an interruption changes nothing.

Every trial has a checksum of what is in it, and the file a copy, written after each trial: where the file is damaged its
copy takes its place, with a warning, and what it lacks is tried again, which gives the same.
"""

import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput, first_line, shortened
from undrift.experiments.runs.files import Damaged, checksum_of, copy_of, write_aside
from undrift.experiments.sweeps.plan import MethodSearch, Plan
from undrift.experiments.sweeps.space import Candidates, Range
from undrift.experiments.sweeps.trial import Outcome, TrialDone
from undrift.metrics.quality import higher_is_better

log = logging.getLogger("undrift")

DATABASE = "sweep.db"
CHECK = "crc32"  # of a trial, among what is kept of it
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
        self.optuna, self.metric, self.path = optuna(), metric, directory / DATABASE
        self.direction = "maximize" if higher_is_better(metric) else "minimize"
        path, copy = self.path, copy_of(self.path)
        if not path.exists() and not copy.exists():  # made aside: under its own name it is always whole
            aside = directory / f".{DATABASE}.part"
            aside.unlink(missing_ok=True)
            self._open(aside)
            for label in labels:
                self.optuna.create_study(study_name=label, storage=self.storage, direction=self.direction)
            self.close()
            os.replace(aside, path)
        else:
            self._mend(path, copy, *damages_in(path, labels, self.direction))
        self._open(path)

    def _mend(self, path: Path, copy: Path, damaged: str | None, copy_damaged: str | None) -> None:
        """Put the one of the two that is sound in the place of the other."""
        if damaged is not None and copy_damaged is not None:
            raise Damaged(
                f"{path} is damaged ({damaged}), and there is no sound copy: remove it, and the trials are run again"
            )
        if damaged is not None:
            log.warning("%s is damaged (%s): its copy is used", path, damaged)
            path.with_name(f"{DATABASE}-journal").unlink(missing_ok=True)
            write_aside(path, copy.read_bytes())
        elif copy_damaged is not None and copy.exists():
            log.warning("%s is damaged (%s): it is written anew", copy, copy_damaged)
            write_aside(copy, path.read_bytes())

    def _open(self, path: Path) -> None:
        self.storage = _storage(path)

    def save_copy(self) -> None:
        """Copy the database as it is after a trial."""
        write_aside(copy_of(self.path), self.path.read_bytes())

    def close(self) -> None:
        _close(self.storage)

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
        finished.set_user_attr(CHECK, _check_of(self.search.label, finished))
        self.store.study(self.search.label).add_trial(finished)
        self.store.save_copy()
        number = self.trial.number
        return self.store._read(self.search, number, self.chosen, kept)


# whether it is what was written


def damages_in(path: Path, labels: Iterable[str] | None, direction: str | None) -> tuple[str | None, str | None]:
    """What is wrong with a database of trials, and with its copy; None for nothing.  It is never behind a sound copy."""
    found, copied = (_read_aside(each, labels, direction) for each in (path, copy_of(path)))
    if isinstance(found, str):
        return found, copied if isinstance(copied, str) else None
    if isinstance(copied, str):
        return None, copied
    lacks = any(found.get(label, 0) < n for label, n in copied.items())
    return "it lacks trials that its copy has" if lacks else None, None


def _read_aside(path: Path, labels: Iterable[str] | None, direction: str | None) -> dict[str, int] | str:
    """How many sound trials there are of every method, or what is wrong; of a copy in a temporary folder, so nothing is written."""
    with tempfile.TemporaryDirectory(prefix="undrift-sweep-") as folder:
        for each in (path, path.with_name(f"{path.name}-journal")):
            if each.is_file():
                shutil.copy(each, Path(folder) / each.name.lstrip("."))
        try:
            return _trials_in(Path(folder) / path.name.lstrip("."), labels, direction)
        except _Broken as error:
            return str(error)
        except Exception as error:  # of SQLite, SQLAlchemy or Optuna, in what a bit has made of a table
            return shortened(first_line(error)) or type(error).__name__


class _Broken(Exception):
    """What a database of trials must not be."""


def _trials_in(path: Path | str, labels: Iterable[str] | None, direction: str | None) -> dict[str, int]:
    """How many sound trials there are of every method."""
    if not Path(path).is_file():
        raise _Broken("it is not there")
    with closing(sqlite3.connect(path)) as connection:
        (said, *_) = connection.execute("pragma integrity_check").fetchone()
    if said != "ok":
        raise _Broken(shortened(first_line(said)))
    storage = _storage(Path(path))
    try:
        library = optuna()
        studies = {
            study.study_name: study for study in library.get_all_study_summaries(storage, include_best_trial=False)
        }
        for label in studies if labels is None else labels:
            if label not in studies:
                raise _Broken(f"there is nothing of {label}")
            if direction is not None and studies[label].direction.name.lower() != direction:
                raise _Broken(f"trials of {label} would be judged the other way round")
        found = {
            label: library.load_study(study_name=label, storage=storage).get_trials(deepcopy=False) for label in studies
        }
        for label, trials in found.items():
            for n, trial in enumerate(trials):
                known = trial.user_attrs.get(CHECK)
                if trial.number != n or (known is not None and known != _check_of(label, trial)):
                    raise _Broken(f"trial {n + 1} of {label} is not what was written")
        return {label: len(trials) for label, trials in found.items()}
    finally:
        _close(storage)


def _check_of(label: str, trial: Any) -> int:
    """The checksum of a finished trial."""
    write = optuna().distributions.distribution_to_json
    return checksum_of(
        {
            "of": [label, trial.number, trial.state.name, trial.values],
            "params": dict(trial.params),
            "distributions": {path: write(each) for path, each in trial.distributions.items()},
            "reported": {str(step): value for step, value in trial.intermediate_values.items()},
            "kept": {name: value for name, value in trial.user_attrs.items() if name != CHECK},
        }
    )


def _storage(path: Path) -> Any:
    try:
        return optuna().storages.RDBStorage(f"sqlite:///{path.absolute()}")
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(
            f"{path} cannot be used ({reason}): remove the directory and start the sweep again"
        ) from error


def _close(storage: Any) -> None:
    storage.remove_session()
    storage.engine.dispose()
