"""Every method equals a literal transcription of its paper, round by round."""

from typing import Any

import pytest

import undrift as ud
from tests.support.method_table import ROWS, Row
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path, random_cohorts
from undrift.core.hyper import METHODS

T, N, ETA = 28, 5, 0.08
EQUAL, UNEQUAL = [3] * N, [1, 4, 2, 6, 3]


def settings_of(row: Row) -> list[tuple[str, list[list[int]], list[int]]]:
    everyone, some = [list(range(N))] * T, random_cohorts(N, 2, T)
    settings = [("everyone", everyone, EQUAL)]
    if row.unequal:
        settings += [("unequal", everyone, UNEQUAL)]
    if row.partial:
        settings += [("partial", some, EQUAL)]
    if row.partial and row.unequal:
        settings += [("partial-unequal", some, UNEQUAL)]
    return settings


CASES = [
    pytest.param(row, cohorts, K, id=f"{row}-{name}")
    for row in ROWS
    for name, cohorts, K in settings_of(row)
]


def distance_to_oracle(row: Row, cohorts: list[list[int]], K: list[int]) -> float:
    w = make_world(N, p=[1, 2, 3, 1, 2] if row.weighted else None)
    problem = WorldProblem(w)
    participation: Any = ud.Fixed(cohorts) if row.partial else ud.Everyone()
    ours = path(
        ud.method(row.name, **row.hyper),
        problem,
        rounds=T,
        participation=participation,
        local=ud.Local(steps=K, lr=ETA, **row.local),
    )
    told = dict(row.told)
    if row.walks:
        told["pick"] = [clients[0] for key, clients in problem.visits if key.exchange == 1]
    return gap(ours, row.oracle(w, cohorts, K, ETA, **told))


@pytest.mark.parametrize("row, cohorts, K", CASES)
def test_equals_its_oracle(row: Row, cohorts: list[list[int]], K: list[int]) -> None:
    assert distance_to_oracle(row, cohorts, K) < 1e-9


def test_every_method_has_an_oracle() -> None:
    assert {row.name for row in ROWS} == set(METHODS)
