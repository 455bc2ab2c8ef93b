"""What every method must do, whoever wrote it: one parametrised suite over the table."""

from typing import Any

import pytest

import undrift as ud
from tests.support.method_table import FIRST, ROWS, Row, made
from tests.support.oracles.world import make_world
from tests.support.toy_problem import WorldProblem, gap, path
from undrift.core.hyper import METHODS
from undrift.core.records import nbytes
from undrift.simulation.catalogue import measure_method
from undrift.simulation.conformance import CHECKS, run_check, subject_of

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
@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_any_method(row: Row, name: str) -> None:
    """What `ud.check` tests in a user's method holds for the package's own."""
    steps = [1, 4, 2, 5, 3] if row.unequal else 3
    who = ud.Uniform(3) if row.partial else ud.Everyone()
    subject = subject_of(made(row), participation=who, local=ud.Local(steps=steps, lr=0.05, **row.local))
    assert run_check(name, subject).wrong == ""


@every_method
def test_hyper_parameters_cannot_change(row: Row) -> None:
    algorithm = made(row)
    for name in list(vars(algorithm)) or ["anything"]:
        with pytest.raises((AttributeError, TypeError)):
            setattr(algorithm, name, 1)
    assert made(row) == algorithm


@every_method
def test_bytes_are_those_of_the_records(row: Row) -> None:
    """What a run books is what its messages hold, client by client; a walk of one client is booked once."""
    problem = WorldProblem(make_world(N))
    run = ud.run(made(row), problem, **settings(row))
    cost = measure_method(METHODS[row.name].spec, made(row), D=3)
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
    "scallion": (2, 1), "scafcom": (2, 1), "diloco": (1, 1), "fedadamw": (2, 1), "scaffold-m": (2, 1), "scaffold-m-vr": (3, 2), "mime": (3, 2), "mimelite": (1, 2),
    "mb-storm": (2, 1), "ce-lsgd": (4, 2), "bvr-l-sgd": (4, 2), "stem": (2, 2),
    "fedbuff": (1, 1), "fedasync": (1, 1), "autonomous-fedgm": (1, 1), "autonomous-fedavg": (1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_traffic_is_what_the_table_says(name: str) -> None:
    cost = measure_method(METHODS[name].spec, METHODS[name].make())
    down, up = (sum(int(v) for v in side) for side in zip(*cost.traffic, strict=True))
    assert (down, up) == EXPECTED[name]
