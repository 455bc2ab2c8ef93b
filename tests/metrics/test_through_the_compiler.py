"""Metrics of the theory in visits that the compiler has really compiled, not only traced."""

from typing import Any

import pytest

from tests.metrics.test_theory import EVERYWHERE, METHODS, expected, misses, runs


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold-m", "ghbm"])
def test_metrics_are_what_they_are_by_hand(method: str, refusals: Any) -> None:
    found = runs(method, "compiled", 3, (*EVERYWHERE, *METHODS[method][1]))
    assert misses(found, expected(method, found)[1]) == []
    assert refusals() == []
