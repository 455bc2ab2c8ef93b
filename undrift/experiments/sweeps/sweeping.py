"""A sweep in its directory: trials of every method in turn, resumable after any interruption.

sweep.toml   the experiment, the space and the plan: a sweep that is called again must be the same; it has a copy
sweep.db     finished trials (Optuna, SQLite), each with a checksum; it has a copy
trials.csv   the same as a table
best.toml    the experiment with the best parameters of each method, for `undrift run`

`.checksums.json` says what the TOML and CSV files are.
"""

import csv
import io
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch

from undrift.core.errors import InvalidInput
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federation, federation
from undrift.experiments.config.toml import Origin, from_dict, to_dict, to_toml
from undrift.experiments.runs.files import Damaged, hold, read_marked, write_marked
from undrift.experiments.runs.running import config_of
from undrift.experiments.sweeps.chosen import check_values, edges, method_words, with_chosen, with_methods
from undrift.experiments.sweeps.plan import MethodSearch, Plan, plan_searches
from undrift.experiments.sweeps.space import space_from_dict, space_to_dict
from undrift.experiments.sweeps.store import Asked, Store, optuna
from undrift.experiments.sweeps.trial import (
    REPORTS,
    Outcome,
    TrialDone,
    best_of,
    group_curves,
    judge_trial,
    metric_of,
    run_trials,
)
from undrift.experiments.sweeps.validation import with_held_out
from undrift.metrics.quality import spread
from undrift.problems.model import ModelProblem
from undrift.simulation.api import prepare

