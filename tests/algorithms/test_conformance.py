"""What every method must do, whoever wrote it: one parametrised suite over the table."""

import inspect
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.method_table import FIRST, ROWS, Row, made
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path
from undrift.core.algorithm import Cohort, exchanges_of
from undrift.core.hyper import METHODS
from undrift.core.records import map_tensors, nbytes, tensors
from undrift.core.rng import Key
from undrift.core.work import Solver, Work
from undrift.simulation.catalogue import measure

N, T = 5, 8


every_row = pytest.mark.parametrize("row", ROWS, ids=str)
every_method = pytest.mark.parametrize("row", FIRST, ids=lambda row: row.name)


def settings(row: Row, **more: Any) -> dict[str, Any]:
    steps = [1, 4, 2, 5, 3] if row.unequal else 3
    who = ud.Uniform(3) if row.partial else ud.Everyone()
    local = ud.Local(steps=steps, lr=0.05, **row.local)
    return {"rounds": T, "participation": who, "local": local, "seed": 7} | more


@every_row
def test_sequential_equals_batched(row: Row) -> None:
    problem = WorldProblem(make_world(N))
    one = path(made(row), problem, **settings(row, engine="sequential"))
    all_ = path(made(row), problem, **settings(row, engine="batched"))
    assert gap(all_, one) < 1e-9


@every_method
def test_any_chunk_gives_the_same_bits(row: Row) -> None:
    rng = torch.Generator().manual_seed(0)
    H = torch.randn(N, 40, 40, dtype=torch.float64, generator=rng)
    e = torch.randn(N, 40, dtype=torch.float64, generator=rng)
    problem = ud.Quadratic(torch.eye(40, dtype=torch.float64) + H @ H.mT / 80, e, variance=0.1)
    paths = [
        path(made(row), problem, **settings(row, engine="batched", chunk=chunk))
        for chunk in (1, 2, 3, 100)
    ]
    for other in paths[1:]:
        assert (other == paths[0]).all()


@every_method
def test_restart_from_the_records_alone(row: Row) -> None:
    problem = WorldProblem(make_world(N))
    models, states = [], []
    for r in ud.rounds(made(row), problem, **settings(row)):
        models.append(r.x)
        states.append(r.snapshot())
    for pause in (1, 4):
        again = list(ud.rounds(made(row), problem, **settings(row, start=states[pause - 1])))
        assert [r.round for r in again] == list(range(pause + 1, T + 1))
        for r, x in zip(again, models[pause:], strict=True):
            assert torch.equal(r.x, x)


def visit(row: Row, dtype: torch.dtype, t: int, server: Any, client: Any) -> Any:
    """One round with one client, record by record; what went in must come out unchanged."""
    algorithm, problem = (
        made(row),
        ud.Quadratic(torch.eye(3, dtype=dtype)[None], torch.ones(1, 3, dtype=dtype)),
    )
    for number, exchange in enumerate(exchanges_of(algorithm, t)):
        one = torch.ones(1, dtype=torch.float64)
        cohort = Cohort(t, 1, 1, 1.0, one, 0 * one, 0.05, 3.0)

        def fresh_work(number: int = number) -> Work:
            return Work(problem, Solver(lr=0.05), [0], [3], Key(0, t, number), single=True)

        down = exchange.send(server)
        up, new_client = exchange.local(down, client, fresh_work())
        updated = exchange.update(server, up, cohort)
        yield server, client, down, up, new_client, updated, (exchange, fresh_work, cohort)
        server, client = updated, new_client
    return server, client


def played(row: Row, dtype: torch.dtype) -> Any:
    x = torch.ones(3, dtype=dtype)
    algorithm = made(row)
    server, client = algorithm.server(x), algorithm.client(x)
    for t in (0, 1, 2):
        for step in visit(row, dtype, t, server, client):
            server, client = step[5], step[4]
            yield step


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_and_shapes_are_kept(row: Row, dtype: torch.dtype) -> None:
    for server, client, down, up, new_client, updated, _ in played(row, dtype):
        for record in (server, client, down, up, new_client, updated):
            assert all(t.dtype == dtype for t in tensors(record))
            assert all(t.shape in {(3,), (1,)} for t in tensors(record))
        assert type(new_client) is type(client)
        assert [t.shape for t in tensors(new_client)] == [t.shape for t in tensors(client)]
        assert type(updated) is type(server)
        assert updated.x.shape == (3,)


