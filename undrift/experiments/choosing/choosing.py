"""Choosing in its directory: planned, tuned, run again with other seeds, answered; resumable after any interruption.

plan.json      what was asked for, and the work that it comes to: called again, the same work is done
sweep/         the trials (experiments/sweeps)
finals/        the best of each method with seeds that nothing was tuned on, a file a method
choice.json    the answer
chosen.toml    the baseline and the chosen method, for `undrift run`

The JSON files have checksums, `.checksums.json` has that of chosen.toml.  The plan has a copy; what else is damaged is made
again, with a warning, when the choice is resumed.
"""

import json
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from undrift.core.errors import InvalidInput, setting
from undrift.core.hyper import check_value
from undrift.core.records import nbytes
from undrift.experiments.choosing.answer import Choice, Final, decide
from undrift.experiments.choosing.budget import Budget, plan_budget, seconds_of
from undrift.experiments.choosing.describe import describe_federation
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.federation import Federation, federation
from undrift.experiments.config.toml import from_dict, to_dict, to_toml
from undrift.experiments.runs.estimate import seconds_together
from undrift.experiments.runs.files import (
    Damaged,
    copy_of,
    read_json,
    read_json_or_copy,
    write_json,
    write_marked,
)
from undrift.experiments.runs.running import config_of
from undrift.experiments.sweeps.chosen import check_values, method_words, with_methods
from undrift.experiments.sweeps.plan import MethodSearch, Plan, plan_searches
from undrift.experiments.sweeps.space import size_of
from undrift.experiments.sweeps.spaces import space_of
from undrift.experiments.sweeps.sweeping import Sweep, check_same, continue_sweep, plan_sweep, read_results
from undrift.experiments.sweeps.trial import TrialDone, played_together
from undrift.experiments.sweeps.validation import with_held_out
from undrift.problems.model import ModelProblem
from undrift.simulation.api import RunConfig, prepare
from undrift.simulation.participation import expected_size

log = logging.getLogger("undrift")

DEFAULT_METHODS = ("fedavg", "fedprox", "fedavg-m", "scaffold", "scaffold-m", "fedgm", "fedhbm", "ghbm", "fednova")
PLAN, FINALS, CHOICE, CHOSEN = "plan.json", "finals", "choice.json", "chosen.toml"
TIMED_RUNS, TIMED_ROUNDS = (
    4,
    100,
)  # of which the seconds of a round are measured: so many at once, as if of so many rounds

Maker = Callable[[int], Federation]  # the federation of a seed