SWEEP, TRIALS, BEST = "sweep.toml", "trials.csv", "best.toml"
RUNS_PER_BATCH = 64  # runs that are one computation


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked and ready.

    problems   by seed, what trials run on: evaluated on held-out data, or on test data if the plan says so
    whole      the first seed's federation with all of its data
    metric     what trials are judged by, the mean over `last` evaluated rounds
    """

    experiment: Experiment
    plan: Plan
    searches: tuple[MethodSearch, ...]
    problems: Mapping[int, ModelProblem]
    whole: ModelProblem
    metric: str
    last: int
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class SweepResult:
    """What a sweep has found of a method so far."""

    search: MethodSearch
    trials: tuple[TrialDone, ...]
    best: TrialDone | None
    edges: tuple[str, ...]  # parameters that might be better outside of the space

    def count(self, state: str) -> int:
        return sum(trial.outcome.state == state for trial in self.trials)


def plan_sweep(experiment: Experiment, plan: Plan, make: Callable[[int], Federation] | None = None) -> Sweep:
    """A sweep; everything in it is checked, so that nothing begins that cannot end.

    make   the federation of a seed; the experiment's own if not given
    """
    optuna()
    parts = tuple(plan_searches(experiment, plan))
    seeds = plan.seeds_of(experiment)
    judged = experiment.evaluation.model_copy(update={"metrics": ["test"]})
    own = experiment.model_copy(update={"evaluation": judged})
    made = {s: federation(own, s) if make is None else make(s) for s in seeds}
    problems = {s: with_held_out(f.problem, plan.validate, s) if plan.validate else f.problem for s, f in made.items()}
    whole = made[seeds[0]].problem
    for search in parts:
        first = check_values(experiment, search).single(search.label, seeds[0])
        prepare(config_of(first, Federation(problems[seeds[0]], {})))
    metric = metric_of(problems[seeds[0]])
    last, checksums = plan.last_of(experiment), made[seeds[0]].checksums
    return Sweep(experiment, plan, parts, problems, whole, metric, last, checksums)


def run_sweep(experiment: Experiment, plan: Plan, directory: Path) -> Iterator[TrialDone]:
    """Run the remaining trials of a sweep; yields each when it has ended.

    Stopped at any moment, by any means, and called again, it finds what an uninterrupted sweep would have.
    """
    return continue_sweep(plan_sweep(experiment, plan), directory)


def continue_sweep(sweep: Sweep, directory: Path) -> Iterator[TrialDone]:
    """The trials that are left of a sweep, in turn over its methods; refuses the directory of another sweep at once."""
    _claim(sweep, directory)
    return _carried_out(sweep, directory)


def _carried_out(sweep: Sweep, directory: Path) -> Iterator[TrialDone]:
    with hold(directory), _store(sweep, directory) as store:
        if sweep.experiment.threads is not None:
            torch.set_num_threads(sweep.experiment.threads)
        done = {search.label: store.trials(search) for search in sweep.searches}
        _write(sweep, directory, done)
        ahead: dict[tuple[str, int], Outcome] = {}
        for number in range(max(search.trials for search in sweep.searches)):
            for search in sweep.searches:
                mine = done[search.label]
                if len(mine) <= number < search.trials:
                    if _one_computation(sweep, search) and (search.label, number) not in ahead:
                        ahead |= _block(sweep, search, number)
                    asked = store.ask(search, sweep.plan, sweep.experiment.rounds)
                    mine.append(_tried(sweep, asked, mine, ahead.pop((search.label, number), None)))
                    _write(sweep, directory, done)
                    yield mine[-1]


def _store(sweep: Sweep, directory: Path) -> closing[Store]:
    return closing(Store(directory, [search.label for search in sweep.searches], sweep.metric))


def _one_computation(sweep: Sweep, search: MethodSearch) -> bool:
    """Whether trials are known beforehand, followed to their end, and of a model that is faster together."""
    engine = sweep.experiment.engine
    name = engine if isinstance(engine, str) else engine.engine
    batched = next(iter(sweep.problems.values())).engine == "batched"
    possible = name in ("auto", "batched", "compiled") and not sweep.experiment.timed and batched
    return search.points is not None and not sweep.plan.pruning and possible


def _block(sweep: Sweep, search: MethodSearch, number: int) -> dict[tuple[str, int], Outcome]:
    """The outcomes of a trial and its neighbours, computed at once; blocks are the same wherever a sweep goes on."""
    assert search.points is not None
    size = max(1, RUNS_PER_BATCH // len(sweep.problems))
    begin = number // size * size
    points = search.points[begin : begin + size]
    experiments = [with_chosen(sweep.experiment, search.label, point) for point in points]
    found = run_trials(experiments, sweep.problems, sweep.metric, sweep.last)
    return {(search.label, begin + n): ended for n, ended in enumerate(found)}


def _tried(sweep: Sweep, asked: Asked, earlier: Sequence[TrialDone], ended: Outcome | None) -> TrialDone:
    label = asked.search.label
    words = method_words(sweep.experiment, label, asked.chosen)
    for trial in earlier:
        if trial.chosen == asked.chosen:  # a sampler has chosen the same again
            return asked.tell(trial.outcome, words)
    if ended is not None:
        return asked.tell(ended, words)
    experiment = with_methods(sweep.experiment, {label: words})
    evaluations = -(-experiment.rounds // experiment.evaluation.every)
    ended = judge_trial(
        group_curves(experiment, sweep.problems),
        sweep.metric,
        sweep.last,
        asked.trial if sweep.plan.pruning else None,
        every=-(-evaluations // REPORTS),
    )
    return asked.tell(ended, words)


# what was found


def read_results(sweep: Sweep, directory: Path) -> list[SweepResult]:
    """What the trials so far say of every method."""
    with _store(sweep, directory) as store:
        trials = {search.label: store.trials(search) for search in sweep.searches}
    return [_found(sweep, search, trials[search.label]) for search in sweep.searches]


def _found(sweep: Sweep, search: MethodSearch, trials: Sequence[TrialDone]) -> SweepResult:
    best = best_of(trials)
    at = () if best is None else tuple(edges(sweep.experiment, search, best.chosen))
    return SweepResult(search, tuple(trials), best, at)


def best_experiment(experiment: Experiment, trials: Mapping[str, Sequence[TrialDone]]) -> Experiment | None:
    """The experiment with the best parameters of every method; methods none of whose trials was finished are left out."""
    best = {label: best_of(mine) for label, mine in trials.items()}
    words = {label: trial.words for label, trial in best.items() if trial is not None}
    return with_methods(experiment, words) if words else None


# the directory


def open_sweep(directory: Path) -> tuple[Experiment, Plan]:
    """The experiment and the plan of a sweep's directory, to resume it."""
    path = directory / SWEEP
    if not path.is_file():
        raise InvalidInput(f"{directory} is not a sweep: it needs {SWEEP}, which `undrift sweep` writes")
    try:
        words = tomllib.loads(read_marked(path).decode())
        space = space_from_dict(words["space"], "space")
        return from_dict(words["experiment"], Origin(str(path))), Plan(space, **words["sweep"])
    except (OSError, Damaged, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} cannot be used ({error}): start a new sweep with --out NEW") from error


