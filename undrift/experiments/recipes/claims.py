"""What a paper claims, measured in runs seed by seed, and whether it holds.

What cannot be measured never helps a claim: a run that ended early, or that is missing, has no quality (NaN), and with
one such seed the claim does not hold.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config.section import Section
from undrift.experiments.report.costs import rounds_to_reach
from undrift.experiments.report.curves import finite_or_none
from undrift.experiments.report.load import Method, Records, RunRecord
from undrift.experiments.report.stats import final_quality
from undrift.metrics.quality import higher_is_better, not_known, spread

MINUS = " - "  # between the two terms of a difference
DEVIATIONS = 2  # how many standard deviations a number may be from the published one

Measure = Literal["final", "best", "rounds", "bytes", "uplink bytes", "seconds", "virtual seconds", "number"]
OF_QUALITY: tuple[Measure, ...] = ("final", "best")
BySeed = Mapping[int, float]


class Claim(Section):
    """One claim, about numbers "run/method" that are measured in runs, or about those that a function returned.

    claim, published, source   what is claimed, what was printed and where, in words
    metric, measure            of a run: its "final" quality, that of its "best" round, or the rounds, bytes, uplink bytes,
                               seconds or virtual seconds to a target: a quality, or a "run/method" whose final quality is
                               meant;
                               "number": what a function returned
    and one of three forms, in which a term is a "run/method" or the difference "run/a - run/b" of two:
    of, against                one term, or the difference or ratio (`by`) of two, `above` or `below` a bound; a ratio of
                               costs to a run that never reaches the target is to the cost of all its rounds
    order                      terms of which each is larger than the one before, by more than `above` (0)
    of, equals                 a term that is as published: within `within` of it and, where it was printed with a
                               standard deviation (`spread`), two standard deviations of the difference more
    cell                       whether it is a cell of a table that others have published
    why                        a line on a claim that does not hold
    """

    claim: str
    published: str
    source: str = ""
    metric: str = "accuracy"
    measure: Measure = "final"
    target: float | str | None = None
    of: str | None = None
    against: str | None = None
    by: Literal["difference", "ratio"] = "difference"
    order: list[str] = []
    above: float | None = None
    below: float | None = None
    equals: float | None = None
    within: float | None = Field(default=None, ge=0)
    spread: float | None = Field(default=None, ge=0)
    cell: bool = False
    why: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Claim":
        def refuse(what: str) -> None:
            raise InvalidInput(f"{self.claim!r}: {what}")

        if (self.of is None) == (not self.order):
            refuse("it is about one term, `of`, or about several in `order`")
        if self.order and (len(self.order) < 2 or self.against or self.below is not None or self.equals is not None):
            refuse("`order` has two terms or more, and no bound but `above`")
        bounds = [self.above, self.below, self.equals]
        if not self.order and sum(bound is not None for bound in bounds) != 1:
            refuse("give one bound: above, below or equals")
        if (self.equals is not None) != (self.within is not None or self.spread is not None):
            refuse("`equals` needs `within` or `spread`, and they belong to it")
        if (self.measure in (*OF_QUALITY, "number")) != (self.target is None):
            refuse("a target belongs to rounds, bytes, seconds and virtual seconds")
        return self

    @property
    def terms(self) -> list[str]:
        """What is measured: every "run/method", that of the target too."""
        named = [*self.order, *([self.of] if self.of else []), *([self.against] if self.against else [])]
        target = [self.target] if isinstance(self.target, str) else []
        return [*(label for term in named for label in term.split(MINUS)), *target]

    @property
    def asked(self) -> str:
        """A digest of what is measured, without the bound, which is applied to recorded numbers again."""
        parts = self.model_dump(include={"metric", "measure", "target", "of", "against", "by", "order"})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def in_points(self) -> bool:
        """Whether what is measured is a difference of accuracies, told in percentage points."""
        of_quality = self.measure in OF_QUALITY and "accuracy" in self.metric
        return of_quality and (bool(self.order) or (self.against is not None and self.by == "difference"))


@dataclass(frozen=True)
class ClaimResult:
    """A claim and what was measured: a number per seed, infinite where a target was never reached, NaN where there is none."""

    claim: Claim
    by_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.by_seed) / len(self.by_seed)

    @property
    def std(self) -> float | None:
        """Over seeds; None for a single one, or if the mean is not finite."""
        return spread(self.by_seed) if math.isfinite(self.mean) else None

    @property
    def holds(self) -> str:
        """Whether every seed keeps the bound: "yes", "in the mean" if only their mean does, or "no".

        A number is as published, or not, in the mean.
        """
        claim, low, high = self.claim, -math.inf, math.inf
        if claim.equals is not None:
            return "yes" if abs(self.mean - claim.equals) <= self._allowed else "no"
        low = 0.0 if claim.order and claim.above is None else low if claim.above is None else claim.above
        high = high if claim.below is None else claim.below
        if all(low < value < high for value in self.by_seed):
            return "yes"
        return "in the mean" if low < self.mean < high else "no"

    @property
    def _allowed(self) -> float:
        within, spread = self.claim.within or 0.0, self.claim.spread
        return within if spread is None else within + DEVIATIONS * math.hypot(spread, self.std or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; None is what is not finite."""
        numbers = {
            "by_seed": [finite_or_none(value) for value in self.by_seed],
            "mean": finite_or_none(self.mean),
            "std": self.std,
        }
        return {"claim": self.claim.claim, "asked": self.claim.asked, **numbers, "holds": self.holds}


