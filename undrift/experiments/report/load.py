"""Read run directories into frozen records.  Nothing of an experiment is built or run."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.experiments.report.timing import VIRTUAL, Line, RunTiming, read_timing
from undrift.experiments.runs.directory import (
    EXPERIMENT,
    FEDERATION,
    VISITS,
    RunDirectory,
    figures,
    runs_below,
)
from undrift.experiments.runs.files import read_json, read_lines

Number = int | float | None  # None is what was not finite


@dataclass(frozen=True, eq=False)
class ExperimentRecord:
    """A directory that one command has made: a comparison, or a single run."""

    path: Path
    text: str  # of experiment.toml
    settings: Mapping[str, Any]  # the same, parsed
    manifest: Mapping[str, Any]
    labels: list[str]  # of its methods
    not_started: list[str]  # runs of a comparison that have no directory yet


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One method with one seed.  Arrays have one entry per round; NaN is what was not recorded or not finite."""

    path: Path
    experiment: ExperimentRecord
    method: str  # the label within its experiment
    label: str  # the label within the report
    seed: int
    planned: int  # rounds
    every: int  # rounds between evaluations
    round: np.ndarray
    metrics: Mapping[str, np.ndarray]
    evaluated: np.ndarray  # whether a round was
    bytes_down: np.ndarray
    bytes_up: np.ndarray
    seconds: np.ndarray
    virtual: np.ndarray  # the virtual clock after each round
    timing: RunTiming | None
    visits: int  # of clients, over all rounds
    left_out: int  # client updates that could not be used
    finished: bool
    stopped: str | None  # why it stopped early
    federation: Mapping[str, Any]

    @property
    def recorded(self) -> int:
        """The last recorded round."""
        return int(self.round[-1]) if len(self.round) else 0

    @cached_property
    def bytes(self) -> np.ndarray:
        """Down + up over all clients, by the end of each round."""
        return np.cumsum(self.bytes_down + self.bytes_up)

    @property
    def name(self) -> str:
        return f"{self.label} (seed {self.seed})"


