"""Metrics and codecs where clients are on the workers of a Ray cluster."""

from typing import Any

import pytest
import torch

import undrift as ud
from tests.metrics.test_theory import EVERYWHERE, METHODS, expected, misses, runs
from tests.support.everywhere import N, federation, models, played
from tests.support.quadratics import P
from tests.support.toy_problem import gap

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def variates(probe: ud.Probe) -> dict[str, Any]:
    assert probe.cohort is not None
    c = probe.clients.gather(range(N)).c
    return {"c_gap": (c.mean(0) - probe.server.c).norm(), "c_norm": c.norm(), "S": probe.cohort.S}


def test_the_same_metrics_and_trajectory_as_in_this_process(ray_workers: None) -> None:
    problem = federation()
    settings: dict[str, Any] = {"metrics": ("test", variates), "codec": "fp16", "rounds": 3}
    here = played(ud.Scaffold(), "sequential", problem, **settings)
    there = played(ud.Scaffold(), "ray", problem, workers=1, **settings)
    assert gap(models(there), models(here)) < 1e-9
    for r, other in zip(there, here, strict=True):
        assert r.metrics == pytest.approx(other.metrics, rel=1e-9, abs=1e-12)
        assert (r.bytes_up, r.bytes_down) == (other.bytes_up, other.bytes_down)
        assert r.metrics["c_norm"] > 0 and r.metrics["c_gap"] < 1e-3


def test_metrics_of_the_theory_are_what_they_are_by_hand(ray_workers: None) -> None:
    for method in METHODS:
        found = runs(method, "ray", len(P) if method == "fedavg" else 3, (*EVERYWHERE, *METHODS[method][1]))
        assert misses(found, expected(method, found)[1]) == []
        if method == "scaffold-m":
            plain = runs(method, "ray", 3, ())
            assert all(torch.equal(a.x, b.x) for a, b in zip(plain, found, strict=True))