@dataclass(frozen=True)
class Measurements:
    """What claims are about: methods of experiments, and numbers of functions, both by "run/label"."""

    methods: Mapping[str, Method]
    numbers: Mapping[str, BySeed]


def check_claims(claims: Sequence[Claim], measured: Measurements) -> list[ClaimResult]:
    """Measure every claim."""
    for claim in claims:
        _check_comparable(claim, measured)
    return [ClaimResult(claim, _measure(claim, measured)) for claim in claims]


def methods_of(records: Mapping[str, Records]) -> dict[str, Method]:
    """Every method of some runs by "run/label", with the seeds that ended before they were evaluated, too."""
    runs: dict[str, list[RunRecord]] = {}
    for name, each in records.items():
        ended = [run for run in each.not_evaluated if run.reference is None]
        for run in (*each.runs, *ended):
            runs.setdefault(f"{name}/{run.label}", []).append(run)
    return {label: Method(found[0].label, tuple(found)) for label, found in runs.items()}


def _measure(claim: Claim, measured: Measurements) -> tuple[float, ...]:
    """A number for every seed."""
    if claim.order:
        terms = [_term(claim, term, measured) for term in claim.order]
        _check_paired(claim, terms)
        steps = [[b[seed] - a[seed] for a, b in zip(terms, terms[1:], strict=False)] for seed in terms[0]]
        return tuple(float(np.min(each)) for each in steps)  # NaN if one is, unlike min()
    assert claim.of is not None
    values = _term(claim, claim.of, measured)
    if claim.against is None:
        return tuple(values.values())
    bounded = claim.by == "ratio" and claim.above is None  # an upper bound of a ratio cannot show that it is large
    others = _term(claim, claim.against, measured, at_least=bounded)
    _check_paired(claim, [values, others])
    pairs = [(value, others[seed]) for seed, value in values.items()]
    return tuple(a - b if claim.by == "difference" else _ratio(a, b) for a, b in pairs)


def _ratio(a: float, b: float) -> float:
    """How many times as large; NaN of a negative number, and to one that is not positive or not finite."""
    return a / b if a >= 0 and 0 < b < math.inf else math.nan


def _check_paired(claim: Claim, terms: Sequence[BySeed]) -> None:
    if any(set(term) != set(terms[0]) for term in terms):
        raise InvalidInput(f"{claim.claim!r}: its terms have different seeds, so they cannot be paired")


