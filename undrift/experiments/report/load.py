"""Read run directories into frozen records.  Nothing of an experiment is built or run."""

import json
import math
import tomllib
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.experiments.runs.directory import (
    EXPERIMENT,
    FEDERATION,
    REFERENCE,
    VISITS,
    RunDirectory,
    metrics_in,
    runs_below,
)
from undrift.experiments.runs.files import read_json
from undrift.metrics.quality import say_which_is_better, usual_first

VIRTUAL = "virtual_seconds"  # the virtual clock after a round, in metrics.jsonl
MAX_CLIENTS, MIN_VISITS, MIN_STEPS = 25, 60, 3  # of a timeline

Line = Mapping[str, Any]  # of a JSON lines file
Number = int | float | None  # None is what was not finite


@dataclass(frozen=True, eq=False)
class Timeline:
    """The beginning of a run: who did what when.

    until    the last moment that is shown                 steps   (moment, round) of the server's steps by then
    clients  in the order in which they were first asked   others  number of clients asked by then that have no row
    visits   of these clients, as in visits.jsonl, with "used": the moment of the server step that used the update,
             None for an update that was lost or is not used yet
    """

    until: float
    clients: tuple[int, ...]
    others: int
    visits: tuple[Line, ...]
    steps: tuple[tuple[float, int], ...]


@dataclass(frozen=True, eq=False)
class VirtualTiming:
    """The timing of a run in virtual time.

    staleness   mean over the updates of each round, NaN where there was none
    counts      how many updates had a staleness of 0, 1, 2, ...
    totals      numbers of the whole run: updates and the clients they came from, lost visits, the seconds that updates
                waited for a server step, seconds of computing wasted on lost updates, mean tau_eff, final chi2 and chi2_steps
    timeline    None if no visit was recorded
    """

    staleness: np.ndarray
    counts: np.ndarray
    totals: Mapping[str, float]
    timeline: Timeline | None


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
    timing: VirtualTiming | None
    visits: int  # of clients, over all rounds
    left_out: int  # client updates that could not be used
    finished: bool
    stopped: str | None  # why it stopped early
    federation: Mapping[str, Any]
    local: Mapping[str, Any]  # the settings of local training
    engine: Any  # by name, or with settings
    reference: Mapping[str, Any] | None = None  # of training without a federation: kind, gradients, whose model

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
    def timings(self) -> list[VirtualTiming]:
        """Of all its runs in virtual time, or of none."""
        known = [run.timing for run in self.runs if run.timing is not None]
        return known if len(known) == len(self.runs) else []


@dataclass(frozen=True, eq=False)
class Records:
    """Everything that a report is made from."""

    experiments: tuple[ExperimentRecord, ...]
    methods: tuple[Method, ...]
    not_evaluated: tuple[RunRecord, ...]  # started, but without an evaluated round
    references: tuple[Method, ...] = ()  # training without a federation

    @property
    def runs(self) -> list[RunRecord]:
        return [run for method in self.methods for run in method.runs]

    @cached_property
    def data(self) -> list[str]:
        """The data that runs are on; only runs on the same can be ranked."""
        begun = [run for run in self.runs if run.federation] or self.runs
        named = ((run.experiment.settings.get("data"), run.federation.get("checksums")) for run in begun)
        return list(dict.fromkeys(json.dumps(each, sort_keys=True, default=str) for each in named))

    @cached_property
    def metrics(self) -> list[str]:
        """The names of all recorded metrics, the usual ones first."""
        return usual_first(name for run in self.runs for name in run.metrics)


def load_runs(paths: Sequence[Path]) -> Records:
    """Read every run in some directories."""
    directories: dict[Path, RunDirectory] = {}
    for path in map(Path, paths):
        below = {directory.path.resolve(): directory for directory in runs_below(path)}
        if not below:
            raise InvalidInput(f"no run in {path}: give directories that `undrift run` or `undrift compare` wrote")
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
    return group_runs(_distinguish_labels(runs), tuple(experiments.values()), paths)


def group_runs(
    runs: Sequence[RunRecord], experiments: tuple[ExperimentRecord, ...], paths: Sequence[Path | str]
) -> Records:
    """Runs by method, those without an evaluated round apart; raises InvalidInput if there is no other."""
    if not any(run.evaluated.any() for run in runs):
        where, ended = ", ".join(map(str, paths)), next((run for run in runs if run.stopped is not None), None)
        if ended is not None:
            raise InvalidInput(f"{where} has no evaluated round to report: {ended.name} stopped, {ended.stopped}")
        raise InvalidInput(
            f"nothing is recorded yet in {where}: wait for the first evaluated round, or continue with `undrift resume`"
        )
    evaluated = [run for run in runs if run.evaluated.any()]
    methods = _group_by_label([run for run in evaluated if run.reference is None])
    references = _group_by_label([run for run in evaluated if run.reference is not None])
    if not methods:
        raise InvalidInput("references are shown beside methods: give the directory of the comparison")
    not_evaluated = tuple(run for run in runs if not run.evaluated.any())
    return Records(experiments, methods, not_evaluated, references)


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
    text = directory.recorded_text
    try:  # only parsed: a report works without the files that define a custom method
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path / EXPERIMENT} is not TOML: {error}") from error
    labels = _list_labels(settings)
    expected = product(labels, settings.get("seeds", [])) if whole and not directory.is_run else ()
    not_started = [
        f"{label} (seed {seed})" for label, seed in expected if not RunDirectory(path / label / f"seed-{seed}").is_run
    ]
    manifest = directory.manifest()
    say_which_is_better(manifest.get("higher", {}), again=False)
    return ExperimentRecord(path, text, settings, manifest, labels, not_started)


