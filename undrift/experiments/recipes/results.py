"""What came out of a recipe when it was recorded, and whether that is still about the recipe as it is now."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from undrift.core.errors import InvalidInput
from undrift.experiments.config.section import Section
from undrift.experiments.recipes.claims import Claim, ClaimResult, Measurements, quality_at_the_end
from undrift.experiments.recipes.recipe import Recipe, explain_error, settings_digest
from undrift.experiments.report.curves import finite_or_none
from undrift.experiments.report.load import RunRecord
from undrift.experiments.runs.files import read_json, write_json
from undrift.metrics.quality import spread
from undrift.version import __version__

RESULTS = "results.json"
NUMBERS = "numbers.json"  # of a function, in the directory of a reproduction
VERDICTS: tuple[str, ...] = ("yes", "in the mean", "no")


class RecordedClaim(Section):
    """A claim's numbers: one per seed, their mean and standard deviation; None is a target that was never reached, or a run
    that ended early.

    asked   a digest of what was measured; empty in what was recorded before there was one
    """

    claim: str
    asked: str = ""
    by_seed: list[float | None]
    mean: float | None
    std: float | None
    holds: str


class RecordedMethod(Section):
    """The final metrics of a method: mean and standard deviation over seeds."""

    seeds: int
    final: dict[str, tuple[float | None, float | None]]


class Results(Section):
    """What was recorded: with which settings and version, in how many seconds of runs, and what came out."""

    settings: str  # the digest of what was run
    version: str
    seconds: float
    claims: list[RecordedClaim]
    methods: dict[str, RecordedMethod] = {}

    def of(self, claim: Claim) -> RecordedClaim | None:
        """What was recorded of a claim."""
        return next((each for each in self.claims if each.claim == claim.claim), None)


def read_results(folder: Path) -> Results | None:
    """What was recorded of a recipe, None if nothing was."""
    path = folder / RESULTS
    if not path.exists():
        return None
    try:
        return Results.model_validate(read_json(path))
    except ValidationError as error:
        raise explain_error(path, error) from None


def outdated(folder: Path, recipe: Recipe) -> str | None:
    """Why recorded results are not those of the recipe as it is, None if they are or if there are none."""
    results = read_results(folder)
    if results is None:
        return None
    if results.settings != settings_digest(folder, recipe):
        return "its searches, runs or files have changed since results were recorded"
    return next((why for claim in recipe.claim if (why := _outdated_claim(claim, results.of(claim)))), None)


def _outdated_claim(claim: Claim, recorded: RecordedClaim | None) -> str | None:
    if recorded is None:
        return f"nothing is recorded of the claim {claim.claim!r}"
    values = tuple(math.nan if value is None else value for value in recorded.by_seed)
    other = recorded.asked not in ("", claim.asked) or ClaimResult(claim, values).holds != recorded.holds
    return f"the claim {claim.claim!r} has changed since its answer was recorded" if other else None


def record_results(
    folder: Path, recipe: Recipe, results: Sequence[ClaimResult], measured: Measurements, seconds: float
) -> None:
    """Write what came out into the recipe's folder."""
    recorded = Results(
        settings=settings_digest(folder, recipe),
        version=__version__,
        seconds=round(seconds, 1),
        claims=[RecordedClaim.model_validate(result.to_dict()) for result in results],
        methods={label: _recorded_method(method.runs) for label, method in measured.methods.items()},
    )
    write_json(folder / RESULTS, recorded.model_dump())


def _recorded_method(runs: Sequence[RunRecord]) -> RecordedMethod:
    final: dict[str, tuple[float | None, float | None]] = {}
    for metric in dict.fromkeys(name for run in runs for name in run.metrics):
        values = [quality_at_the_end(run, metric) for run in runs]
        mean = finite_or_none(sum(values) / len(values))
        final[metric] = mean, None if mean is None else spread(values)
    return RecordedMethod(seeds=len(runs), final=final)


def reproduced(result: ClaimResult, recorded: RecordedClaim | None) -> bool | None:
    """Whether a claim comes out as it was recorded: the same verdict, and a mean within two standard deviations.

    None if nothing was recorded.
    """
    if recorded is None:
        return None
    mean = finite_or_none(result.mean)
    if result.holds != recorded.holds or mean is None or recorded.mean is None:
        return result.holds == recorded.holds and mean is recorded.mean
    slack = 2 * (recorded.std or 0.0) + 1e-6 * max(1.0, abs(recorded.mean))
    return abs(mean - recorded.mean) <= slack


def check_current(folder: Path, recipe: Recipe) -> Results:
    """The recorded results of a recipe; refused if there are none, or if they are of another version of it."""
    results, why = read_results(folder), outdated(folder, recipe)
    if results is None or why is not None:
        why = why or "nothing has been recorded yet"
        raise InvalidInput(f"recipe {folder.name}: {why}; `undrift reproduce {folder.name} --record` records it anew")
    return results


def count_verdicts(results: Results) -> Mapping[str, int]:
    """How many claims hold, hold in the mean, do not hold."""
    return {verdict: sum(each.holds == verdict for each in results.claims) for verdict in VERDICTS}