@dataclass(frozen=True)
class Choosing:
    """A choice to be made, planned and checked.

    request   what was asked for       dropped   methods that do not fit the run, and why
    seconds   of a round of a run, by method, where they were measured       estimate   of everything
    """

    sweep: Sweep
    budget: Budget
    request: Mapping[str, Any]
    dropped: Mapping[str, str]
    federation: Mapping[str, Any]
    make: Maker
    seconds: Mapping[str, float] = field(default_factory=dict)
    estimate: float | None = None

    @property
    def final_seeds(self) -> list[int]:
        """Of the final runs: none of those that trials have."""
        first = max(self.sweep.problems) + 1
        return list(range(first, first + self.budget.final_seeds))

    def words(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        return {
            **asdict(self.budget),
            "validate": self.sweep.plan.validate,
            "space": self.sweep.plan.space.name,
            "last": self.sweep.last,
            "methods": list(self.sweep.experiment.labels),
            "seconds": dict(self.seconds),
            "estimate": self.estimate,
            "dropped": dict(self.dropped),
            "minutes": self.request["minutes"],
        }


def prepare_choosing(
    experiment: Experiment,
    minutes: float = 5.0,
    given: Mapping[str, int] | None = None,
    space: str = "choose",
    validate: float = 0.2,
    directory: Path | None = None,
    drop: bool = True,
    make: Maker | None = None,
) -> Choosing:
    """Plan a choice among the methods of an experiment; nothing is begun.

    given       trials, seeds or rounds that are settled; the minutes settle the rest, and nothing is timed if all are given
    directory   where it is to be done: a plan that is there already is taken, and one of another request refused
    drop        leave out methods that do not fit the run; otherwise they are errors
    """
    check_value("choose", setting("minutes", minutes=...), minutes, float, int, within="(0, inf)")
    if experiment.timed:
        raise InvalidInput(
            "choose compares methods round by round, without virtual time: leave out "
            + setting("population and server", population=...)
        )
    experiment = experiment if experiment.threads else experiment.model_copy(update={"threads": 1})
    torch.set_num_threads(experiment.threads or 1)
    given = dict(given or {})
    request = {"experiment": to_dict(experiment.model_copy(update={"rounds": TIMED_ROUNDS}))}
    request |= {"minutes": minutes, "given": given, "space": space, "validate": validate, "drop": drop}
    known = _known_plan(directory, request)
    build = make or (lambda seed: federation(experiment, seed))
    first = build(experiment.seeds[0])
    plan = Plan(space_of(space), validate=validate)
    held = with_held_out(first.problem, validate, experiment.seeds[0]) if validate else first.problem
    kept, dropped = _fitting(experiment, plan, held, drop)
    experiment = experiment.only(kept)
    if known is not None:
        budget, seconds = Budget(**{name: known[name] for name in ("trials", "seeds", "rounds")}), known["seconds"]
        estimate = known["estimate"]
    else:
        searches = plan_searches(experiment, plan)
        points = {search.label: size_of(search.choices) or given.get("trials", 1) for search in searches}
        settled = {"trials", "seeds", "rounds"} <= {*given}
        seconds: dict[str, float] = {}
        for search in () if settled else searches:
            seconds[search.label] = _seconds(experiment, search, held)
            least = min(seconds.values())  # others are hardly faster: too few minutes show before all are timed
            plan_budget(minutes, {label: seconds.get(label, least) for label in points}, points, given)
        budget = Budget(**given) if settled else plan_budget(minutes, seconds, points, given)
        estimate = None if settled else seconds_of(budget, seconds, points)
    experiment = experiment.model_copy(update={"rounds": budget.rounds})
    plan = Plan(space_of(space), budget.trials, budget.seeds, validate=validate)
    sweep = plan_sweep(experiment, plan, make)
    config = config_of(experiment.single(kept[0], experiment.seeds[0]), Federation(sweep.whole, {}))
    return Choosing(sweep, budget, request, dropped, describe_federation(config), build, seconds, estimate)


def _fitting(experiment: Experiment, plan: Plan, problem: ModelProblem, drop: bool) -> tuple[list[str], dict[str, str]]:
    """The methods that fit the run, and why others do not."""
    kept, dropped = [], {}
    for label in experiment.labels:
        try:
            (search,) = plan_searches(experiment.only([label]), plan)
            one = check_values(experiment, search).single(label, experiment.seeds[0])
            prepare(config_of(one, Federation(problem, {})))
            kept.append(label)
        except InvalidInput as error:
            if not drop:
                raise
            dropped[label] = str(error)
    if not kept:
        raise InvalidInput(f"none of the methods fits this run: {next(iter(dropped.values()))}")
    return kept, dropped


def _seconds(experiment: Experiment, search: MethodSearch, problem: ModelProblem) -> float:
    """A round of a trial of this method, timed as a sweep computes it."""
    assert search.points is not None
    runs = [_run(experiment, search.label, point, problem) for point in search.points[:TIMED_RUNS]]
    return seconds_together(runs)


def _run(experiment: Experiment, label: str, point: Mapping[str, Any], problem: ModelProblem) -> RunConfig:
    made = with_methods(experiment, {label: method_words(experiment, label, point)})
    made = made.model_copy(update={"rounds": TIMED_ROUNDS})
    return config_of(made.single(label, experiment.seeds[0]), Federation(problem, {}))


# the work


def carry_out(choosing: Choosing, directory: Path, keep: bool = True) -> Iterator[TrialDone | Final]:
    """Do what is left to do, telling every trial and every method's final runs when they have ended.

    keep   whether the directory is to be found again: what it was made for is written down
    """
    if keep:
        directory.mkdir(parents=True, exist_ok=True)
        plan = {"request": choosing.request, "plan": choosing.words()}
        write_json(directory / PLAN, plan, copy=True)
    yield from continue_sweep(choosing.sweep, directory / "sweep")
    (directory / FINALS).mkdir(exist_ok=True)
    for result in read_results(choosing.sweep, directory / "sweep"):
        if result.best is not None and _final(directory, result.search.label) is None:
            final = _run_again(choosing, result.best, result.edges)
            write_json(directory / FINALS / f"{result.search.label}.json", asdict(final))
            yield final


def _final(directory: Path, label: str) -> Final | None:
    """The final runs of a method, if they have ended and their file is what was written."""
    path = directory / FINALS / f"{label}.json"
    try:
        return Final(**read_json(path)) if path.exists() else None
    except (Damaged, TypeError) as error:
        log.warning("%s: its runs are run again", error if isinstance(error, Damaged) else f"{path} is damaged")
        return None


def _run_again(choosing: Choosing, best: TrialDone, edges: Sequence[str]) -> Final:
    """The best settings of a method with seeds that it was not tuned on, on held-out data of these."""
    sweep, label = choosing.sweep, best.label
    experiment = with_methods(sweep.experiment, {label: best.words})
    part = sweep.plan.validate
    problems = {}
    for seed in choosing.final_seeds:
        whole = choosing.make(seed).problem
        problems[seed] = with_held_out(whole, part, seed) if part else whole
    histories, stopped = played_together(experiment, problems)
    judged = {
        name: [r.metrics[name] for each in histories for r in each if r.metrics] for name in ("loss", sweep.metric)
    }
    for name, values in judged.items() if stopped is None else ():
        if not all(map(math.isfinite, values)):
            stopped = stopped or f"the {name} was not finite"
    if stopped is not None:
        return Final(label, best.words, best.chosen, [], [], [], 0, 0.0, tuple(edges), f"with other seeds: {stopped}")
    rounds = [r.round for r in histories[0] if r.metrics]
    values = [[r.metrics[sweep.metric] for r in each if r.metrics] for each in histories]
    sums = [
        torch.tensor([r.bytes_down + r.bytes_up for r in each], dtype=torch.float64).cumsum(0) for each in histories
    ]
    sent = torch.stack(sums).mean(0)
    config = config_of(experiment.single(label, choosing.final_seeds[0]), Federation(next(iter(problems.values())), {}))
    state = nbytes(config.algorithm.client(config.problem.x0))
    visits = expected_size(config.participation, config.problem.N)
    usual = [r.bytes_down + r.bytes_up for r in histories[0][1:]] or [float(sent[0])]
    return Final(
        label, best.words, best.chosen, rounds, values, [float(sent[r - 1]) for r in rounds],
        state, sum(usual) / len(usual) / visits, tuple(edges),
    )  # fmt: skip


def conclude(choosing: Choosing, directory: Path, keep: bool = True) -> Choice:
    """The answer, of work that is done."""
    sweep = choosing.sweep
    finals, failed = [], dict(choosing.dropped)
    for result in read_results(sweep, directory / "sweep"):
        label = result.search.label
        final = _final(directory, label)
        if final is not None and final.stopped is None:
            finals.append(final)
        else:
            reason = result.trials[-1].outcome.reason if result.trials else "no trial"
            failed[label] = f"none of its trials was finished: {reason}" if final is None else str(final.stopped)
    if not finals:
        raise InvalidInput(
            f"no method could be trained ({next(iter(failed.values()))}): look at {setting('local', local__lr=...)} and the model"
        )
    chosen, baseline, contenders = decide(
        finals, sweep.metric, sweep.last, choosing.sweep.experiment.baseline or "fedavg"
    )
    words = {c.label: c.words for c in contenders if c.label in (baseline, chosen)}
    run = with_methods(sweep.experiment.model_copy(update={"seeds": choosing.final_seeds}), words)
    place = shlex.quote(str(directory / CHOSEN))
    specs = " ".join(dict.fromkeys(c.spec for c in contenders if c.label in (baseline, chosen)))
    follow = (
        f"Next, on test data: undrift run {place}"
        if keep
        else f"Next: ud.compare of {specs} for as many rounds as you need"
    )
    found = Choice(
        chosen, baseline, sweep.metric, contenders, failed, choosing.federation, choosing.words(),
        sweep.experiment.data.name if keep else "a problem in Python", follow,
    )  # fmt: skip
    if keep:
        write_marked(directory, {CHOSEN: to_toml(run).encode()})
        found.save(directory / CHOICE)
    return found


# the directory


def open_choosing(directory: Path) -> Choosing:
    """The choice of a directory, to resume it."""
    path = directory / PLAN
    try:
        request = read_json_or_copy(path)["request"]
        experiment = from_dict(request.pop("experiment"))
    except (Damaged, KeyError) as error:
        raise InvalidInput(f"{path} cannot be used ({error}): choose again with --out NEW") from None
    return prepare_choosing(experiment, directory=directory, **request)


def _known_plan(directory: Path | None, request: Mapping[str, Any]) -> dict[str, Any] | None:
    if directory is None or not directory.exists():
        return None
    path = directory / PLAN
    if not path.exists():
        begun = {copy_of(path).name, f".{PLAN}.part", f".{copy_of(path).name}.part"}
        if not directory.is_dir() or any(entry.name not in begun for entry in directory.iterdir()):
            raise InvalidInput(f"{directory} exists and holds no choice: --out chooses another place")
        return None
    try:
        known = read_json_or_copy(path)
        check_same(known["request"], json.loads(json.dumps(request)), directory, what="choice")
        return known["plan"]
    except (Damaged, KeyError) as error:
        raise InvalidInput(f"{path} cannot be used ({error}): --out chooses another place") from None
