"""Numbers and findings in words."""

import math
from collections.abc import Sequence
from typing import Any

from undrift.experiments.report.load import ExperimentRecord, Records
from undrift.experiments.report.summary import Row, Summary

NEVER = "never"
ALIKE = (
    "rounds",
    "data",
    "clients",
    "model",
    "participation",
    "population",
)  # what fair comparisons share


def number(value: float | None, figure: str = "") -> str:
    """A figure for people: accuracies in percent.

    >>> number(0.8418, "accuracy"), number(0.908331, "loss"), number(2.5e-7), number(None)
    ('84.18 %', '0.9083', '2.5e-07', '–')
    """
    return with_spread(value, None, figure)


def with_spread(value: float | None, std: float | None, figure: str = "") -> str:
    """Mean and standard deviation with the same number of places.

    >>> with_spread(0.8418, 0.0123, "accuracy"), with_spread(12.3456, 0.5, "loss")
    ('84.18 ± 1.23 %', '12.35 ± 0.50')
    """
    if value is None or not math.isfinite(value):
        return "–" if value is None else "not finite"
    unit = ""
    if is_share(figure):
        value, std, unit, places = 100 * value, None if std is None else 100 * std, " %", 2
    elif value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" + ("" if std is None else f" ± {std:.2g}")
    else:
        places = 4 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
    spread = "" if std is None else f" ± {std:.{places}f}"
    return f"{value:.{places}f}{spread}{unit}"


def is_share(figure: str) -> bool:
    """Whether a figure is shown in percent."""
    return "accuracy" in figure.lower()


def in_bytes(count: float | None) -> str:
    """
    >>> in_bytes(512), in_bytes(3.848e6), in_bytes(None)
    ('512 B', '3.85 MB', '–')
    """
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{_three(count)} {unit}"
        count /= 1000
    raise AssertionError


def in_seconds(seconds: float | None) -> str:
    """
    >>> in_seconds(0.0421), in_seconds(75.2), in_seconds(7380), in_seconds(0), in_seconds(None)
    ('42.1 ms', '1 min 15 s', '2 h 03 min', '0 s', '–')
    """
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{_three(1000 * seconds)} ms"
    if seconds < 59.95:
        return f"{_three(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def in_percent(part: float | None) -> str:
    """
    >>> in_percent(-0.6614), in_percent(0.0), in_percent(2.0)
    ('−66.1 %', '±0 %', '+200.0 %')
    """
    if part is None:
        return "–"
    if abs(part) < 5e-4:
        return "±0 %"
    return f"{'−' if part < 0 else '+'}{abs(100 * part):.1f} %"


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def few(names: Sequence[str], most: int = 4) -> str:
    """Names, the rest counted where there are many.

    >>> few(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d and 2 others'
    """
    if len(names) <= most + 1:
        return listed(names)
    return f"{', '.join(names[:most])} and {len(names) - most} others"


def goal(value: float | None, figure: str) -> str:
    """A target as it was given.

    >>> goal(0.9, "accuracy"), goal(0.01, "loss")
    ('90 %', '0.01')
    """
    if value is None:
        return "–"
    return f"{100 * value:g} %" if is_share(figure) else f"{value:g}"


