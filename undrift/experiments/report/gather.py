"""Run directories read into frozen records; nothing of an experiment is built or run."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.experiments.report.timed import VIRTUAL, Timed, timed
from undrift.experiments.runs.directory import (
    EXPERIMENT,
    FEDERATION,
    VISITS,
    RunDirectory,
    figures,
    runs_below,
)
from undrift.experiments.runs.files import read_json, read_lines


@dataclass(frozen=True)
class Source:
    """A directory that was made by one command: a comparison, or a single run."""

    path: Path
    text: str  # of experiment.toml
    experiment: Mapping[str, Any]
    manifest: Mapping[str, Any]
    waiting: tuple[str, ...] = ()  # runs of it that have not begun

    @cached_property
    def labels(self) -> list[str]:
        """Its methods, in the order of the experiment."""
        return _labels(self.experiment)


@dataclass(frozen=True)
class Run:
    """One method with one seed: arrays have an entry a round; NaN is what was not evaluated or not finite."""

    path: Path
    source: Source
    method: str  # the label within its source
    label: str  # the label within the report
    seed: int
    planned: int  # rounds it was to have
    every: int  # rounds between evaluations
    round: np.ndarray
    figures: Mapping[str, np.ndarray]
    evaluated: np.ndarray  # whether a round was
    bytes_down: np.ndarray
    bytes_up: np.ndarray
    seconds: np.ndarray
    virtual: np.ndarray | None
    timed: Timed | None
    participants: int  # visits of clients, over all rounds
    left_out: int  # answers that could not be used
    finished: bool
    stopped: str | None
    federation: Mapping[str, Any] | None

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


@dataclass(frozen=True)
class Method:
    """The runs of a label, one a seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def planned(self) -> int:
        return max(run.planned for run in self.runs)

    @property
    def common(self) -> int:
        """The last round that every run has: beyond it a mean is one of those that are left."""
        return min(run.recorded for run in self.runs)

    @property
    def ended_well(self) -> bool:
        return all(run.finished and run.stopped is None for run in self.runs)


@dataclass(frozen=True)
class Gathered:
    """Everything a report is made of."""

    sources: tuple[Source, ...]
    methods: tuple[Method, ...]
    silent: tuple[Run, ...]  # begun, but without a recorded round

    @property
    def runs(self) -> list[Run]:
        return [run for method in self.methods for run in method.runs]

    @cached_property
    def figures(self) -> list[str]:
        """The names of all recorded figures, the usual ones first."""
        names = dict.fromkeys(name for run in self.runs for name in run.figures)
        first = [name for name in ("accuracy", "loss") if name in names]
        return first + [name for name in names if name not in first]


def gather(paths: Sequence[Path]) -> Gathered:
    """Read every run in some directories."""
    found: dict[Path, RunDirectory] = {}
    for path in map(Path, paths):
        below = list(runs_below(path))
        if not below:
            raise InvalidInput(
                f"no run in {path}: give directories that `undrift run` or `undrift compare` wrote"
            )
        found |= {directory.path.resolve(): directory for directory in below}
    given = [Path(path).resolve() for path in paths]
    sources: dict[Path, Source] = {}
    runs: list[Run] = []
    for place, directory in found.items():
        root = _root(place)
        whole = any(root.is_relative_to(path) for path in given)
        shown = directory.path if root == place else directory.path.parent.parent
        source = sources.setdefault(root, _source(shown, whole))
        runs.append(_run(directory, source))
    runs = _told_apart(runs, sources)
    if not any(len(run.evaluated) and run.evaluated.any() for run in runs):
        raise InvalidInput(
            f"nothing is recorded yet in {', '.join(str(path) for path in paths)}: "
            "wait for the first evaluated round, or go on with `undrift resume`"
        )
    speaking = [run for run in runs if run.evaluated.any()]
    silent = tuple(run for run in runs if not run.evaluated.any())
    return Gathered(tuple(sources.values()), _methods(speaking), silent)


def _labels(experiment: Mapping[str, Any]) -> list[str]:
    """The labels in an experiment's words."""
    one = experiment.get("algorithm")
    return [one["name"]] if one else list(experiment.get("algorithms", {}))


