"""Trajectories are what they were, to the bit (tests/support/digests.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.digests import RECORDED, cases, demo, digest, machine
from tests.support.method_table import Row

EXPECTED: dict[str, Any] = json.loads(RECORDED.read_text())
CASES = [pytest.param(*case, id=name) for name, *case in cases()]


@pytest.mark.parametrize("row, problem, engine", CASES)
def test_a_trajectory_is_what_it_was(row: Row, problem: str, engine: str, request: pytest.FixtureRequest) -> None:
    expected, found = EXPECTED[request.node.callspec.id], digest(row, problem, engine)
    check(expected, found, rounding=1e-9 if problem == "quadratic" else 1e-3)


def check(expected: Any, found: Any, rounding: float) -> None:
    if EXPECTED["machine"] == machine():
        assert found == expected
    else:
        assert found["x"] == pytest.approx(expected["x"], rel=rounding, abs=rounding)


@pytest.mark.slow
def test_the_demo_is_what_it_was(tmp_path: Path) -> None:
    found = demo(tmp_path)
    assert set(found) == {name for name in EXPECTED if name.startswith("demo")}
    for name, each in found.items():
        check(EXPECTED[name], each, rounding=0.05)


def test_every_case_is_recorded() -> None:
    rows = {name for name in EXPECTED if not name.startswith("demo")}
    assert {name for name, *_ in cases()} == rows - {"machine"}