def _load_run(directory: RunDirectory, experiment: ExperimentRecord) -> RunRecord:
    try:
        settings = tomllib.loads(directory.recorded_text)
        (seed,), planned = settings["seeds"], settings["rounds"]
        (label,) = _list_labels(settings) or settings["reference"]
    except (KeyError, ValueError) as error:  # a TOMLDecodeError is a ValueError
        raise InvalidInput(f"{directory.path / EXPERIMENT} does not describe a single run ({error!r})") from error
    method = label if experiment.path == directory.path else directory.path.parent.name
    federation, result = directory.path / FEDERATION, directory.result()
    return build_record(
        directory.rounds(),
        directory.recorded(VISITS),
        path=directory.path,
        experiment=experiment,
        method=method,
        label=method,
        seed=seed,
        planned=planned,
        every=settings.get("evaluation", {}).get("every", 1),
        finished=result is not None,
        stopped=result.get("stopped") if result else None,
        federation=read_json(federation) if federation.exists() else {},
        local=settings.get("local", {}),
        engine=settings.get("engine", ""),
        reference=_read_reference(directory.path, settings),
    )


def build_record(lines: Sequence[Line], visits: Sequence[Line], **about: Any) -> RunRecord:
    """A run from the lines of its rounds and visits, as metrics.jsonl (with seconds) and visits.jsonl have them."""
    metrics = [{name: value for name, value in metrics_in(line).items() if isinstance(value, Number)} for line in lines]
    names = dict.fromkeys(name for each in metrics for name in each)
    return RunRecord(
        round=_column(lines, "round", int),
        metrics={name: _column(metrics, name) for name in names},
        evaluated=np.array([bool(each) for each in metrics], dtype=bool),
        bytes_down=_column(lines, "bytes_down", int),
        bytes_up=_column(lines, "bytes_up", int),
        seconds=_column(lines, "seconds"),
        virtual=_column(lines, VIRTUAL),
        timing=read_timing(lines, visits),
        visits=sum(line.get("participants", 0) for line in lines),
        left_out=sum(len(line.get("left_out", ())) for line in lines),
        **about,
    )


def _read_reference(path: Path, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a reference says of itself; None of a method's run."""
    if _list_labels(settings):
        return None
    return read_json(path / REFERENCE) if (path / REFERENCE).exists() else {}


def _column(lines: Sequence[Line], name: str, dtype: type = float) -> np.ndarray:
    """One number of every line; None, or what is not there, becomes NaN."""
    return np.array([line.get(name) for line in lines], dtype=dtype)


def _distinguish_labels(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Add as much of the directory's path as is needed to labels that several experiments use."""
    parts = {run.experiment.path: run.experiment.path.resolve().parts for run in runs}
    lengths = (n for n in count(1) if len({each[-n:] for each in parts.values()}) == len(parts))
    length = next(lengths)
    users = Counter(method for method, _ in {(run.method, run.experiment.path) for run in runs})

    def distinguish(run: RunRecord) -> RunRecord:
        name = "/".join(parts[run.experiment.path][-length:])
        return replace(run, label=f"{run.method} ({name})") if users[run.method] > 1 else run

    return [distinguish(run) for run in runs]


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


# virtual time


def read_timing(lines: Sequence[Line], visits: Sequence[Line]) -> VirtualTiming | None:
    """From the lines of metrics.jsonl and visits.jsonl; None unless every round has its timing."""
    rounds = [line["timing"] for line in lines if "timing" in line]
    if not rounds or len(rounds) < len(lines):
        return None
    staleness, last = [each["staleness"] for each in rounds], rounds[-1]
    totals = {
        "updates": sum(map(len, staleness)),
        "clients": last["used"],
        "lost": sum(len(each["lost"]) for each in rounds),
        "waited_seconds": sum(each["waited"] for each in rounds),
        "wasted_seconds": sum(each["wasted"] for each in rounds),
        "tau_eff": float(np.mean([each["tau_eff"] for each in rounds])),
        "chi2": _or_infinite(last["chi2"]),
        "chi2_steps": _or_infinite(last["chi2_steps"]),
    }
    return VirtualTiming(
        staleness=np.array([np.mean(each) if each else np.nan for each in staleness]),
        counts=np.bincount(np.array([age for each in staleness for age in each], dtype=int)),
        totals=totals,
        timeline=build_timeline(lines, visits) if visits else None,
    )


def _or_infinite(chi2: float | None) -> float:
    """It is infinite as long as some client has not been used."""
    return math.inf if chi2 is None else chi2


def build_timeline(lines: Sequence[Line], visits: Sequence[Line]) -> Timeline:
    """As much of a run as a plot can show: until some visits are over and the server has stepped a few times."""
    clock = [line[VIRTUAL] for line in lines]
    returns = sorted(visit["returns"] for visit in visits)
    until = max(returns[:MIN_VISITS][-1], clock[:MIN_STEPS][-1])
    asked = sorted((v for v in visits if v["dispatched"] <= until), key=lambda v: v["order"])
    clients = tuple(dict.fromkeys(visit["client"] for visit in asked))
    shown = set(clients[:MAX_CLIENTS])

    def find_use(visit: Line) -> float | None:
        """The first step after the return that has the client: it is not asked again before that."""
        if visit["fate"] != "arrives":
            return None
        client, later = visit["client"], lines[bisect_left(clock, visit["returns"]) :]
        used_by = (line for line in later if client in line.get("clients", (client,)))
        return next((line[VIRTUAL] for line in used_by), None)

    return Timeline(
        until=until,
        clients=clients[:MAX_CLIENTS],
        others=len(clients) - len(shown),
        visits=tuple({**v, "used": find_use(v)} for v in asked if v["client"] in shown),
        steps=tuple((line[VIRTUAL], line["round"]) for line in lines if line[VIRTUAL] <= until),
    )