def _words(sweep: Sweep) -> dict[str, Any]:
    plan = sweep.plan
    settings = {name: value for name, value in vars(plan).items() if name != "space"}
    settings |= {"seeds": len(sweep.problems), "prune": plan.pruning, "last": sweep.last}
    return {
        "sweep": {name: value for name, value in settings.items() if value is not None},
        "space": space_to_dict(plan.space),
        "checksums": dict(sweep.checksums),
        "experiment": to_dict(sweep.experiment),
    }


def _claim(sweep: Sweep, directory: Path) -> None:
    """Make the directory, or make sure that it is of this sweep."""
    path = directory / SWEEP
    text = tomli_w.dumps(_words(sweep))
    try:
        if path.exists():
            content = read_marked(path)
            check_same(tomllib.loads(content.decode()), tomllib.loads(text), directory)
            return write_marked(directory, {SWEEP: content}, copies=True)
        if directory.exists() and (not directory.is_dir() or _occupied(directory)):
            raise InvalidInput(f"{directory} exists and is no sweep: --out chooses another place")
        directory.mkdir(parents=True, exist_ok=True)
        write_marked(directory, {SWEEP: text.encode()}, copies=True)
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be written ({error.strerror}): --out chooses another place") from error
    except (Damaged, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} cannot be used ({error}): --out chooses another place") from error


def _occupied(directory: Path) -> bool:
    return any(not entry.name.startswith(".") for entry in directory.iterdir())


def check_same(known: Any, asked: Any, directory: Path, place: str = "", what: str = "sweep") -> None:
    """Refuse another sweep than the one a directory was made for; the first difference is named."""
    if isinstance(known, dict) and isinstance(asked, dict):
        for key in [*known, *(key for key in asked if key not in known)]:
            name = f"{place}.{key}" if place else key
            check_same(known.get(key), asked.get(key), directory, name, what)
    elif known != asked:
        raise InvalidInput(
            f"{directory} holds another {what}: {place} is {known} there and {asked} here; --out chooses another place"
        )


def _write(sweep: Sweep, directory: Path, done: Mapping[str, Sequence[TrialDone]]) -> None:
    best = best_experiment(sweep.experiment, done)
    files = {TRIALS: _table(done, list(sweep.problems)), **({} if best is None else {BEST: to_toml(best)})}
    write_marked(directory, {name: text.encode() for name, text in files.items()})


def _table(done: Mapping[str, Sequence[TrialDone]], seeds: Sequence[int]) -> str:
    """All trials as CSV: a column for each parameter that some method chooses, and for each seed."""
    trials = [trial for mine in done.values() for trial in mine]
    paths = list(dict.fromkeys(path for trial in trials for path in trial.chosen))
    metric = trials[0].metric if trials else "quality"
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    by_seed = [f"{metric} seed {seed}" for seed in seeds]
    rows.writerow(["method", "trial", "state", metric, "std", *paths, *by_seed, "reason"])
    for t in trials:
        values = list(t.outcome.qualities)
        quality = t.outcome.quality if values else ""
        deviation = spread(values)
        rows.writerow(
            [t.label, t.number, t.outcome.state, quality, "" if deviation is None else deviation]
            + [t.chosen.get(path, "") for path in paths]
            + (values or [""] * len(seeds))
            + [t.outcome.reason]
        )
    return text.getvalue()
