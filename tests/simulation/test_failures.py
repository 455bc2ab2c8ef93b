"""Rounds, clients and methods that fail: named, left out, undone."""

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.quadratics import quadratic
from tests.support.toy_problem import PlainFedAvg, path
from undrift.algorithms.fedavg import FedAvg

# a round that fails in its second exchange leaves no trace


@ud.record
class Server:
    x: Any


@ud.record
class Visits:
    count: Any


@ud.record
class Up:
    delta: Any


@dataclass(frozen=True)
class FailsLate:
    since: int = 3

    def server(self, x: Any) -> Server:
        return Server(x)

    def client(self, x: Any) -> Visits:
        return Visits(0 * x[:1])

    def send(self, server: Server) -> Server:
        return server

    def exchanges(self, t: int) -> Any:
        first = ud.Exchange(self.send, self.local, self.update)
        second = ud.Exchange(self.send, self.poison, self.update)
        return (first, second) if t else ()

    def local(self, down: Any, client: Visits, work: Any) -> Any:
        return Up(0 * down.x), Visits(client.count + 1)

    def poison(self, down: Any, client: Visits, work: Any) -> Any:
        return Up(down.x * (float("nan") if work.t >= self.since else 1)), client

    def update(self, server: Server, mean: Any, cohort: Any) -> Server:
        return server


def test_a_failed_round_is_undone() -> None:
    problem = quadratic()
    x0 = torch.ones(4, dtype=torch.float64)
    method: Any = FailsLate()
    result = ud.run(method, problem, rounds=9, x0=x0)
    assert result.stopped is not None and result.state.round == 2
    assert (result.state.clients.gather(range(6)).count == 2).all()
    better: Any = FailsLate(since=99)
    again = ud.run(better, problem, rounds=5, start=result)
    assert (again.state.clients.gather(range(6)).count == 5).all()


# methods of one's own that are not quite right


class SendsAFloat(PlainFedAvg):
    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, state = super().local(down, client, work)
        return (up, 3.0), state


class KeepsMore(PlainFedAvg):
    def local(self, down: Any, client: Any, work: Any) -> Any:
        return super().local(down, client, work)[0], Visits(work.K)


