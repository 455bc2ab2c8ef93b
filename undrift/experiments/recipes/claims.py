"""The claims of a paper, measured in runs seed by seed and checked against a bound."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, TypeAdapter, ValidationError, model_validator

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config.section import Section
from undrift.experiments.recipes.recipe import explain_error
from undrift.experiments.report.load import Method, RunRecord, load_runs
from undrift.experiments.report.stats import (
    default_last,
    final_quality,
    finite,
    rounds_to_reach,
)
from undrift.experiments.runs.files import read_json, write_json
from undrift.metrics.quality import spread


class Measured(Section):
    """What was measured; None is a target that was never reached."""

    by_seed: list[float | None]
    mean: float | None
    std: float | None


class Claim(Section):
    """One claim.

    published     what the paper says, in words or as a number
    measure       "final" quality, or "rounds" or "virtual seconds" to the target
    of, against   the methods of two runs, as "run/method"; by: their "difference" or "ratio"; `of` alone without `against`
    above, below  the bound that the number must keep for the claim to hold
    tolerance     how far the mean on another machine may be from ours, what was measured when the recipe was recorded
    """

    claim: str
    published: str
    metric: str = Field("accuracy", validation_alias=AliasChoices("metric", "figure"))
    measure: Literal["final", "rounds", "virtual seconds"] = "final"
    target: float | None = None
    of: str
    against: str | None = None
    by: Literal["difference", "ratio"] = "difference"
    above: float | None = None
    below: float | None = None
    tolerance: float = Field(ge=0)
    ours: Measured | None = None

    @model_validator(mode="after")
    def _check(self) -> "Claim":
        if (self.above is None) == (self.below is None):
            raise InvalidInput(f"{self.claim!r}: give one bound, above or below")
        if (self.measure == "final") != (self.target is None):
            raise InvalidInput(f"{self.claim!r}: a target belongs to rounds and virtual seconds")
        return self

    def holds_for(self, value: float) -> bool:
        """Whether a number keeps the bound."""
        return value > self.above if self.above is not None else value < (self.below or 0.0)


@dataclass(frozen=True)
class ClaimResult:
    """A claim and what was measured, infinite where a target was never reached."""

    claim: Claim
    by_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.by_seed) / len(self.by_seed)

    @property
    def holds(self) -> str:
        """Whether every seed keeps the bound: "yes", "in the mean" if only their mean does, or "no"."""
        if all(map(self.claim.holds_for, self.by_seed)):
            return "yes"
        return "in the mean" if self.claim.holds_for(self.mean) else "no"

    @property
    def as_recorded(self) -> bool | None:
        """Whether it is what was recorded, within the tolerance; None if nothing was."""
        ours, mean = self.claim.ours, finite(self.mean)
        if ours is None:
            return None
        if ours.mean is None or mean is None:
            return ours.mean is mean
        return abs(mean - ours.mean) <= self.claim.tolerance

    @property
    def measured(self) -> Measured:
        mean = finite(self.mean)
        std = None if mean is None else spread(self.by_seed)
        return Measured(by_seed=[finite(value) for value in self.by_seed], mean=mean, std=std)

    def to_dict(self) -> dict[str, Any]:
        """As claims.json holds it."""
        claim, measured = self.claim.model_dump(exclude_none=True), self.measured.model_dump()
        return claim | measured | {"holds": self.holds, "as_recorded": self.as_recorded}


def read_claims(path: Path) -> list[Claim]:
    """Read the claims of an expected.json."""
    try:
        return TypeAdapter(list[Claim]).validate_python(read_json(path))
    except ValidationError as error:
        raise explain_error(path, error) from None


def record_results(path: Path, results: Sequence[ClaimResult]) -> None:
    """Write what was measured into an expected.json."""
    claims = [each.claim.model_copy(update={"ours": each.measured}) for each in results]
    write_json(path, [claim.model_dump(exclude_none=True) for claim in claims])


def check_claims(claims: Sequence[Claim], runs: Mapping[str, Path]) -> list[ClaimResult]:
    """Measure every claim in the directories of these runs."""
    methods = {
        f"{name}/{method.label}": method
        for name, path in runs.items()
        for method in load_runs([path]).methods
    }
    return [ClaimResult(claim, _measure(claim, methods)) for claim in claims]


def _measure(claim: Claim, methods: Mapping[str, Method]) -> tuple[float, ...]:
    """A number for every seed."""
    values = _measure_seeds(claim, claim.of, methods)
    if claim.against is None:
        return tuple(values.values())
    others = _measure_seeds(claim, claim.against, methods)
    if set(values) != set(others):
        raise InvalidInput(f"{claim.of} and {claim.against} have different seeds")
    pairs = [(value, others[seed]) for seed, value in values.items()]
    if claim.by == "difference":
        return tuple(a - b for a, b in pairs)
    return tuple(math.nan if math.isinf(a) and math.isinf(b) else a / b for a, b in pairs)


def _measure_seeds(claim: Claim, label: str, methods: Mapping[str, Method]) -> dict[int, float]:
    if label not in methods:
        raise unknown("method of a run:", label, methods)
    runs = methods[label].runs
    return {run.seed: _measure_run(claim, run, default_last(runs)) for run in runs}


def _measure_run(claim: Claim, run: RunRecord, last: int) -> float:
    if claim.target is None:
        return final_quality(run, claim.metric, last)
    rounds = rounds_to_reach(run, claim.metric, claim.target)
    if rounds is None or claim.measure == "rounds":
        return math.inf if rounds is None else float(rounds)
    clock = finite(run.virtual[rounds - 1])
    if clock is None:
        raise InvalidInput(f"{run.name} has no virtual clock: {claim.claim!r} needs one")
    return clock
