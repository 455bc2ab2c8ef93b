"""How far a method is from its oracle, in every setting for which it is defined."""

from typing import Any

import undrift as ud
from tests.support.method_table import Row
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path, random_cohorts

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
