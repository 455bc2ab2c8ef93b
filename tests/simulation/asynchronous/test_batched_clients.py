"""Clients on different models computed together: each row has its own Down and round, and the same bits in any company."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud
from tests.support.method_table import FIRST, ROWS, Row
from tests.support.population import ROUGH, SEVERAL_EXCHANGES
from tests.support.toy_problem import path
from undrift.simulation.engines.choice import EngineChoice

N = 8
BUFFERED = [row for row in FIRST if row.partial and row.name not in SEVERAL_EXCHANGES]


class Watched(ud.Quadratic):
    """Counts how often clients of different rounds were drawn together."""

    mixed = 0

    def draw_each(self, key: Any, rounds: Any, clients: Any, steps: Any, batch: Any) -> Any:
        self.mixed += len({*rounds}) > 1
        return super().draw_each(key, rounds, clients, steps, batch)


class Apart(ud.Quadratic):
    """Cannot draw for several rounds at once."""

    draw_each = None  # pyright: ignore[reportAssignmentType]

    def draw(self, key: Any, clients: Any, steps: Any, batch: Any) -> Any:
        return ud.Quadratic.draw_each(self, key, [key.round] * len(clients), clients, steps, batch)


def noisy(kind: type[Any]) -> Any:
    random = np.random.default_rng(4)
    A = random.standard_normal((N, 12, 12)) / 4
    H, e = A @ A.swapaxes(1, 2) + 0.3 * np.eye(12), random.standard_normal((N, 12))
    return kind(torch.as_tensor(H), torch.as_tensor(e), variance=0.5)


def given(row: Row, **more: Any) -> dict[str, Any]:
    steps = (2, 5) if row.unequal else 3
    return {
        "rounds": 28, "seed": 9, "participation": ud.Uniform(3), "population": ROUGH,
        "local": ud.Local(steps=steps, lr=0.03, **row.local), "server": ud.Buffer(2, concurrency=6),
    } | more  # fmt: skip


@pytest.mark.parametrize("row", BUFFERED, ids=lambda row: row.name)
def test_every_method_gives_the_same_bits_in_any_company(row: Row) -> None:
    algorithm = ud.method(row.name, **row.hyper)
    wide = path(algorithm, noisy(ud.Quadratic), engine="events-batched", **given(row))
    for other in (
        path(algorithm, noisy(ud.Quadratic), engine="events-batched", chunk=1, **given(row)),
        path(algorithm, noisy(ud.Quadratic), engine="events-batched", chunk=3, **given(row)),
        path(algorithm, noisy(Apart), engine="events-batched", **given(row)),
    ):
        assert (other == wide).all()
    one_by_one = path(algorithm, noisy(ud.Quadratic), engine="events-sequential", **given(row))
    np.testing.assert_allclose(wide, one_by_one, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("row", BUFFERED, ids=lambda row: row.name)
def test_without_delays_it_is_the_batched_engine_bit_for_bit(row: Row) -> None:
    algorithm, calm = ud.method(row.name, **row.hyper), ud.Population()
    same = given(row, population=calm, server=ud.Buffer(3))
    found = path(algorithm, noisy(ud.Quadratic), engine="events-batched", **same)
    del same["population"], same["server"]
    assert (found == path(algorithm, noisy(ud.Quadratic), engine="batched", **same)).all()


def test_clients_on_different_models_are_computed_together() -> None:
    """Unless the method asks for the round, which is found out once."""
    row = next(row for row in ROWS if row.name == "fedavg")
    counts = []
    for name in ("fedavg", "scaffold", "adabest"):
        problem = noisy(Watched)
        path(ud.method(name), problem, engine="events-batched", **given(row))
        counts.append(problem.mixed)
    assert min(counts[:2]) > 5
    assert counts[2] == 1


def test_a_step_size_that_changes_from_round_to_round_keeps_them_apart() -> None:
    row = next(row for row in ROWS if row.name == "fedavg")
    local = ud.Local(steps=3, lr=0.05, decay=0.9)
    problem = noisy(Watched)
    wide = path(ud.FedAvg(), problem, engine="events-batched", **given(row, local=local))
    alone = path(ud.FedAvg(), problem, engine="events-sequential", **given(row, local=local))
    np.testing.assert_allclose(wide, alone, rtol=1e-9, atol=1e-11)
    assert problem.mixed == 0


def test_as_many_are_computed_at_once_as_are_at_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "undrift")
    row = next(row for row in ROWS if row.name == "fedavg")
    path(ud.FedAvg(), noisy(ud.Quadratic), engine="events-batched", **given(row))
    assert str(EngineChoice("batched", 6)) in caplog.text


@pytest.mark.parametrize("size", [1, 3])
def test_a_model_with_dropout_and_short_minibatches(size: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))
    X, Y = torch.randn(150, 6), torch.randint(3, (150,))
    problem = ud.federate((X, Y), model=net, loss=nn.functional.cross_entropy,
                          clients=ud.Dirichlet(9, alpha=0.5))  # fmt: skip
    same: dict[str, Any] = {
        "rounds": 25, "participation": ud.Uniform(3), "local": ud.Local(epochs=(1, 3), batch=7, lr=0.1),
        "population": ROUGH, "server": ud.Buffer(size, concurrency=7),
    }  # fmt: skip
    wide = path(ud.FedAsync(), problem, engine="events-batched", **same)
    for chunk in (1, 2, 4):
        narrow = path(ud.FedAsync(), problem, engine="events-batched", chunk=chunk, **same)
        assert (narrow == wide).all()
    alone = path(ud.FedAsync(), problem, engine="events-sequential", **same)
    np.testing.assert_allclose(wide, alone, rtol=1e-3, atol=1e-5)
