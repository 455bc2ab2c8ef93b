"""The sentences of a report: the answer, the notes, remarks on single runs.

A new sentence is a function that yields it, or nothing if it does not apply, listed in ANSWER or NOTES.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from undrift.experiments.report.costs import CostToReach
from undrift.experiments.report.format import (
    format_bytes,
    format_metric,
    format_seconds,
    format_settings,
    format_target,
    join_names,
    plural,
)
from undrift.experiments.report.load import RunRecord
from undrift.experiments.report.references import write_references
from undrift.experiments.report.stats import MethodSummary, Summary, local_steps, same_curve
from undrift.metrics.quality import not_known

SHARED = ("rounds", "data", "clients", "model", "participation", "population")  # if it is fair


def write_answer(s: Summary) -> tuple[str, ...]:
    """Which method reached what, at which cost; the first sentence is the headline."""
    return tuple(sentence for write in ANSWER for sentence in write(s))


def write_notes(s: Summary) -> tuple[str, ...]:
    """What a reader should bear in mind."""
    return tuple(sentence for write in NOTES for sentence in write(s))


def spell(metric: str) -> str:
    """
    >>> spell("client_accuracy_worst")
    'client accuracy worst'
    """
    return metric.replace("_", " ")


def format_final(s: Summary, row: MethodSummary) -> str:
    """The final quality of a method."""
    return format_metric(row.mean, s.metric, row.std) if row.has_metric else "not recorded"


def write_last(s: Summary) -> str:
    """The rounds that a final quality is the mean of."""
    return "tenth of a run's evaluated rounds" if s.last is None else f"{s.last} evaluated rounds"


def write_span(steps: tuple[float, float, float]) -> str:
    """
    >>> write_span((3.0, 3.0, 3.0)), write_span((1.0, 2.5, 9.0)), write_span((1.0, 10.0, float("inf")))
    ('3', '1 to 9, median 2.5', 'from 1, mean 10')
    """
    least, usual, most = steps
    if least == most:
        return f"{usual:g}"
    return f"{least:g} to {most:g}, median {usual:g}" if math.isfinite(most) else f"from {least:g}, mean {usual:g}"


# the answer


def _headline(s: Summary) -> Iterator[str]:
    metric, base, best = spell(s.metric), s.base, s.best
    if len(s.records.data) > 1:
        names = dict.fromkeys(each.settings.get("data", {}).get("name", "data") for each in s.records.experiments)
        yield f"These runs are on different data ({', '.join(names)}): they are shown side by side, and not ranked."
    elif not any(math.isfinite(row.mean) for row in s.rows):
        yield f"No method has a finite final {metric}."
    elif s.compared and s.higher is None:
        ended = join_names([f"{row.label} at {format_final(s, row)}" for row in s.rows])
        yield f"Final {metric}: {ended}."
        yield not_known(s.metric)
    elif best is None:
        yield f"{base.label} ended at {format_final(s, base)} {metric}."
    elif best is base:
        quality = f"{format_final(s, base)} {metric}"
        yield f"No method beat the baseline {base.label}, which ended at {quality}."
    else:
        ended = f"{best.label} ended best with {format_final(s, best)} {metric}"
        against = f" ({base.label} {format_final(s, base)})" if s.quality is not None else ""
        yield f"{ended}{against}{_head_start(s, best)}."


def _head_start(s: Summary, best: MethodSummary) -> str:
    """When the best method reached the baseline's quality, and with how many bytes."""
    cost, final = best.to_baseline, f"{s.baseline}'s final {spell(s.metric)}"
    change = s.change(best, lambda row: row.to_baseline.bytes)
    if cost.reached is None or change is None:
        return ""
    if not cost.reached:
        return f", but its mean over seeds never reached {final}"
    after = f"{cost.rounds} of {plural(best.method.planned, 'round')}"
    return f" and reached {final} after {after}, with {_fewer(change)} {'as' if abs(change) < 5e-4 else 'than'} {s.baseline} needed for it"


def _table4(s: Summary) -> Iterator[str]:
    """The same against all rounds of the baseline, as GHBM's Table 4 counts."""
    best = s.best
    if best is None or best is s.base or not best.to_baseline.reached:
        return
    change = s.change(best, lambda row: row.table4.bytes)
    if change is not None:
        yield f"Against all rounds of {s.baseline}, as GHBM's Table 4 counts, {best.label} needed {_fewer(change)} for it."