def _three(value: float) -> str:
    """Three digits."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


# the answer


def answer(s: Summary) -> tuple[str, ...]:
    """Which method reached what, at which cost in bytes; the first sentence is the headline."""
    rows = [row for row in s.rows if math.isfinite(row.mean)]
    if not rows:
        return (f"No method has a finite final {_spoken(s.figure)}.", *_not_ended(s))
    base = s.row(s.baseline)
    if len(s.rows) == 1:
        head = f"{base.label} ended at {quality_of(s, base)} {_spoken(s.figure)}."
        return (head, *_to_target(s), *_not_ended(s), _measured(s))
    best = s.best
    assert best is not None
    said = [_headline(s, best, base), *_likeness(s, best), *_prices(s, best, base)]
    said += _in_time(s, best, base)
    return (*said, *_to_target(s), *_not_ended(s), _measured(s))


def quality_of(s: Summary, row: Row) -> str:
    """The final quality of a method."""
    return "not recorded" if row.lacking else with_spread(row.mean, row.std, s.figure)


def _spoken(figure: str) -> str:
    return figure.replace("_", " ")


def _headline(s: Summary, best: Row, base: Row) -> str:
    figure, quality = _spoken(s.figure), quality_of(s, best)
    if best is base:
        return f"No method ended better than the baseline {base.label}: {quality} {figure}."
    against = f"{best.label} ended best: {quality} {figure}, {base.label} at {quality_of(s, base)}"
    if best.cost is None or best.bytes_change is None:
        return f"{against}."
    if not best.cost.reached:
        return f"{against}; its mean over seeds never had {base.label}'s quality."
    there = f"had {base.label}'s quality after {best.cost.rounds} of {best.planned} rounds"
    return f"{against}. It {there}, for {_fewer(best.bytes_change)} than {base.label}."


def _fewer(part: float) -> str:
    if abs(part) < 5e-4:
        return "no fewer bytes"
    return f"{abs(100 * part):.1f} % {'fewer' if part < 0 else 'more'} bytes"


def _measured(s: Summary) -> str:
    rounds = "round" if s.last == 1 else f"{s.last} rounds"
    counts = sorted({len(row.seeds) for row in s.rows})
    if counts == [1]:
        chance = ", so differences may be chance" if len(s.rows) > 1 else ""
        return f"Quality is the mean over the last {rounds} evaluated; one seed only{chance}."
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Quality is the mean over the last {rounds} evaluated, ± the standard deviation over {seeds} seeds."


def overlapping(a: Row, b: Row) -> bool:
    """Whether the final qualities of two methods lie within their spreads."""
    if a.std is None or b.std is None:
        return False
    return abs(a.mean - b.mean) <= a.std + b.std


def _likeness(s: Summary, best: Row) -> list[str]:
    near = [row for row in s.rows if row is not best and row.ended_well and overlapping(best, row)]
    if not near:
        return []
    which = few([f"{row.label} ({quality_of(s, row)})" for row in near])
    return [f"But these seeds do not tell {best.label} from {which}: the spreads overlap."]


def _prices(s: Summary, best: Row, base: Row) -> list[str]:
    """What the baseline's quality cost, and who never had it."""
    if s.quality is None or base.cost is None:
        return [f"{s.baseline}, the baseline, has no finite final quality to compare prices with."]
    prices = {row.label: row.cost.bytes for row in s.rows if row.cost and row.cost.reached}
    said = []
    if prices:
        cheapest = min(prices, key=lambda label: prices[label])
        quality = f"{base.label}'s {number(s.quality, s.figure)}"
        others = [row.label for row in (best, base) if row.label in prices]
        against = dict.fromkeys(label for label in others if label != cheapest)
        compared = listed([f"{in_bytes(prices[label])} with {label}" for label in against] or [""])
        said.append(
            f"The cheapest way to {quality} was {cheapest}: {in_bytes(prices[cheapest])}, down + up over all clients"
            + (f", against {compared}." if against else ".")
        )
    never = [row.label for row in s.rows if row.cost and not row.cost.reached]
    if never:
        said.append(f"Never there within the rounds they had: {few(never)}.")
    return said


def _in_time(s: Summary, best: Row, base: Row) -> list[str]:
    """Who had the baseline's quality first by the virtual clock."""
    clocks = {
        row.label: row.cost.virtual
        for row in s.rows
        if row.cost is not None and row.cost.virtual is not None
    }
    if not clocks.keys() - {base.label}:
        return []
    first = min(clocks, key=lambda label: clocks[label])
    others = dict.fromkeys(row.label for row in (best, base) if row.label in clocks)
    against = listed(
        [f"{in_seconds(clocks[each])} with {each}" for each in others if each != first] or [""]
    )
    return [
        f"In virtual time {first} was the first to have {base.label}'s quality, after {in_seconds(clocks[first])}"
        + (f", against {against}." if against else ".")
    ]