def _root(place: Path) -> Path:
    """The comparison that a run belongs to, else the run itself."""
    above = place.parent.parent
    part_of_one = (above / EXPERIMENT).exists() and not RunDirectory(above).is_run
    return above if part_of_one and place.name.startswith("seed-") else place


def _source(path: Path, whole: bool) -> Source:
    directory = RunDirectory(path)
    text = directory.experiment_text
    try:  # the words only: a report needs no method of the user's own to be there
        experiment = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path / EXPERIMENT} is not TOML: {error}") from error
    waiting = []
    if whole and not directory.is_run:
        for label in _labels(experiment):
            for seed in experiment.get("seeds", []):
                if not RunDirectory(path / label / f"seed-{seed}").is_run:
                    waiting.append(f"{label} (seed {seed})")
    return Source(path, text, experiment, directory.manifest(), tuple(waiting))


def _run(directory: RunDirectory, source: Source) -> Run:
    try:
        words = tomllib.loads(directory.experiment_text)
        (seed,), (label,), planned = words["seeds"], _labels(words), words["rounds"]
    except (KeyError, ValueError) as error:  # TOML that cannot be read is a ValueError, too
        raise InvalidInput(
            f"{directory.path / EXPERIMENT} does not describe a single run ({error!r})"
        ) from error
    method = label if source.path == directory.path else directory.path.parent.name
    lines = directory.rounds()
    named = [{k: v for k, v in figures(line).items() if _is_figure(k, v)} for line in lines]
    names = dict.fromkeys(name for line in named for name in line)
    federation = directory.path / FEDERATION
    result = directory.result()
    virtual = [line.get(VIRTUAL) for line in lines]
    return Run(
        path=directory.path,
        source=source,
        method=method,
        label=method,
        seed=seed,
        planned=planned,
        every=words.get("evaluation", {}).get("every", 1),
        round=np.array([line["round"] for line in lines], dtype=int),
        figures={name: _numbers([line.get(name) for line in named]) for name in names},
        evaluated=np.array([bool(line) for line in named], dtype=bool),
        bytes_down=np.array([line["bytes_down"] for line in lines], dtype=np.int64),
        bytes_up=np.array([line["bytes_up"] for line in lines], dtype=np.int64),
        seconds=_numbers([line["seconds"] for line in lines]),
        virtual=None if None in virtual or not virtual else _numbers(virtual),
        timed=timed(lines, list(read_lines(directory.path / VISITS))),
        participants=sum(line.get("participants", 0) for line in lines),
        left_out=sum(len(line.get("left_out", ())) for line in lines),
        finished=result is not None,
        stopped=result.get("stopped") if result else None,
        federation=read_json(federation) if federation.exists() else None,
    )


def _is_figure(name: str, value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return name != VIRTUAL and (value is None or number)


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _told_apart(runs: Sequence[Run], sources: Mapping[Path, Source]) -> list[Run]:
    """Labels that several sources use get the name of their source's directory."""
    users: dict[str, set[Path]] = {}
    for run in runs:
        users.setdefault(run.method, set()).add(run.source.path)
    names = _short_names([source.path for source in sources.values()])
    return [
        replace(run, label=f"{run.method} ({names[run.source.path]})")
        if len(users[run.method]) > 1
        else run
        for run in runs
    ]


def _short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """As much of the end of each path as tells it from the others."""
    whole = {path: path.resolve().parts for path in paths}
    longest = max(len(parts) for parts in whole.values())
    for length in range(1, longest + 1):
        names = {path: "/".join(parts[-length:]) for path, parts in whole.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: str(path) for path in paths}


def _methods(runs: Sequence[Run]) -> tuple[Method, ...]:
    """Runs by label, in the order of the experiments."""
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)

    def place(runs: list[Run]) -> int:
        labels = runs[0].source.labels
        return labels.index(runs[0].method) if runs[0].method in labels else len(labels)

    order = list(dict.fromkeys(run.source.path for run in runs))
    ordered = sorted(by_label.values(), key=lambda r: (order.index(r[0].source.path), place(r)))
    return tuple(
        Method(each[0].label, tuple(sorted(each, key=lambda run: run.seed))) for each in ordered
    )
