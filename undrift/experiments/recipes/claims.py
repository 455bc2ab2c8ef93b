"""What a paper claims, as numbers of runs: measured seed by seed, and held against a bound."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config.section import Section
from undrift.experiments.report.load import Method, RunRecord, load_runs
from undrift.experiments.report.stats import default_last, final_quality, rounds_to_reach
from undrift.experiments.runs.files import read_json, write_json
from undrift.metrics.quality import spread


class Ours(Section):
    """What came out when the recipe was recorded."""

    by_seed: list[float | None]  # None: never reached
    mean: float | None
    std: float | None


class Claim(Section):
    """One claim.

    published   what the paper says, in words or as a number
    measure     "final" quality, or "rounds" or "virtual seconds" to the target
    of, against two runs' methods, as "run/method"; `by` their "difference" or "ratio"; without `against` it is `of` alone
    above,below the bound that the number must keep for the claim to hold
    tolerance   how far another machine's mean may be from ours
    """

    claim: str
    published: str
    figure: str = "accuracy"
    measure: Literal["final", "rounds", "virtual seconds"] = "final"
    target: float | None = None
    of: str
    against: str | None = None
    by: Literal["difference", "ratio"] = "difference"
    above: float | None = None
    below: float | None = None
    tolerance: float = Field(ge=0)
    ours: Ours | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Claim":
        if (self.above is None) == (self.below is None):
            raise InvalidInput(f"{self.claim!r}: give one bound, above or below")
        if (self.measure == "final") != (self.target is None):
            raise InvalidInput(f"{self.claim!r}: a target belongs to rounds and virtual seconds")
        return self

    def kept(self, value: float) -> bool:
        """Whether a number is on the right side of the bound."""
        return value > self.above if self.above is not None else value < (self.below or 0.0)


@dataclass(frozen=True)
class Finding:
    """A claim and what was measured.

    holds   "yes" if every seed keeps the bound, "in the mean" if only the mean does, else "no"
    """

    claim: Claim
    by_seed: tuple[float, ...]
    mean: float
    std: float | None

    @property
    def holds(self) -> str:
        if all(map(self.claim.kept, self.by_seed)):
            return "yes"
        return "in the mean" if self.claim.kept(self.mean) else "no"

    @property
    def as_recorded(self) -> bool | None:
        """Whether it is what was recorded, within the tolerance; None if nothing was."""
        ours = self.claim.ours
        if ours is None:
            return None
        if ours.mean is None or not math.isfinite(self.mean):
            return ours.mean is None and not math.isfinite(self.mean)
        return abs(self.mean - ours.mean) <= self.claim.tolerance

    @property
    def ours(self) -> Ours:
        """To be recorded; what is never reached is None in JSON."""
        plain = [value if math.isfinite(value) else None for value in self.by_seed]
        mean = self.mean if math.isfinite(self.mean) else None
        std = self.std if self.std is not None and math.isfinite(self.std) else None
        return Ours(by_seed=plain, mean=mean, std=std)

    def json(self) -> dict[str, Any]:
        """As claims.json holds it."""
        words = self.claim.model_dump(exclude_none=True)
        return (
            words | self.ours.model_dump() | {"holds": self.holds, "as_recorded": self.as_recorded}
        )


def read_claims(path: Path) -> list[Claim]:
    """The claims of an expected.json."""
    try:
        return TypeAdapter(list[Claim]).validate_python(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidInput(
            f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}"
        ) from None


def record(path: Path, found: Sequence[Finding]) -> None:
    """Write what was measured into an expected.json."""
    claims = [f.claim.model_copy(update={"ours": f.ours}) for f in found]
    write_json(path, [claim.model_dump(exclude_none=True) for claim in claims])


def findings(claims: Sequence[Claim], runs: Mapping[str, Path]) -> list[Finding]:
    """Every claim, measured in the directories of these runs."""
    methods = {
        f"{name}/{method.label}": method
        for name, path in runs.items()
        for method in load_runs([path]).methods
    }
    return [_found(claim, methods) for claim in claims]


def _found(claim: Claim, methods: Mapping[str, Method]) -> Finding:
    mine = _measured(claim, claim.of, methods)
    if claim.against is not None:
        theirs = _measured(claim, claim.against, methods)
        if set(mine) != set(theirs):
            raise InvalidInput(f"{claim.of} and {claim.against} have different seeds")
        mine = {seed: _compared(claim.by, value, theirs[seed]) for seed, value in mine.items()}
    values = tuple(mine.values())
    mean = sum(values) / len(values)
    return Finding(claim, values, mean, spread(values) if math.isfinite(mean) else None)


def _compared(by: str, a: float, b: float) -> float:
    if by == "ratio":
        return math.nan if math.isinf(a) and math.isinf(b) else a / b
    return a - b


def _measured(claim: Claim, label: str, methods: Mapping[str, Method]) -> dict[int, float]:
    """A number for every seed; infinity if the target is never reached."""
    if label not in methods:
        raise unknown("method of a run:", label, methods)
    runs = methods[label].runs
    return {run.seed: _number(claim, run, default_last(runs)) for run in runs}


def _number(claim: Claim, run: RunRecord, last: int) -> float:
    if claim.target is None:
        return final_quality(run, claim.figure, last)
    reached = rounds_to_reach(run, claim.figure, claim.target)
    if reached is None:
        return math.inf
    if claim.measure == "rounds":
        return float(reached)
    if not np.isfinite(run.virtual).all():
        raise InvalidInput(f"{run.name} has no virtual clock: {claim.claim!r} needs one")
    return float(run.virtual[reached - 1])
