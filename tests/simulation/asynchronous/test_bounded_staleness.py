"""ud.Buffer(max_staleness=...): the bound holds, and what is late is accounted for."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.population import ROUGH
from tests.support.quadratics import quadratic
from tests.support.toy_problem import path

SPREAD = ud.Population(pace=ud.LogNormal(1.0, sigma=1.2), jitter=0.3)


def played(server: ud.Buffer, population: ud.Population = SPREAD, **more: Any) -> list[ud.Round]:
    settings: dict[str, Any] = {"rounds": 40, "local": ud.Local(steps=2, lr=0.05), "participation": ud.Uniform(4)}
    return list(ud.rounds(ud.Scaffold(), quadratic(N=8), population=population, server=server, **(settings | more)))


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(1, 3), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_no_update_is_older_than_the_bound(seed: int, bound: int, size: int, out: int) -> None:
    rounds = played(ud.Buffer(size, out, bound), ROUGH, seed=seed, rounds=25)
    assert [len(r.clients) for r in rounds] == [size] * 25
    for r in rounds:
        assert max(r.timing.staleness) <= bound
        assert {v.fate for v in r.timing.visits} <= {"arrives", "late", "left", "lost before", "lost after"}


def test_a_bound_that_nothing_reaches_changes_nothing() -> None:
    free = played(ud.Buffer(2, 6))
    assert max(max(r.timing.staleness) for r in free) > 2
    for r, s in zip(played(ud.Buffer(2, 6, max_staleness=40)), free, strict=True):
        assert torch.equal(r.x, s.x) and (r.clients, r.time, r.timing) == (s.clients, s.time, s.timing)


def test_late_work_is_thrown_away_and_told() -> None:
    """By hand: client 0 makes a step in 1 s, client 1 in 10 s; with a bound of 2 the second never counts."""
    problem = quadratic(N=2)
    population = ud.Population(pace=ud.Table([1.0, 10.0]))
    how: dict[str, Any] = {"rounds": 8, "local": ud.Local(steps=1, lr=0.05), "population": population, "seed": 0}
    rounds = list(ud.rounds(ud.FedAvg(), problem, server=ud.Buffer(1, 2, max_staleness=2), **how))
    assert [r.clients for r in rounds] == [(0,)] * 8 and [r.time for r in rounds] == [1.0 * t for t in range(1, 9)]
    late = [(r.round, v) for r in rounds for v in r.timing.visits if v.fate == "late"]
    # sent out with version 0, it is broken off when the server has made 3 steps; then again, with version 3
    assert [(t, v.client, v.version, v.dispatched, v.returns) for t, v in late] == [(4, 1, 0, 0, 3), (7, 1, 3, 3, 6)]
    assert [r.timing.lost for r in rounds] == [(), (), (), (1,), (), (), (1,), ()]
    assert sum(r.timing.wasted for r in rounds) == 6.0
    assert [r.bytes_up for r in rounds] == [rounds[0].bytes_up] * 8  # what is broken off is not sent


def test_what_has_arrived_and_is_too_old_costs_its_bytes() -> None:
    """All four return at once; the buffer takes two, and the others are one step too old for the next."""
    problem, one = quadratic(N=4), 8 * 4
    how: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=1, lr=0.05)}
    rounds = list(ud.rounds(ud.FedAvg(), problem, server=ud.Buffer(2, 4, max_staleness=0), **how))
    assert [r.timing.staleness for r in rounds] == [(0, 0)] * 3
    assert [r.bytes_up for r in rounds] == [2 * one, 4 * one, 4 * one]
    assert [len(r.timing.lost) for r in rounds] == [0, 2, 2]


def test_with_no_staleness_allowed_fresh_updates_are_those_of_a_cohort() -> None:
    """Without delays, and as many at work as the buffer holds, the bound 0 is the sequential engine."""
    same: dict[str, Any] = {"rounds": 6, "participation": ud.Uniform(3), "local": ud.Local(steps=2, lr=0.05)}
    bounded = path(ud.Scaffold(), quadratic(), engine="events", server=ud.Buffer(3, max_staleness=0), **same)
    assert np.array_equal(bounded, path(ud.Scaffold(), quadratic(), **same))


def test_any_chunk_gives_the_same_bits() -> None:
    """An answer that was computed ahead and is thrown away does not come back with the client's next visit."""
    server = ud.Buffer(2, 7, max_staleness=1)
    paths = [torch.stack([r.x for r in played(server, engine="events-batched", chunk=c)]) for c in (1, 3, 100)]
    assert torch.equal(paths[0], paths[1]) and torch.equal(paths[0], paths[2])


def test_refused() -> None:
    with pytest.raises(ud.InvalidInput, match=r"Buffer: max_staleness must lie in \[0, inf\), got -1"):
        ud.Buffer(2, max_staleness=-1)
    with pytest.raises(ud.InvalidInput, match="max_staleness must be a whole number"):
        ud.Buffer(2, max_staleness=1.5)  # pyright: ignore[reportArgumentType]
