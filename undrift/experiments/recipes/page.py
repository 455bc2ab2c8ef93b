"""Recorded results in words: a row per claim, the tables of a recipe's README, and all recipes as one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from undrift.core.errors import InvalidInput
from undrift.experiments.recipes.claims import OF_QUALITY, Claim, ClaimResult
from undrift.experiments.recipes.recipe import Recipe, read_recipe
from undrift.experiments.recipes.results import (
    VERDICTS,
    RecordedClaim,
    Results,
    check_current,
    count_verdicts,
    reproduced,
)

BEGIN, END = "<!-- results: written by `undrift reproduce --record` -->", "<!-- end of results -->"
PICTURE = "curves.png"
LINK = "../recipes"  # where recipes are, seen from the page
COLUMNS = ("claim", "published", "recorded", "here", "holds")


def format_value(claim: Claim, mean: float | None, std: float | None, seeds: int) -> str:
    """A number with its spread over seeds.

    >>> claim = Claim(claim="a", published="b", of="r/a", against="r/b", above=0)
    >>> format_value(claim, 0.0123, 0.004, 3)
    '+1.23 ± 0.40 points (3 seeds)'
    """
    if mean is None:
        return "not finite" if claim.measure in (*OF_QUALITY, "number") else "never reached"
    scale, unit = (100, " points") if claim.in_points else (1, "")
    difference = bool(claim.order) or (claim.against is not None and claim.by == "difference")
    if claim.against is not None and claim.by == "ratio":
        unit = " times"
    number = (lambda v, sign="": f"{v:{sign}.2f}") if claim.in_points else (lambda v, sign="": f"{v:{sign}.4g}")
    deviation = "" if std is None else f" ± {number(scale * std)}"
    return f"{number(scale * mean, '+' if difference else '')}{deviation}{unit}" + (
        f" ({seeds} seeds)" if seeds > 1 else ""
    )


def describe_result(result: ClaimResult, recorded: RecordedClaim | None) -> dict[str, str]:
    """A claim in words: what was published, what was recorded, what came out here, whether it holds."""
    here = result.to_dict()
    differs = " (not as recorded)" if reproduced(result, recorded) is False else ""
    return {
        "claim": result.claim.claim,
        "published": result.claim.published,
        "recorded": "" if recorded is None else _format_recorded(result.claim, recorded),
        "here": format_value(result.claim, here["mean"], here["std"], len(result.by_seed)) + differs,
        "holds": result.holds,
    }


def _format_recorded(claim: Claim, recorded: RecordedClaim) -> str:
    return format_value(claim, recorded.mean, recorded.std, len(recorded.by_seed))


def claims_table(recipe: Recipe, results: Results) -> str:
    """The claims of a recipe with what was recorded, as a Markdown table."""
    rows = []
    for claim in recipe.claim:
        recorded = results.of(claim)
        assert recorded is not None
        published = claim.published + (f" ({claim.source})" if claim.source else "")
        holds = recorded.holds + (f": {claim.why}" if claim.why and recorded.holds != "yes" else "")
        rows.append([claim.claim, published, _format_recorded(claim, recorded), holds])
    return markdown_table(("claim", "published", "ours", "holds"), rows)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def methods_table(results: Results) -> str:
    """Final metrics of every method, mean and standard deviation over seeds."""
    metrics = list(dict.fromkeys(name for method in results.methods.values() for name in method.final))
    metrics = [name for name in ("accuracy", "loss") if name in metrics] or metrics[:2]
    rows = [
        [label, str(method.seeds), *(_mean_and_std(method.final.get(name), "accuracy" in name) for name in metrics)]
        for label, method in results.methods.items()
    ]
    return markdown_table(("run / method", "seeds", *(f"final {name}" for name in metrics)), rows) if rows else ""


def _mean_and_std(value: tuple[float | None, float | None] | None, share: bool) -> str:
    if value is None or value[0] is None:
        return ""
    scale, unit = (100, " %") if share else (1, "")
    deviation = "" if value[1] is None else f" ± {scale * value[1]:.3g}"
    return f"{scale * value[0]:.4g}{deviation}{unit}"


def write_readme(folder: Path, recipe: Recipe, results: Results) -> None:
    """Put the recorded tables between the marks of a recipe's README."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidInput(f"{path} has no place for results: it needs the two lines {BEGIN} and {END}")
    tables = "\n".join(each for each in (claims_table(recipe, results), methods_table(results)) if each)
    path.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}", encoding="utf-8")


def format_duration(seconds: float) -> str:
    """A duration in words.

    >>> format_duration(42), format_duration(600), format_duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def describe_verdicts(results: Results) -> str:
    """How many claims hold, in words."""
    counts = count_verdicts(results)
    hold = f"{counts['yes']} of {len(results.claims)} claims hold"
    return hold + (f", {counts['in the mean']} more in the mean" if counts["in the mean"] else "")


def render_page(recipes: Mapping[str, Path]) -> str:
    """All recorded results as one page in Markdown."""
    parts, rows, summaries, cells = [], [], [], []
    total = dict.fromkeys(VERDICTS, 0)
    for name, folder in sorted(recipes.items()):
        recipe = read_recipe(folder)
        results = check_current(folder, recipe)
        counts = count_verdicts(results)
        for verdict, count in counts.items():
            total[verdict] += count
        cells += [recorded.holds for claim in recipe.claim if claim.cell and (recorded := results.of(claim))]
        picture = f"\n![{name}]({LINK}/{name}/{PICTURE})\n" if (folder / PICTURE).exists() else ""
        took = format_duration(results.seconds)
        rows.append([f"[{name}](#{name})", *(str(counts[verdict]) for verdict in VERDICTS), took])
        summaries += [f"- **{name}.** {recipe.summary}"] if recipe.summary else []
        parts.append(
            f"## {name}\n\n{recipe.about}. {recipe.paper}. {describe_verdicts(results)}; "
            f"[setting]({LINK}/{name}/README.md). Runs took {took}.\n\n"
            f"    undrift reproduce {name}\n{picture}\n{claims_table(recipe, results)}"
        )
    head = (
        "# Reproductions\n\n"
        "This page is written by `undrift reproduce --page FILE` from the recorded results of every recipe; no number is typed.\n"
        'A claim holds ("yes") if every seed agrees, "in the mean" if only the mean over seeds does. A published number is\n'
        "reproduced if ours is within two standard deviations of the difference, or within the bound that the claim names.\n\n"
        f"{sum(total.values())} claims: {total['yes']} hold, {total['in the mean']} hold in the mean, {total['no']} do not. "
        f"Of {len(cells)} cells of tables that others have published, {cells.count('yes')} are reproduced; "
        "a line beside each of the others says why not.\n\n"
        f"{markdown_table(('recipe', *VERDICTS, 'runs took'), rows)}\n"
        "## Which claims held, and why others did not\n\n" + "\n".join(summaries) + "\n"
    )
    return "\n".join([head, *parts])