def _check_comparable(claim: Claim, measured: Measurements) -> None:
    """Longer runs end better, and runs that are evaluated more often reach a quality earlier."""
    labels = [label for label in claim.terms if claim.measure != "number" and label in measured.methods]
    plans = {label: {(run.planned, run.every) for run in measured.methods[label].runs} for label in labels}
    for label, plan in plans.items():
        if len(plan) > 1 or plan != plans[labels[0]]:
            raise InvalidInput(
                f"{claim.claim!r} compares {labels[0]} with {label}, whose runs have other rounds or are evaluated in others: "
                "give both the same `rounds` and `evaluation.every`"
            )


def _term(claim: Claim, term: str, measured: Measurements, at_least: bool = False) -> BySeed:
    named, *less = term.split(MINUS)
    first = _label(claim, named, measured, at_least)
    for other in (_label(claim, label, measured) for label in less):  # less a lower bound would be an upper one
        _check_paired(claim, [first, other])
        first = {seed: value - other[seed] for seed, value in first.items()}
    return first


def _label(claim: Claim, label: str, measured: Measurements, at_least: bool = False) -> BySeed:
    known = measured.numbers if claim.measure == "number" else measured.methods
    if label not in known:
        kind = "number of a function" if claim.measure == "number" else "method of a run"
        raise unknown(f"{kind}, in claim {claim.claim!r}:", label, known)
    if claim.measure == "number":
        if not measured.numbers[label]:
            raise InvalidInput(
                f"{claim.claim!r}: there is no number of {label}, its function has returned an empty list"
            )
        return measured.numbers[label]
    runs = measured.methods[label].runs
    if claim.measure in OF_QUALITY:
        quality = quality_at_the_end if claim.measure == "final" else _best_quality
        found = {run.seed: quality(run, claim.metric) for run in runs}
    else:
        target = _target(claim, measured)
        found = {run.seed: _cost(claim, run, target, at_least) for run in runs}
    expected = (seed for run in runs for seed in run.experiment.settings.get("seeds", ()))
    return dict.fromkeys(sorted({*expected, *found}), math.nan) | found


def quality_at_the_end(run: RunRecord, metric: str) -> float:
    """The final quality of a run; NaN if it ended before its last round: what it had been until then says nothing."""
    return final_quality(run, metric, last=None) if _ended_well(run) else math.nan


def _ended_well(run: RunRecord) -> bool:
    return run.stopped is None and run.recorded >= run.planned


def _best_quality(run: RunRecord, metric: str) -> float:
    if metric not in run.metrics or not run.evaluated.any() or not _ended_well(run):
        return math.nan
    values, higher = run.metrics[metric][run.evaluated], higher_is_better(metric)
    if higher is None:
        raise InvalidInput(not_known(metric))
    return float(values.max() if higher else values.min())


def _target(claim: Claim, measured: Measurements) -> float:
    if not isinstance(claim.target, str):
        assert claim.target is not None
        return claim.target
    finals = _label(claim.model_copy(update={"measure": "final"}), claim.target, measured)
    return sum(finals.values()) / len(finals)


def _cost(claim: Claim, run: RunRecord, target: float, at_least: bool) -> float:
    """What a run spent until it reached the target.

    If it never did, infinite; or with `at_least` what all its rounds cost, which makes a ratio to it an upper bound.
    """
    if not run.recorded or math.isnan(target):
        return math.nan
    rounds = rounds_to_reach(run, claim.metric, target)
    if rounds is None:
        if not at_least:
            return math.inf
        rounds = run.recorded
    if claim.measure == "rounds":
        return float(rounds)
    at = int((run.round == rounds).argmax())
    if claim.measure in ("bytes", "uplink bytes"):
        return float(run.bytes[at] if claim.measure == "bytes" else run.bytes_up[: at + 1].sum())
    if claim.measure == "seconds":
        return float(run.seconds[: at + 1].sum())
    clock = finite_or_none(run.virtual[at])
    if clock is None:
        raise InvalidInput(f"{run.name} has no virtual clock: {claim.claim!r} needs one")
    return clock
