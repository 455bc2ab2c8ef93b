"""Every method equals a literal transcription of its paper, round by round."""

import pytest

from tests.support.method_table import ROWS, Row
from tests.support.oracle_distance import distance_to_oracle, settings_of
from undrift.core.hyper import METHODS

CASES = [pytest.param(row, cohorts, K, id=f"{row}-{name}") for row in ROWS for name, cohorts, K in settings_of(row)]


@pytest.mark.parametrize("row, cohorts, K", CASES)
def test_equals_its_oracle(row: Row, cohorts: list[list[int]], K: list[int]) -> None:
    assert distance_to_oracle(row, cohorts, K) < 1e-9


def test_every_method_has_an_oracle() -> None:
    assert {row.name for row in ROWS} == set(METHODS)