class NoModel(PlainFedAvg):
    def server(self, x: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Up(x)

    def send(self, server: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return server


class OutsideTheLoop(PlainFedAvg):
    def local(self, down: Any, client: Any, work: Any) -> Any:
        return Up(work.grad(down.x)), None


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize(
    "method, message",
    [
        (SendsAFloat(), "stage local: TypeError: records hold tensors"),
        (KeepsMore(), "client\\(\\) makes NoneType with 0: they must be alike"),
        (NoModel(), "needs a field x"),
        (OutsideTheLoop(), "call it inside work.loop"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_mistakes_in_a_method_are_named(method: Any, message: str, engine: str) -> None:
    with pytest.raises((ud.MethodFailure, ud.InvalidInput), match=message):
        ud.run(method, quadratic(), rounds=2, engine=engine)


def test_an_unregistered_method_runs() -> None:
    method: Any = PlainFedAvg()
    a, b = (path(m, quadratic(), rounds=3) for m in (method, ud.FedAvg()))
    assert (a == b).all()


def test_an_interrupted_round_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = quadratic()
    rounds = ud.rounds(ud.Scaffold(), problem, rounds=5)
    first = next(rounds)
    before = first.snapshot().clients.gather(range(6)).c

    def interrupt(x: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(problem, "evaluate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(rounds)
    assert torch.equal(first.snapshot().clients.gather(range(6)).c, before)


# clients that go wrong


@dataclass(frozen=True)
class Poisoned(PlainFedAvg):
    """FedAvg in which one client answers with something else from a certain round on."""

    client_id: int | None
    answer: Any
    since: int = 2

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, state = super().local(down, client, work)
        delta = up.delta.clone()
        rows = delta.view(len(work.clients), -1)
        for row, i in enumerate(work.clients):
            if work.t >= self.since and self.client_id in (None, i):
                rows[row] = self.answer
        return type(up)(delta), state


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
def test_a_client_with_nan_is_named_left_out_and_counted(
    engine: str, answer: float, caplog: pytest.LogCaptureFixture
) -> None:
    problem = quadratic()
    others = [[0, 1, 2, 3, 4, 5]] + [[0, 1, 2, 4, 5]] * 3
    settings: dict[str, Any] = {"rounds": 4, "local": ud.Local(steps=2), "engine": engine}
    with caplog.at_level(logging.WARNING, logger="undrift"):
        result = ud.run(Poisoned(3, answer), problem, **settings)  # pyright: ignore[reportArgumentType]
    expected = ud.run(ud.FedAvg(), problem, participation=ud.Fixed(others), **settings)
    assert torch.equal(result.x, expected.x)
    assert [r.left_out for r in result.history] == [(), (3,), (3,), (3,)]
    assert "round 2: client 3" in caplog.text
    assert result.history[1].bytes_up == 6 * 4 * 8  # it did arrive


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_run_with_nothing_left_stops_with_the_last_good_state(engine: str) -> None:
    problem = quadratic()
    settings: dict[str, Any] = {"local": ud.Local(steps=2), "engine": engine}
    poisoned: Any = Poisoned(None, float("nan"), since=4)
    result = ud.run(poisoned, problem, rounds=9, **settings)
    good = ud.run(ud.FedAvg(), problem, rounds=3, **settings)
    assert torch.equal(result.x, good.x)
    assert result.stopped is not None and "round 4" in result.stopped
    assert len(result.history) == 3
    with pytest.raises(ud.Diverged, match="round 4"):
        list(ud.rounds(poisoned, problem, rounds=9, **settings))


def test_divergence_ends_with_a_finite_model() -> None:
    result = ud.run(ud.FedAvg(), quadratic(), rounds=5000, local=ud.Local(steps=9, lr=30.0))
    assert result.stopped is not None
    assert result.x.isfinite().all()


def test_an_overflow_on_the_server_keeps_clients_states_as_they_were() -> None:
    result = ud.run(ud.Scaffold(eta_g=1e200), quadratic(), rounds=50, local=ud.Local(steps=2))
    assert result.stopped is not None and "server" in result.stopped
    assert result.x.isfinite().all()


@dataclass(frozen=True)
class Raises(PlainFedAvg):
    stage: str = "local"

    def local(self, down: Any, client: Any, work: Any) -> Any:
        if self.stage == "local" and 2 in work.clients:
            raise ZeroDivisionError("the client's own fault")
        return super().local(down, client, work)

    def update(self, server: Any, mean: Any, cohort: Any) -> Any:
        raise KeyError("the server's")


def test_errors_name_client_round_and_stage() -> None:
    broken: Any = Raises()
    with pytest.raises(ud.MethodFailure, match="client 2, round 1, stage local: ZeroDivision"):
        ud.run(broken, quadratic(), rounds=2, engine="sequential")
    with pytest.raises(ud.MethodFailure, match="round 1, stage local: .*engine='sequential'"):
        ud.run(broken, quadratic(), rounds=2, engine="batched")
    broken = Raises("update")
    with pytest.raises(ud.MethodFailure, match="server, round 1, stage update: KeyError"):
        ud.run(broken, quadratic(), rounds=2)


class WrongShape(PlainFedAvg):
    def __init__(self, whose: int):
        self.whose = whose

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, state = super().local(down, client, work)
        return (type(up)(up.delta[..., :2]) if self.whose in work.clients else up), state


@pytest.mark.parametrize("whose", [0, 1], ids=["the first", "another"])
def test_a_client_with_a_wrong_shape_is_left_out(whose: int) -> None:
    wrong: Any = WrongShape(whose)
    result = ud.run(wrong, quadratic(), rounds=2, engine="sequential")
    assert [r.left_out for r in result.history] == [(whose,), (whose,)]


class OddClient(FedAvg):
    """Client 2 answers with another shape, and so does whoever is computed beside it."""

    def local(self, down, client, work):
        up, state = super().local(down, client, work)
        return (type(up)(up.delta[..., :2]) if 2 in work.clients else up), state


def test_a_wrong_shape_is_left_out_alone_in_every_engine() -> None:
    problem = ud.Quadratic(torch.eye(3).repeat(5, 1, 1), torch.arange(15.0).view(5, 3))
    one_by_one, at_once = (
        ud.run(OddClient(), problem, rounds=2, local=ud.Local(steps=2, lr=0.1), engine=engine)
        for engine in ("sequential", "batched")
    )
    assert [r.left_out for r in one_by_one.history] == [r.left_out for r in at_once.history] == [(2,), (2,)]
    assert torch.allclose(one_by_one.x, at_once.x)