def _to_target(s: Summary) -> list[str]:
    if s.target is None:
        return []
    target = f"the target of {goal(s.target, s.figure)}"
    there = [row for row in s.rows if row.reach and row.reach.rounds is not None]
    if not there:
        return [f"No method reached {target}."]
    cheapest = min(there, key=lambda row: row.reach.bytes or 0 if row.reach else math.inf)
    assert cheapest.reach is not None
    price = f"{in_bytes(cheapest.reach.bytes)} in {cheapest.reach.rounds} rounds"
    never = [row.label for row in s.rows if row not in there and not row.lacking]
    rest = f"; {few(never)} never did" if never else ""
    said = [f"{cheapest.label} reached {target} for the fewest bytes, {price}{rest}."]
    clocks = {r.label: r.reach.virtual for r in there if r.reach and r.reach.virtual is not None}
    if clocks:
        first = min(clocks, key=lambda label: clocks[label])
        who = "It" if first == cheapest.label else first
        soonest = " first" if len(there) > 1 else ""
        said.append(f"{who} was there{soonest} in virtual time: after {in_seconds(clocks[first])}.")
    return said


def _not_ended(s: Summary) -> list[str]:
    odd = [row.label for row in s.rows if not row.ended_well]
    return [f"Not all runs came to their end: {few(odd)} (see the notes)."] if odd else []


# the notes


def notes(records: Records, s: Summary) -> tuple[str, ...]:
    """What a reader should bear in mind."""
    said = [
        f"{run.name} stopped after round {run.recorded} of {run.planned}: {run.stopped.rstrip('.')}."
        for run in records.runs
        if run.stopped is not None
    ]
    going = [run for run in records.runs if not run.finished]
    if going:
        each = listed([f"{run.name}: {run.recorded} of {run.planned} rounds" for run in going])
        said.append(f"Unfinished, shown as far as they got: {each}.")
    for row in s.rows:
        if row.left_out:
            said.append(f"{row.label}: {row.left_out} unusable answers of clients were left out.")
    wild = [row.label for row in s.rows if not math.isfinite(row.mean) and not row.lacking]
    if wild:
        said.append(f"Not finite at the end: {listed(wild)}.")
    if records.not_evaluated:
        names = listed([run.name for run in records.not_evaluated])
        said.append(f"Begun, but nothing evaluated yet, so not shown: {names}.")
    for source in records.experiments:
        if source.not_started:
            said.append(f"Not begun yet: {listed(source.not_started)}.")
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for row in s.rows:
        by_seeds.setdefault(row.seeds, []).append(row.label)
    if len(by_seeds) > 1:
        each = "; ".join(
            f"{', '.join(map(str, seeds))} with {few(labels)}" for seeds, labels in by_seeds.items()
        )
        said.append(f"The methods do not have the same seeds: {each}.")
    said += _differences(records)
    lacking = [row.label for row in s.rows if row.lacking]
    if lacking:
        said.append(f"{listed(lacking)} did not record {s.figure}.")
    return tuple(said)


def _differences(records: Records) -> list[str]:
    """What differs between sources that should not."""
    said = []
    for key in ALIKE:
        values = {_name(source): _short(source.settings.get(key)) for source in records.experiments}
        if len(set(values.values())) > 1:
            each = "; ".join(f"{name}: {value}" for name, value in values.items())
            said.append(f"Not the same {key} everywhere, so compare with care: {each}.")
    sums = {_short(run.federation.get("checksums")) for run in records.runs}
    if len(sums) > 1:
        said.append("Not the same data files everywhere: their checksums differ.")
    machines = {_short(run.experiment.manifest.get("machine")) for run in records.runs}
    versions = {_short(run.experiment.manifest.get("versions")) for run in records.runs}
    if len(machines) > 1 or len(versions) > 1:
        said.append("Machines or versions differ between runs: do not compare their seconds.")
    targets = {
        t for source in records.experiments if (t := source.settings.get("target")) is not None
    }
    if len(targets) > 1:
        said.append(f"The experiments have different targets: {', '.join(map(str, targets))}.")
    return said


def _name(source: ExperimentRecord) -> str:
    return str(source.path)


def _short(value: Any) -> str:
    """Settings in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(each)}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(_short(each) for each in value)
    return str(value)