def _fewer(change: float) -> str:
    if abs(change) < 5e-4:
        return "as many bytes"
    return f"{abs(100 * change):.1f} % {'fewer' if change < 0 else 'more'} bytes"


def _overlaps(s: Summary) -> Iterator[str]:
    """Methods whose difference from the best one may be chance."""
    best = s.best
    if best is None or best.std is None:
        return
    near = [
        f"{row.label} ({format_final(s, row)})"
        for row in s.rows
        if row is not best and row.method.ended_well and row.std is not None
        if abs(best.mean - row.mean) <= best.std + row.std
    ]
    if near:
        names = join_names(near)
        yield f"But these seeds do not separate {best.label} from {names}: the spreads overlap."


def _costs(s: Summary) -> Iterator[str]:
    """The cost of the baseline's quality, if there are others to reach it, and of the target."""
    if s.best is not None and s.quality is None:
        yield f"{s.baseline}, the baseline, has no finite final quality to compare costs with."
    elif s.best is not None:
        quality = f"the baseline's {format_metric(s.quality, s.metric)}"
        yield from _compare_costs(s, quality, {row.label: row.to_baseline for row in s.rows})
    if s.target is not None:
        target = f"the target of {format_target(s.target, s.metric)}"
        yield from _compare_costs(s, target, {row.label: row.to_target for row in s.rows})


def _compare_costs(s: Summary, quality: str, costs: Mapping[str, CostToReach]) -> Iterator[str]:
    """Who reached a quality with the fewest bytes, who never did, and who was first by the virtual clock."""
    never = [label for label, cost in costs.items() if cost.reached is False]
    sent = {label: cost.bytes or 0.0 for label, cost in costs.items() if cost.reached}
    clocks = {label: cost.virtual for label, cost in costs.items() if cost.reached and cost.virtual is not None}
    if never and not sent:
        yield f"No method reached {quality}."
    if sent:
        label, spent, against = _pick_lowest(s, sent, format_bytes)
        fewest = "with the fewest bytes, " if s.compared else "with "
        rest = f"; {join_names(never)} never did" if never else ""
        spent += f" in {plural(costs[label].rounds or 0, 'round')}"
        yield f"{label} reached {quality} {fewest}{spent}{against}{rest}."
    if clocks:
        label, spent, against = _pick_lowest(s, clocks, format_seconds)
        first = "was the first to reach" if s.compared else "reached"
        yield f"In virtual time {label} {first} {quality}, after {spent}{against}."


def _pick_lowest(s: Summary, costs: Mapping[str, float], write: Callable[[float], str]) -> tuple[str, str, str]:
    """The label with the lowest cost, its cost, and those of the best method and the baseline."""
    lowest = min(costs, key=lambda label: costs[label])
    compared = [row.label for row in (s.best, s.base) if row and row.label != lowest]
    others = [f"{write(costs[x])} with {x}" for x in dict.fromkeys(compared) if x in costs]
    return lowest, write(costs[lowest]), f", against {join_names(others)}" if others else ""


def _unfinished(s: Summary) -> Iterator[str]:
    labels = [row.label for row in s.rows if not row.method.ended_well]
    if labels:
        yield f"Not all runs finished: {join_names(labels)} (see the notes)."


def _definition(s: Summary) -> Iterator[str]:
    """How final quality was measured."""
    rounds = f"the mean over the last {write_last(s)}"
    rounds = rounds if s.last != 1 else "that of the last evaluated round"
    counts = sorted({len(row.seeds) for row in s.rows})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    spread = f"; ± is the standard deviation over {seeds} seeds"
    if counts == [1]:
        spread = "; one seed only" + (", so differences may be chance" if s.compared else "")
    if any(math.isfinite(row.mean) for row in s.rows):
        yield f"Final {spell(s.metric)} is {rounds}{spread}."


ANSWER = (_headline, _overlaps, write_references, _costs, _table4, _unfinished, _definition)


# the notes


