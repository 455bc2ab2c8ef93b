"""The short form of every attack; `make soak` has the long one (docs/reliability.md)."""

import importlib
import json
from pathlib import Path

import pytest

from tests.faults.soak import ATTACKS, FIGURES, PAGE, page


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.short])
@pytest.mark.parametrize("seed", [7])
def test_an_attack_in_short(name: str, seed: int) -> None:
    module = importlib.import_module(f"tests.faults.{name}")
    tally = module.main(ATTACKS[name].short, seed)
    assert tally.tries == ATTACKS[name].short
    assert tally.failures == [] and tally.silent == tally.crashed == 0


def test_every_attack_is_part_of_the_soak() -> None:
    modules = {path.stem for path in Path(__file__).parent.glob("*.py")}
    assert set(ATTACKS) <= modules
    assert modules - set(ATTACKS) == {"__init__", "harness", "runs", "soak", "test_faults", "test_deployed"}


def test_the_page_has_the_figures() -> None:
    figures = json.loads(FIGURES.read_text())
    assert PAGE.read_text() == page(figures)
    assert list(figures) and all(not (f["silent"] or f["crashed"]) for f in figures.values())
