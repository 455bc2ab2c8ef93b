"""Runs in Python as on the command line: `ud.compare`, `ud.load_run`, `Experiment.run`, and what draws and reports a run."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import check_value, spec_of
from undrift.core.hyper import method as method_of
from undrift.experiments.config.experiment import Experiment, run_with, seeds_of
from undrift.experiments.config.federation import Federations
from undrift.experiments.config.settings import engine_to_dict, local_to_dict
from undrift.experiments.report.curves import mean_curve
from undrift.experiments.report.format import plural
from undrift.experiments.report.load import ExperimentRecord, Records, build_record, group_runs, load_runs
from undrift.experiments.report.plots import AXES, draw_panel
from undrift.experiments.report.stats import Summary, check_target
from undrift.experiments.report.tables import terminal_table
from undrift.experiments.report.write import Options, summarise_records, write_files
from undrift.experiments.runs.checkpoint import Checkpoints, Saved, newest
from undrift.experiments.runs.directory import (
    DEPLOYMENT,
    EXPERIMENT,
    RunDirectory,
    as_line,
    free_path,
    manifest,
    metrics_in,
    runs_below,
)
from undrift.experiments.runs.running import config_of, prepare_directory, run_experiment
from undrift.local import Local
from undrift.metrics.quality import usual_first
from undrift.metrics.theory import find_metric
from undrift.problems import Problem
from undrift.problems.model import ModelProblem
from undrift.simulation.api import OnRound, Settings, collect, config_from, prepare, takes_settings
from undrift.simulation.asynchronous.async_state import Timing
from undrift.simulation.progress import progress_of
from undrift.simulation.results import Best, FinishedRun, Round, State, present_with, to_frame

Method: TypeAlias = Any  # a method, or its name
Methods: TypeAlias = Sequence[Method] | Mapping[str, "Method | tuple[Method, Local]"]


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """Methods side by side, each with a run for every seed: what `ud.compare` and `ud.load_run` return.

    `comparison[label]` are the runs of a method, iterating gives all runs; `summary` has every number of the table.
    """

    runs: Mapping[str, Sequence[FinishedRun]]
    options: Options = field(default_factory=lambda: Options())
    path: Path | None = None  # where the runs are, if they are on disk
    experiment: Experiment | None = None

    @property
    def labels(self) -> list[str]:
        return list(self.runs)

    def __getitem__(self, label: str) -> Sequence[FinishedRun]:
        if label not in self.runs:
            raise unknown("method", label, self.runs)
        return self.runs[label]

    def __iter__(self) -> Iterator[FinishedRun]:
        return (run for runs in self.runs.values() for run in runs)

    def __len__(self) -> int:
        return sum(map(len, self.runs.values()))

    @cached_property
    def records(self) -> Records:
        """What a report is made from."""
        return records_of(self.runs) if self.path is None else load_runs([self.path])

    @cached_property
    def summary(self) -> Summary:
        """Final quality and its cost, method by method."""
        return self._summarise({})

    def _summarise(self, options: Options) -> Summary:
        for name in options:
            if name not in Options.__annotations__:
                raise unknown("option of a report:", name, Options.__annotations__)
        return summarise_records(self.records, **(self.options | options))

    def frame(self) -> Any:
        """Every round of every run as a pandas DataFrame, with columns for method and seed."""
        return to_frame([{"method": m, "seed": run.seed, **row} for m, each in self.runs.items() for run in each for row in run.rows()])  # fmt: skip

    def plot(
        self, metric: str | None = None, against: str = "rounds", ax: Any = None, best_so_far: bool = False
    ) -> Any:
        """Draw a metric, mean over seeds, shaded from the lowest to the highest; returns matplotlib axes.

        metric    the accuracy by default where it was recorded, else the loss
        against   "rounds", "bytes" (down and up, over all clients), "uplink" (bytes that clients sent), "seconds" or
                  "virtual" (seconds of virtual time)
        ax        axes to draw into; new ones by default
        best_so_far   draw the best that every run has had by then: smooth where a metric jumps from round to round
        """
        axes = {axis.name: axis for axis in AXES}
        if against not in axes:
            raise unknown("axis", against, axes)
        s = self.summary if metric is None else self._summarise({"metric": metric})
        curves = {method.label: mean_curve(method, s.metric, best_so_far) for method in s.records.methods}
        if not all(torch.as_tensor(axes[against].values(curve)).isfinite().any() for curve in curves.values()):
            raise InvalidInput(f"these runs have not recorded {against}: plot against rounds or bytes")
        if ax is None:
            from matplotlib import pyplot  # here, because it is slow to import

            ax = pyplot.subplots(layout="constrained")[1]
        draw_panel(ax, s, curves, axes[against])
        if best_so_far:
            ax.set_ylabel(f"{ax.get_ylabel()}, best so far")
        ax.legend(frameon=False)
        return ax

    def report(self, path: Any, **options: Unpack[Options]) -> Path:
        """Write report.html, curves.png, summary.csv and rounds.csv into a folder; returns the path of the page.

        options   target, baseline, metric, last: as for `undrift report`
        """
        return write_files(self._summarise(options), Path(path))

    def __repr__(self) -> str:
        from rich.console import Console  # here, because it is slow to import

        try:
            self.summary  # noqa: B018 (made here, if it can be)
        except InvalidInput as error:  # the runs are there all the same
            return f"Comparison of {', '.join(self.labels)}, {plural(len(self), 'run')}; no table: {error}"
        out = io.StringIO()
        Console(file=out, width=160, highlight=False, force_jupyter=False).print(terminal_table(self.summary))
        table = "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())
        return "\n".join([table, *self._sentences])

    def _repr_html_(self) -> str:
        try:
            table = terminal_table(self.summary)
        except InvalidInput:
            return f"<p>{escape(repr(self))}</p>"
        head = "".join(f"<th>{escape(str(column.header))}</th>" for column in table.columns)
        rows = zip(*([escape(str(cell)) for cell in column.cells] for column in table.columns), strict=True)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><tr>{head}</tr>{body}</table><p>{escape(' '.join(self._sentences))}</p>"

    @property
    def _sentences(self) -> tuple[str, ...]:
        return (*self.summary.answer, *self.summary.notes)


# comparing


@takes_settings
def compare(
    methods: Methods,
    problem: Problem | Callable[[int], Problem],
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    baseline: str | None = None,
    target: float | None = None,
    metric: str | None = None,
    last: int | None = None,
    progress: bool | str = "auto",
    on_round: OnRound | None = None,
    **settings: Unpack[Settings],
) -> Comparison:
    """Run methods on the same problem and compare them: final quality, and what it cost in rounds and bytes.

    methods          methods or their names; or a dictionary of them by label, whose values may be pairs (method, ud.Local) where
                     a method trains otherwise than the others, say with its own lr
    problem          what is minimised; or a function of the seed that makes it, for partitions and initial models that differ
    rounds           rounds of communication, the same for all
    seeds            how many seeds (0, 1, ...), or a list of them: each method has a run for each
    baseline         the label that others are compared with; "fedavg" if it is there, else the first
    target           a quality, such as 0.9, whose cost in rounds and bytes is reported
    metric           the quality; the accuracy by default where it is recorded, else the loss
    last             evaluated rounds that a final quality is the mean of; a tenth by default, at most 100
    progress         True: show bars, False: none, "auto": on a terminal or in a notebook only
    on_round         called with every finished Round; if it returns True or raises StopIteration that run ends there
    {settings}

    Everything is checked before the first round of the first run.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.arange(8.0).view(4, 2))
    >>> found = compare(["fedavg", ud.Scaffold()], problem, rounds=5, seeds=2, local=ud.Local(steps=2, lr=0.1))
    >>> found.labels, len(found), len(found["scaffold"])
    (['fedavg', 'scaffold'], 4, 2)
    """
    if "seed" in settings:
        raise TypeError("compare takes seeds, how many of them or a list: seeds=3")
    numbers = seeds_of(seeds)
    check_value("compare", "last", last, int, default=None, within="[1, inf)")
    check_value("compare", "target", target, float, default=None, within="(-inf, inf)")
    labelled = label_methods(methods)
    if baseline is not None and baseline not in labelled:
        raise unknown("baseline", baseline, labelled)
    local = settings.get("local")
    make = problem if callable(problem) else lambda seed: problem
    look = _first_look(metric, target, on_round)
    runs: dict[str, list[FinishedRun]] = {label: [] for label in labelled}
    for seed in numbers:
        built: Any = make(seed)
        prepared = {
            label: prepare(config_from(m, built, rounds, {**settings, "seed": seed, "local": own or local}))
            for label, (m, own) in labelled.items()
        }
        for label, run in prepared.items():
            runs[label].append(collect(run, None, progress, look, f"{label}, seed {seed}"))
    options = Options(target=target, baseline=baseline, metric=metric, last=last)
    return Comparison(runs, options)


def _first_look(metric: str | None, target: float | None, on_round: OnRound | None) -> OnRound:
    """As soon as metrics are known, refuse one that is not among them, and a target that it cannot have."""

    def look(r: Round) -> object:
        if r.metrics:
            name = metric or usual_first(r.metrics)[0]
            if name not in r.metrics and find_metric(name) is None:  # some are there after more rounds
                raise unknown("metric", name, r.metrics)
            check_target(target, name)
        return None if on_round is None else on_round(r)

    return look


def label_methods(methods: Methods) -> dict[str, tuple[Any, Local | None]]:
    """Methods by label: their names, with the parameters that are not the default where a name is there twice.

    >>> import undrift as ud
    >>> list(label_methods(["fedavg", ud.FedProx(mu=0.1), ud.FedProx(mu=1.0)]))
    ['fedavg', 'fedprox mu=0.1', 'fedprox mu=1.0']
    """
    if isinstance(methods, str) or not isinstance(methods, Sequence | Mapping) or not methods:
        raise InvalidInput(f"methods are a list of methods or names, or a dictionary by label; got {methods!r}")
    if isinstance(methods, Mapping):
        pairs = {str(label): value if isinstance(value, tuple) else (value, None) for label, value in methods.items()}
        if wrong := next((label for label, pair in pairs.items() if len(pair) != 2), None):
            raise InvalidInput(f"{wrong} is a method, or a pair (method, ud.Local) of two; got {pairs[wrong]!r}")
        return {label: (_made(m), own) for label, (m, own) in pairs.items()}
    made = [_made(m) for m in methods]
    names = [spec_of(m).name for m in made]
    labels = [name if names.count(name) == 1 else _distinct(name, m) for name, m in zip(names, made, strict=True)]
    if len(set(labels)) < len(labels):
        raise InvalidInput(f"the same method twice: {', '.join(labels)}; give a dictionary of methods by label")
    return {label: (m, None) for label, m in zip(labels, made, strict=True)}


def _made(method: Method) -> Any:
    return method_of(method) if isinstance(method, str) else method


def _distinct(name: str, method: Any) -> str:
    given = [f for f in fields(method) if vars(method)[f.name] != f.default] if is_dataclass(method) else []
    return " ".join([name, *(f"{f.name}={vars(method)[f.name]}" for f in given)])


# runs of this process as a report reads them


def records_of(runs: Mapping[str, Sequence[FinishedRun]]) -> Records:
    """What a report is made from, of runs that are in memory."""
    every = [run for each in runs.values() for run in each]
    if not any(r.metrics for run in every for r in run.history):
        raise InvalidInput("no metric was recorded: the problem evaluates none, and metrics= names none")
    about = "\n".join(f"{label}, seed {run.seed}: {_in_words(run)}" for label, each in runs.items() for run in each)
    settings: dict[str, Any] = {"seeds": sorted({run.seed for run in every}), "name": " and ".join(runs)}
    configs = [run.config for run in every if run.config is not None]  # pyright: ignore[reportAttributeAccessIssue]
    if configs and all(config.local == configs[0].local for config in configs):
        settings["local"] = local_to_dict(configs[0].local)
    whole = ExperimentRecord(Path("."), about, settings, manifest(about) | {"command": None}, list(runs), [])
    found = []
    for label, each in runs.items():
        for run in each:
            config: Any = run.config  # pyright: ignore[reportAttributeAccessIssue]
            lines = [as_line(r) | {"seconds": r.seconds} for r in run.history]
            visits = [asdict(visit) for r in run.history if r.timing for visit in r.timing.visits]
            record = build_record(
                lines, visits, path=Path(label) / f"seed-{run.seed}", experiment=whole, method=label, label=label,
                seed=run.seed, planned=run.planned, every=_every(run), finished=True, stopped=run.stopped,
                federation=run.problem.summary() if isinstance(run.problem, ModelProblem) else {},
                local={} if config is None else local_to_dict(config.local),
                engine="" if run.engine is None else engine_to_dict(run.engine),
            )  # fmt: skip
            found.append(record)
    return group_runs(found, (whole,), ["these runs"])


def _every(run: FinishedRun) -> int:
    evaluated = [r.round for r in run.history if r.metrics]
    return evaluated[0] if evaluated else 1


def _in_words(run: Any) -> str:
    if run.config is None:
        return run.label
    given = {f.name: vars(run.config)[f.name] for f in fields(run.config) if f.name not in ("algorithm", "problem")}
    return f"{run.label}, " + ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)


class _Presenter:
    """Draws and reports a single run as a comparison of one."""

    def plot(self, run: FinishedRun, metric: str | None, against: str, ax: Any, best_so_far: bool) -> Any:
        return as_comparison(run).plot(metric, against, ax, best_so_far)

    def report(self, run: FinishedRun, path: Any, options: Mapping[str, Any]) -> Path:
        return as_comparison(run).report(path, **options)


def as_comparison(run: FinishedRun) -> Comparison:
    """A single run as a comparison."""
    if isinstance(run, LoadedRun):
        return Comparison({run.label: [run]}, path=run.path, experiment=run.experiment)
    return Comparison({run.label.split("(")[0]: [run]})


# runs on disk


@dataclass(frozen=True, repr=False, eq=False)
class LoadedRun(FinishedRun):
    """A run read from its directory: what a `Result` has, and its experiment.

    The history is read at once; the problem is built, and the final state read, when they are first asked for.
    """

    path: Path
    experiment: Experiment
    label: str
    planned: int
    seed: int
    history: list[Round]
    stopped: str | None
    engine: Any

    @cached_property
    def problem(self) -> Problem:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The federation, built again from its data."""
        return Federations().get(self.experiment, self.seed).problem

    @cached_property
    def _saved(self) -> Saved:
        config = config_of(self.experiment, Federations().get(self.experiment, self.seed))
        fresh = lambda: config.first_state(timed=config.timed)
        with closing(Checkpoints(self.path / "checkpoints")) as checkpoints:
            found = newest(checkpoints, fresh, lambda saved: True, clients=not self.deployed)
        if found is None:
            raise InvalidInput(f"{self.path} has no checkpoint yet: let it run, or `undrift resume` it")
        return found

    @property
    def deployed(self) -> bool:
        """Whether it ran on real nodes, which keep the client states."""
        return (self.path / DEPLOYMENT).exists()

    @property
    def x(self) -> Tensor:
        """The final model as one vector."""
        return self._saved.state.server.x

    @property
    def state(self) -> State:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All there is after the last checkpoint: server, client states; `ud.run(start=...)` goes on from it."""
        if self.deployed:
            raise InvalidInput(f"{self.path}: client states are on the nodes of the run; `x` and `model()` are here")
        return self._saved.state

    @property
    def best(self) -> Best | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._saved.best


def load_run(path: str | Path) -> "LoadedRun | Comparison":
    """A run directory as an object like that of `ud.run`, a directory of several as one like that of `ud.compare`.

    path    what `undrift run`, `undrift compare` or `Experiment.run` has written, finished or not
    """
    path = Path(path)
    if not path.is_dir():
        raise InvalidInput(f"{path} is no directory: give one that `undrift run` or `undrift compare` wrote")
    if RunDirectory(path).is_run:
        return _load(RunDirectory(path), None)
    records = load_runs([path])
    known = {directory.path.resolve(): directory for directory in runs_below(path)}
    runs = {m.label: [_load(known[run.path.resolve()], m.label) for run in m.runs] for m in records.methods}
    experiment = RunDirectory(path).experiment() if (path / EXPERIMENT).exists() else None
    return Comparison(runs, path=path, experiment=experiment)


def _load(directory: RunDirectory, label: str | None) -> LoadedRun:
    experiment = directory.experiment()
    (own,), (seed,) = experiment.labels, experiment.seeds
    history = [_round(line) for line in directory.rounds()]
    stopped = (directory.result() or {}).get("stopped")
    return LoadedRun(
        directory.path, experiment, label or own, experiment.rounds, seed, history, stopped, experiment.engine
    )


def _round(line: Mapping[str, Any]) -> Round:
    timing = line.get("timing")
    words: Any = None if timing is None else {k: tuple(v) if isinstance(v, list) else v for k, v in timing.items()}
    metrics = {name: float("nan") if value is None else value for name, value in metrics_in(line).items()}
    metrics.pop("seconds", None)
    return Round(
        line["round"],
        tuple(line.get("clients", range(line.get("participants", 0)))),
        metrics,
        line["bytes_down"],
        line["bytes_up"],
        float("nan") if line["seconds"] is None else line["seconds"],
        tuple(line.get("left_out", ())),
        line.get("exchanges", 1),
        time=line.get("virtual_seconds"),
        timing=None if words is None else Timing(**words, visits=()),
    )


def run_in_directory(
    experiment: Experiment, out: str | Path | None, jobs: int, progress: bool | str
) -> "LoadedRun | Comparison":
    """Do all of an experiment in its directory, new or begun; see `Experiment.run`."""
    check_value("run", "jobs", jobs, int, within="[1, inf)")
    if experiment.threads is None:
        experiment = experiment.model_copy(update={"threads": max(1, torch.get_num_threads() // jobs)})
    name = experiment.name or "-".join(experiment.labels)
    path = free_path(Path("runs") / name) if out is None else Path(out)
    directory = prepare_directory(experiment, path, resumes=True)
    total = len(experiment.runs()) * experiment.rounds
    done: dict[Path, int] = {}
    with progress_of(progress, name, total) as show:
        for update in run_experiment(directory, jobs):
            if update.error is not None:
                raise InvalidInput(f"{update.run}: {update.error}")
            done[update.run] = update.round
            shown = {key: value for key, value in update.metrics.items() if value is not None}
            show(Round(sum(done.values()), (), shown, 0, 0, 0.0))
    return load_run(path)


present_with(_Presenter())
run_with(run_in_directory)