def _incomplete_runs(s: Summary) -> Iterator[str]:
    for run in (*s.records.runs, *s.records.not_evaluated):
        if run.stopped is not None:
            reason = run.stopped.rstrip(".")
            yield f"{run.name} stopped after round {run.recorded} of {run.planned}: {reason}."
    going = [run for run in s.records.runs if not run.finished]
    if going:
        names = [f"{run.name}: {run.recorded} of {run.planned} rounds" for run in going]
        yield f"Unfinished, shown up to the last recorded round: {', '.join(names)}."
    begun = [run.name for run in s.records.not_evaluated if run.stopped is None]
    if begun:
        yield f"Started, but nothing is evaluated yet, so not shown: {', '.join(begun)}."
    for experiment in s.records.experiments:
        if experiment.not_started:
            yield f"Not started yet: {', '.join(experiment.not_started)}."


def _missing_values(s: Summary) -> Iterator[str]:
    for row in s.rows:
        left_out = sum(run.left_out for run in row.method.runs)
        if left_out:
            yield f"{row.label}: {left_out} unusable client updates were left out."
    wild = [row.label for row in s.rows if row.has_metric and not math.isfinite(row.mean)]
    if wild:
        yield f"Not finite at the end: {join_names(wild)}."
    without = [row.label for row in s.rows if not row.has_metric]
    if without:
        yield f"{join_names(without)} did not record {s.metric}."


def _differences(s: Summary) -> Iterator[str]:
    """What differs between methods and experiments that should not."""
    seeds: dict[str, list[str]] = {}
    for row in s.rows:
        seeds.setdefault(", ".join(map(str, row.seeds)), []).append(row.label)
    if len(seeds) > 1:
        each = "; ".join(f"{x} with {join_names(labels)}" for x, labels in seeds.items())
        yield f"The methods do not have the same seeds: {each}."
    settings = {experiment.path: experiment.settings for experiment in s.records.experiments}
    for key in SHARED:
        values = {path: each.get(key) for path, each in settings.items()}
        if _differ(values.values()):
            each = "; ".join(f"{path}: {format_settings(x)}" for path, x in values.items())
            yield f"The experiments differ in {key}, so compare with care: {each}."
    if _differ(run.federation.get("checksums") for run in s.records.runs):
        yield "The experiments do not use the same data files: their checksums differ."
    manifests = [run.experiment.manifest for run in s.records.runs]
    if any(_differ(each.get(key) for each in manifests) for key in ("machine", "versions")):
        yield "Machines or versions differ between runs: do not compare their seconds."
    targets = {str(each["target"]) for each in settings.values() if "target" in each}
    if len(targets) > 1:
        yield f"The experiments have different targets: {', '.join(sorted(targets))}."


def _differ(values: Iterable[Any]) -> bool:
    first, *others = values
    return any(value != first for value in others)


def _local_work(s: Summary) -> Iterator[str]:
    """Rounds in which nothing can drift, and methods that did the same."""
    alone = [row.label for row in s.rows if (local_steps(row.method.runs[0]) or (0, 0, 0))[2] == 1]
    if alone:
        yield (
            f"One local step per round ({join_names(alone)}): clients cannot drift, so methods against drift have nothing to "
            "show; take more local steps, epochs, or smaller minibatches."
        )
    seen: dict[str, list[str]] = {}
    for row in s.rows:
        like = next((x for x in seen if same_curve(s.row(x).method, row.method)), None)
        seen.setdefault(like or row.label, []).append(row.label)
    for labels in seen.values():
        if labels[1:]:
            yield f"{join_names(labels)} have the same curve to the last digit: in this setting they are one method."


NOTES = (_incomplete_runs, _missing_values, _local_work, _differences)


# remarks on the runs of a method


def write_remarks(s: Summary, row: MethodSummary) -> list[str]:
    """What is out of the ordinary with a method."""
    never = s.compared and row.to_baseline.reached is False
    return [*remarks_on_seeds(s, row), *[f"never reached {format_metric(s.quality, s.metric)}"] * never]


def remarks_on_seeds(s: Summary, row: MethodSummary) -> list[str]:
    """What is out of the ordinary with each seed."""

    def remark(run: RunRecord, final: float) -> str:
        if run.stopped is not None:
            return f"stopped after round {run.recorded} of {run.planned}"
        if not run.finished:
            return f"has {run.recorded} of {run.planned} rounds so far"
        if s.metric not in run.metrics:
            return f"did not record {s.metric}"
        return "" if math.isfinite(final) else "is not finite at the end"

    pairs = zip(row.method.runs, row.finals, strict=True)
    return [f"seed {run.seed} {words}" for run, final in pairs if (words := remark(run, final))]
