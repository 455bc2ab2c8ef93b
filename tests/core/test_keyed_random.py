"""Random numbers of methods: `work.random` on clients, `cohort.random` on the server, the same wherever they are drawn."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.everywhere import (
    N,
    every_engine,
    federation,
    models,
    other_engines,
    played,
)
from tests.support.toy_problem import PlainFedAvg, gap
from undrift.algorithms.fedavg import Up

pytestmark = pytest.mark.usefixtures("interpreted")


class Langevin(PlainFedAvg):
    """Noise before the steps, twice in every step, after them, and on the server."""

    size = 0.01

    def local(self, down: Any, client: None, work: Any) -> tuple[Up, None]:
        start = down.x + self.size * work.random(down.x)

        def step(y: Tensor) -> Tensor:
            noise = work.random(y, "uniform") - 0.5
            kept = work.random(work.K, "uniform")  # one number a client
            return work.step(y, work.grad(y) * kept + self.size * noise)

        y = work.loop(step, start)
        y = work.loop(step, y, steps=2)
        first, second = work.random(y), work.random(y, "uniform")
        return Up(down.x - y - self.size * first * second), None

    def update(self, server: Any, mean: Any, cohort: ud.Cohort) -> Any:
        noise = cohort.random(server.x) * cohort.random(server.x, "uniform", call=1)
        return type(server)(server.x - mean.delta + self.size * noise)


langevin: Any = Langevin()
UNEQUAL = ud.Local(steps=[4, 2, 3, 1, 5], batch=4, lr=0.1)


@other_engines
@pytest.mark.parametrize("unequal", [False, True])
def test_every_engine_draws_the_same(engine: str, unequal: bool, refusals: Any) -> None:
    local = UNEQUAL if unequal else ud.Local(steps=3, batch=4, lr=0.1)
    found, reference = (models(played(langevin, e, local=local)) for e in (engine, "sequential"))
    assert gap(found, reference) < 1e-9
    assert refusals() == []
    silent: Any = Langevin()
    silent.size = 0.0
    assert gap(reference, models(played(silent, "sequential", local=local))) > 1e-3


@pytest.mark.parametrize("engine", ["batched", "compiled"])
def test_chunks_do_not_matter(engine: str) -> None:
    problem = federation()
    whole = models(played(langevin, engine, problem, local=UNEQUAL))
    for chunk in (1, 2) if engine == "batched" else (2,):
        parts = models(played(langevin, engine, problem, local=UNEQUAL, chunk=chunk))
        assert gap(parts, whole) < 1e-9
        assert engine == "compiled" or (parts == whole).all()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_matter(workers: int) -> None:
    alone = models(played(langevin, "sequential", local=UNEQUAL))
    assert (models(played(langevin, "sequential", local=UNEQUAL, workers=workers)) == alone).all()


@every_engine
def test_a_resumed_run_repeats_them(engine: str) -> None:
    problem = federation()
    whole = models(played(langevin, engine, problem))
    for pause in (1, 3):
        *_, last = played(langevin, engine, problem, rounds=pause)
        rest = models(played(langevin, engine, problem, start=last.snapshot()))
        assert (rest == whole[pause:]).all()


class Listening(PlainFedAvg):
    """Writes down what is drawn, by client, round and place."""

    def __init__(self) -> None:
        self.heard: dict[tuple[Any, ...], np.ndarray] = {}

    def note(self, where: tuple[Any, ...], drawn: Tensor) -> None:
        assert where not in self.heard
        self.heard[where] = drawn.numpy().copy()

    def local(self, down: Any, client: Any, work: Any) -> Any:
        who = work.clients[0], work.t
        self.note((*who, "before"), work.random(down.x))
        self.note((*who, "again"), work.random(down.x))
        k = iter(range(99))

        def step(y: Tensor) -> Tensor:
            place = next(k)
            self.note((*who, "step", place), work.random(y))
            self.note((*who, "step again", place), work.random(y))
            return work.step(y, work.grad(y))

        y = work.loop(step, down.x)
        self.note((*who, "after"), work.random(y))
        y = work.loop(step, y)
        self.note((*who, "end"), work.random(y))
        return Up(down.x - y), None

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        for call in (0, 1):
            self.note(("server", cohort.round, call), cohort.random(server.x, call=call))
        return ud.FedAvg().update(server, mean, cohort)


def heard(seed: int = 0) -> dict[tuple[Any, ...], np.ndarray]:
    method: Any = Listening()
    played(method, "sequential", rounds=2, seed=seed, participation=ud.Everyone())
    return method.heard


def test_every_place_client_round_and_seed_has_numbers_of_its_own() -> None:
    drawn = heard()
    assert len(drawn) == 2 * (N * (4 + 2 * 3 * 2) + 2)
    everything = np.concatenate([*drawn.values(), *heard(seed=1).values()])
    assert len(np.unique(everything)) == len(everything)
    assert abs(everything.mean()) < 5 / len(everything) ** 0.5  # standard normal
    assert everything.std() == pytest.approx(1, abs=0.05)
    again = heard()
    assert all((again[where] == drawn[where]).all() for where in drawn)


def test_numbers_are_those_of_the_key_alone() -> None:
    """Who else takes part does not matter."""
    drawn = heard()
    alone: Any = Listening()
    played(alone, "sequential", rounds=2, seed=0, participation=ud.Fixed([[1], [3]]))
    for where in alone.heard:
        assert (alone.heard[where] == drawn[where]).all()
    assert {where[:2] for where in alone.heard if where[0] != "server"} == {(1, 1), (3, 2)}


def test_uniform_numbers_and_types() -> None:
    found: list[Tensor] = []

    class Uniform(PlainFedAvg):
        def local(self, down: Any, client: Any, work: Any) -> Any:
            found.append(work.random(down.x, "uniform"))
            found.append(work.random(work.K, "uniform"))
            return super().local(down, client, work)

    uniform: Any = Uniform()
    played(uniform, "sequential", federation(torch.float32), rounds=2)
    vectors, numbers = found[::2], found[1::2]
    assert {t.dtype for t in found} == {torch.float32}
    assert {t.shape for t in vectors} == {federation().x0.shape}
    assert {t.shape for t in numbers} == {(1,)}
    values = torch.cat(vectors)
    assert 0 <= float(values.min()) and float(values.max()) < 1 and 0.4 < float(values.mean()) < 0.6


@pytest.mark.parametrize("engine", ["sequential", "batched", "compiled"])
def test_an_unknown_distribution_is_named(engine: str) -> None:
    class Wrong(PlainFedAvg):
        def local(self, down: Any, client: Any, work: Any) -> Any:
            work.random(down.x, "gaussian")
            return super().local(down, client, work)

    class WrongServer(PlainFedAvg):
        def update(self, server: Any, mean: Any, cohort: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return type(server)(server.x + cohort.random(server.x, "gaussian"))

    for wrong, stage in ((Wrong(), "client.*stage local"), (WrongServer(), "server.*stage update")):
        method: Any = wrong
        message = f"{stage}: InvalidInput: unknown distribution 'gaussian'. Known: normal, uniform"
        with pytest.raises(ud.MethodFailure, match=message):
            played(method, engine)