@every_method
def test_methods_are_pure(row: Row) -> None:
    for server, client, down, up, new_client, updated, again in played(row, torch.float64):
        exchange, fresh_work, cohort = again
        kept = [map_tensors(torch.clone, record) for record in (server, client, down, up)]
        down2 = exchange.send(server)
        up2, client2 = exchange.local(down, client, fresh_work())
        updated2 = exchange.update(server, up, cohort)
        for a, b in [(down, down2), (up, up2), (new_client, client2), (updated, updated2)]:
            assert all(torch.equal(s, t) for s, t in zip(tensors(a), tensors(b), strict=True))
        for a, b in zip(kept, (server, client, down, up), strict=True):
            assert all(torch.equal(s, t) for s, t in zip(tensors(a), tensors(b), strict=True))


@every_method
def test_hyper_parameters_cannot_change(row: Row) -> None:
    algorithm = made(row)
    for name in list(vars(algorithm)) or ["anything"]:
        with pytest.raises((AttributeError, TypeError)):
            setattr(algorithm, name, 1)
    assert made(row) == algorithm


@every_method
def test_signatures(row: Row) -> None:
    algorithm = made(row)
    for name, expected in {
        "server": ["x"],
        "client": ["x"],
        "send": ["server"],
        "local": ["down", "client", "work"],
        "update": ["server", "mean", "cohort"],
    }.items():
        assert list(inspect.signature(getattr(algorithm, name)).parameters) == expected


@every_method
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_one_client_alone(row: Row, engine: str) -> None:
    problem = WorldProblem(make_world(1))
    run = ud.run(made(row), problem, rounds=3, local=ud.Local(steps=2, lr=0.05), engine=engine)
    assert run.stopped is None
    assert run.x.isfinite().all()


@every_method
def test_bytes_are_those_of_the_records(row: Row) -> None:
    """What a run books is what its messages hold, client by client; a walk of one client is booked once."""
    problem = WorldProblem(make_world(N))
    run = ud.run(made(row), problem, **settings(row))
    cost = measure(METHODS[row.name].spec, made(row), D=3)
    model = nbytes(problem.x0)
    S = len(run.history[-1].clients)
    visits = [S] * len(cost.traffic)
    if cost.one_walks:
        visits[-1] = 1
    down = sum(d * v for (d, _), v in zip(cost.traffic, visits, strict=True)) * model
    up = sum(u * v for (_, u), v in zip(cost.traffic, visits, strict=True)) * model
    last = run.history[-1]
    assert (last.bytes_down, last.bytes_up) == (round(down), round(up))
    assert last.exchanges == len(cost.traffic)
    first = run.history[0]
    hello = [(d * N * model, u * N * model) for d, u in cost.initialisation]
    if row.name != "bvr-l-sgd":  # whose first round asks everyone for a full gradient
        assert first.bytes_down - last.bytes_down == round(sum(d for d, _ in hello))
        assert first.bytes_up - last.bytes_up == round(sum(u for _, u in hello))


EXPECTED = {  # vectors down and up a visit, over all exchanges; the one number of FedNova apart
    "fedavg": (1, 1), "fedprox": (1, 1), "fedavgm": (1, 1), "fednag": (1, 1), "fedgm": (1, 1),
    "multistage-fedgm": (1, 1), "fedadam": (1, 1), "fedyogi": (1, 1), "fedadagrad": (1, 1),
    "feddyn": (1, 1), "adabest": (1, 1), "local-ghbm": (1, 1), "fedhbm": (1, 1),
    "ghbm-server": (1, 1), "vrl-sgd": (1, 1), "led": (1, 1), "scaffnew": (1, 1),
    "fednova": (1, 1), "fednova-vr": (2, 1), "fedavg-m": (2, 1), "fedcm": (2, 1), "ghbm": (2, 1),
    "ghbm-theory": (2, 1), "fedadc": (2, 1), "fedavg-m-vr": (3, 1), "scaffold": (2, 2),
    "scaffold-m": (2, 1), "scaffold-m-vr": (3, 2), "mime": (3, 2), "mimelite": (1, 2),
    "mb-storm": (2, 1), "ce-lsgd": (4, 2), "bvr-l-sgd": (4, 2), "stem": (2, 2),
    "fedbuff": (1, 1), "fedasync": (1, 1), "autonomous-fedgm": (1, 1), "autonomous-fedavg": (1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_traffic_is_what_the_table_says(name: str) -> None:
    cost = measure(METHODS[name].spec, METHODS[name].make())
    down, up = (sum(int(v) for v in side) for side in zip(*cost.traffic, strict=True))
    assert (down, up) == EXPECTED[name]