@dataclass(frozen=True, eq=False)
class Method:
    """The runs with one label, one per seed."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def planned(self) -> int:
        return max(run.planned for run in self.runs)

    @property
    def common(self) -> int:
        """The last round that every run has; later means are those of the seeds that are left."""
        return min(run.recorded for run in self.runs)

    @property
    def ended_well(self) -> bool:
        return all(run.finished and run.stopped is None for run in self.runs)

    @cached_property
    def timings(self) -> list[RunTiming]:
        """Of all its runs in virtual time, or of none."""
        known = [run.timing for run in self.runs if run.timing is not None]
        return known if len(known) == len(self.runs) else []


@dataclass(frozen=True, eq=False)
class Records:
    """Everything that a report is made from."""

    experiments: tuple[ExperimentRecord, ...]
    methods: tuple[Method, ...]
    not_evaluated: tuple[RunRecord, ...]  # started, but without an evaluated round

    @property
    def runs(self) -> list[RunRecord]:
        return [run for method in self.methods for run in method.runs]

    @cached_property
    def metrics(self) -> list[str]:
        """The names of all recorded metrics, the usual ones first."""
        names = dict.fromkeys(name for run in self.runs for name in run.metrics)
        return sorted(names, key=lambda name: {"accuracy": 0, "loss": 1}.get(name, 2))


def load_runs(paths: Sequence[Path]) -> Records:
    """Read every run in some directories."""
    directories: dict[Path, RunDirectory] = {}
    for path in map(Path, paths):
        below = {directory.path.resolve(): directory for directory in runs_below(path)}
        if not below:
            raise InvalidInput(
                f"no run in {path}: give directories that `undrift run` or `undrift compare` wrote"
            )
        directories |= below
    given = [Path(path).resolve() for path in paths]
    experiments: dict[Path, ExperimentRecord] = {}
    runs: list[RunRecord] = []
    for place, directory in directories.items():
        root = _experiment_root(place)
        if root not in experiments:
            path = directory.path if root == place else directory.path.parent.parent
            whole = any(root.is_relative_to(each) for each in given)
            experiments[root] = _load_experiment(path, whole)
        runs.append(_load_run(directory, experiments[root]))
    runs = _distinguish_labels(runs)
    if not any(run.evaluated.any() for run in runs):
        raise InvalidInput(
            f"nothing is recorded yet in {', '.join(str(path) for path in paths)}: "
            "wait for the first evaluated round, or continue with `undrift resume`"
        )
    methods = _group_by_label([run for run in runs if run.evaluated.any()])
    not_evaluated = tuple(run for run in runs if not run.evaluated.any())
    return Records(tuple(experiments.values()), methods, not_evaluated)


def _list_labels(settings: Mapping[str, Any]) -> list[str]:
    single = settings.get("algorithm")
    return [single["name"]] if single else list(settings.get("algorithms", {}))


def _experiment_root(run: Path) -> Path:
    """The comparison that a run belongs to, else the run itself."""
    above = run.parent.parent
    is_comparison = (above / EXPERIMENT).exists() and not RunDirectory(above).is_run
    return above if is_comparison and run.name.startswith("seed-") else run


def _load_experiment(path: Path, whole: bool) -> ExperimentRecord:
    directory = RunDirectory(path)
    text = directory.experiment_text
    try:  # only parsed: a report works without the files that define a custom method
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path / EXPERIMENT} is not TOML: {error}") from error
    labels = _list_labels(settings)
    expected = product(labels, settings.get("seeds", [])) if whole and not directory.is_run else ()
    not_started = [
        f"{label} (seed {seed})"
        for label, seed in expected
        if not RunDirectory(path / label / f"seed-{seed}").is_run
    ]
    return ExperimentRecord(path, text, settings, directory.manifest(), labels, not_started)


def _load_run(directory: RunDirectory, experiment: ExperimentRecord) -> RunRecord:
    try:
        settings = tomllib.loads(directory.experiment_text)
        (seed,), (label,), planned = settings["seeds"], _list_labels(settings), settings["rounds"]
    except (KeyError, ValueError) as error:  # a TOMLDecodeError is a ValueError
        raise InvalidInput(
            f"{directory.path / EXPERIMENT} does not describe a single run ({error!r})"
        ) from error
    method = label if experiment.path == directory.path else directory.path.parent.name
    lines = directory.rounds()
    metrics = [
        {name: value for name, value in figures(line).items() if isinstance(value, Number)}
        for line in lines
    ]
    names = dict.fromkeys(name for each in metrics for name in each)
    federation, result = directory.path / FEDERATION, directory.result()
    return RunRecord(
        path=directory.path,
        experiment=experiment,
        method=method,
        label=method,
        seed=seed,
        planned=planned,
        every=settings.get("evaluation", {}).get("every", 1),
        round=_column(lines, "round", int),
        metrics={name: _column(metrics, name) for name in names},
        evaluated=np.array([bool(each) for each in metrics], dtype=bool),
        bytes_down=_column(lines, "bytes_down", int),
        bytes_up=_column(lines, "bytes_up", int),
        seconds=_column(lines, "seconds"),
        virtual=_column(lines, VIRTUAL),
        timing=read_timing(lines, list(read_lines(directory.path / VISITS))),
        visits=sum(line.get("participants", 0) for line in lines),
        left_out=sum(len(line.get("left_out", ())) for line in lines),
        finished=result is not None,
        stopped=result.get("stopped") if result else None,
        federation=read_json(federation) if federation.exists() else {},
    )


def _column(lines: Sequence[Line], name: str, dtype: type = float) -> np.ndarray:
    """One number of every line; None, or what is not there, becomes NaN."""
    return np.array([line.get(name) for line in lines], dtype=dtype)


def _distinguish_labels(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Add the directory's name to labels that several experiments use."""
    users: dict[str, set[Path]] = {}
    for run in runs:
        users.setdefault(run.method, set()).add(run.experiment.path)
    names = _short_names({run.experiment.path for run in runs})
    return [
        replace(run, label=f"{run.method} ({names[run.experiment.path]})")
        if len(users[run.method]) > 1
        else run
        for run in runs
    ]


def _short_names(paths: set[Path]) -> dict[Path, str]:
    """As much of the end of each path as tells it from the others."""
    parts = {path: path.resolve().parts for path in paths}
    for length in range(1, max(map(len, parts.values()))):
        names = {path: "/".join(each[-length:]) for path, each in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: str(path) for path in paths}


def _group_by_label(runs: Sequence[RunRecord]) -> tuple[Method, ...]:
    """Methods in the order of the experiments, each with its runs by seed."""
    paths = list(dict.fromkeys(run.experiment.path for run in runs))

    def order(run: RunRecord) -> tuple[int, int, int]:
        labels = run.experiment.labels
        place = labels.index(run.method) if run.method in labels else len(labels)
        return paths.index(run.experiment.path), place, run.seed

    by_label: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=order):
        by_label.setdefault(run.label, []).append(run)
    return tuple(Method(label, tuple(group)) for label, group in by_label.items())
