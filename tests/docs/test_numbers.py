"""No measured number is typed by hand: pages have them from recorded results, or from code that the site runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {  # pages that a command writes as a whole, and its name, which the page gives
    "reproductions.md": "undrift reproduce --page",
    "reliability.md": "tests.faults.soak",
    "licences.md": "make licences",
}
ASSERTED = {"errata.md": "the tests that each section names"}  # pages whose numbers tests compute anew
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]

UNIT = r"(?:%|ms|s|seconds?|minutes?|min|hours?|times|MB|MiB|GB|GiB|kB|points?|bytes)\b|%"
NUMBER = re.compile(rf"(?<![\w.#/:-])(?:\d[\d,]*\.\d+|\.\d+|\d[\d,]*(?=(?: to \d[\d,]*)? ?(?:{UNIT})))")
NO_MEASUREMENT = (  # what has a point or a unit and was not measured
    r"(?:[Tt]heorems?|[Ll]emma|[Cc]orollary|[Ss]ections?|[Tt]ables?|Fig\.|Remark|C\.|\b[A-Z]\.)[ \w]*?[\d.]+(?:(?:,| and) (?:\d+\.\d+)| with \(\d+\))*",
    r"et al\.(?: \d+(?:\.\d+)?,?)+",  # a theorem by its number
    r"(?:Python|torch|TLS|Flower|SemVer|Before) \d[\d.]*(?:(?:,| and| to| or) \d[\d.]+)*",
    r"arXiv:[\d.]+",
    r"95 % interval",
)


def typed_numbers(text: str) -> list[str]:
    """Numbers of a page that look measured: with a point or a unit, outside code, formulas and generated parts."""
    for hidden in (
        r"\A---\n.*?\n---\n",
        r"^(```+).*?^\1",
        r"<!-- begin.*?<!-- end",
        r"^    .*$",
        r"`[^`]*`",
        r"\$[^$\n]*\$",
        r"\]\([^)]*\)",
    ):
        flags = re.MULTILINE | (re.DOTALL if ".*?" in hidden else 0)
        text = re.sub(hidden, " ", text, flags=flags)
    text = " ".join(text.split())
    for words in NO_MEASUREMENT:
        text = re.sub(words, " ", text)
    return [text[max(found.start() - 40, 0) : found.end() + 25] for found in NUMBER.finditer(text)]


@pytest.mark.parametrize("page", [p.name for p in PAGES if p.name not in {*GENERATED, *ASSERTED}])
def test_no_measured_number_is_typed(page: str) -> None:
    path = next(p for p in PAGES if p.name == page)
    found = typed_numbers(path.read_text())
    assert not found, "record it and generate it (docs/_measured.py); settings are `code`: " + "; ".join(found)


@pytest.mark.parametrize("page, command", GENERATED.items())
def test_generated_pages_name_their_command(page: str, command: str) -> None:
    assert command in (DOCS / page).read_text()[:1500]


@pytest.mark.parametrize(
    "text", ["takes 3.5 s", "a round takes 40 ms", "in 5 to 7 s", "W2: 1.12", "saves 25 %", "12 times"]
)
def test_a_typed_measurement_is_found(text: str) -> None:
    assert typed_numbers(text)


@pytest.mark.parametrize(
    "text", ["`lr = 0.1`", "Theorem 4.1", "$0.5$", "```python\nx = 0.5\n```\n", "Python 3.11 or later"]
)
def test_settings_and_references_are_no_measurements(text: str) -> None:
    assert not typed_numbers(text)
