"""Edges where it once went wrong, or easily would."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.algorithms.test_optimum import quadratic
from tests.problems.test_model_problem import X, Y, federation, mlp
from tests.support.toy_problem import PlainFedAvg, gap, path
from undrift.problems.dropout import kept

SIZES = [3, 11, 10, 10, 10, 7, 13, 20, 17]


def uneven(**more: Any) -> ud.ModelProblem:
    ends = np.cumsum([0, *SIZES])
    parts = [list(range(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return federation(clients=parts, **more)


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_lone_client_of_two_is_itself(chunk: int | None) -> None:
    problem = quadratic(N=2)
    settings: dict[str, Any] = {"rounds": 3, "participation": ud.Fixed([[1]] * 3), "chunk": chunk}
    a, b = (path(ud.Scaffold(), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-12


@pytest.mark.parametrize("local", [{"epochs": 1, "batch": 8}, {"steps": 3}], ids=str)
def test_clients_of_all_sizes_give_the_same_bits_in_any_chunk(local: dict[str, Any]) -> None:
    problem = uneven()
    settings: dict[str, Any] = {
        "rounds": 3,
        "local": ud.Local(lr=0.1, **local),
        "engine": "batched",
    }
    paths = [path(ud.Scaffold(), problem, chunk=c, **settings) for c in (1, 2, 3, 4, 9)]
    for other in paths[1:]:
        assert (other == paths[0]).all()


LOSSES: dict[str, Any] = {
    "class weights": lambda o, t: F.cross_entropy(
        o, t, weight=torch.tensor([0.2, 1.0, 5.0]).double()
    ),
    "ignored targets": lambda o, t: F.cross_entropy(o, t, ignore_index=1),
    "a sum": lambda o, t: F.cross_entropy(o, t, reduction="sum") / 10,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_any_loss_is_the_same_in_both_engines(loss: str) -> None:
    problem = uneven(loss=LOSSES[loss])
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(epochs=1, batch=8, lr=0.1)}
    a, b = (path(ud.FedAvg(), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-9


def test_statistics_of_a_minibatch_hold_nobody_elses_samples() -> None:
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    net = nn.Sequential(nn.Linear(6, 5), norm, nn.ReLU(), nn.Linear(5, 3)).double()
    problem = uneven(model=net)
    settings: dict[str, Any] = {"rounds": 3, "local": ud.Local(steps=2, lr=0.1)}
    a, b = (path(ud.FedAvg(), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-9


def test_training_and_evaluation_mode_do_not_leak() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x) * (2 if self.training else 1)

    problem = federation(model=Moody().double())
    ends = [
        path(ud.FedAvg(), problem, rounds=4, engine=e, evaluate_every=n)[-1]
        for e in ("sequential", "batched")
        for n in (1, 9)
    ]
    assert max(gap(end, ends[0]) for end in ends) < 1e-12


def test_full_gradients_draw_nothing() -> None:
    net = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 3)).double()
    problem = federation(model=net)
    paths = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        paths.append(path(ud.MimeLite(opt="sgdm"), problem, rounds=3))
    assert (paths[0] == paths[1]).all()


def test_a_layer_used_twice_is_keyed_twice() -> None:
    drop = nn.Dropout(0.5)
    problem = federation(model=nn.Sequential(nn.Linear(6, 9), drop, nn.Linear(9, 3), drop).double())
    assert len(problem.flat.dropouts) == 2 and problem.engine == "batched"


def test_sequences_as_targets() -> None:
    """Scores [n, T, classes] with a loss that turns them round: no accuracy is better than a wrong one."""
    tokens = torch.as_tensor(np.random.default_rng(0).integers(0, 7, (40, 5)))

    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(x))

    loss = lambda o, t: F.cross_entropy(o.transpose(1, 2), t)
    problem = ud.federate((tokens, tokens), model=Next(), loss=loss, clients=ud.IID(4))
    result = ud.run(ud.FedAvg(), problem, rounds=2, local=ud.Local(epochs=1, batch=4))
    assert set(result.history[-1].metrics) == {"loss"}


def test_regression_with_a_column_of_targets() -> None:
    data = X, X[:, :1] * 2
    problem = ud.federate(data, model=nn.Linear(6, 1).double(), loss=F.mse_loss, clients=ud.IID(7))
    local = ud.Local(epochs=1, batch=8, lr=0.05)
    assert ud.run(ud.Scaffold(), problem, rounds=30, local=local).history[-1].metrics["loss"] < 0.5


def test_x0_from_parameters_and_runs_without_gradients() -> None:
    problem = federation()
    x0 = nn.utils.parameters_to_vector(mlp().parameters())
    result = ud.run(ud.FedAvg(), problem, rounds=2, x0=x0)
    assert not result.x.requires_grad
    with torch.no_grad():
        ends = [
            ud.run(ud.FedAvg(), problem, rounds=2, engine=e).x for e in ("sequential", "batched")
        ]
    assert torch.allclose(ends[0], result.x, rtol=0, atol=1e-12)
    assert torch.allclose(ends[1], result.x, rtol=0, atol=1e-12)


def test_clients_in_many_forms() -> None:
    masks = [np.arange(101) < 40, np.arange(101) >= 40]
    names = [0] * 40 + [1] * 61
    forms: list[Any] = [
        masks,
        names,
        np.array(names),
        torch.tensor(names),
        [range(40), range(40, 101)],
    ]
    for form in forms:
        problem = federation(clients=form)
        assert [problem.size(i) for i in range(2)] == [40, 61]
        assert sorted(problem.samples(0).tolist()) == list(range(40))


def test_numpy_numbers_are_numbers() -> None:
    two: Any = np.int64(2)
    local = ud.Local(steps=two, batch=two, lr=float(np.float32(0.1)), momentum=np.float64(0.5))
    result = ud.run(
        ud.FedAvg(), federation(), rounds=two, local=local, seed=two,
        participation=ud.Uniform(two),
    )  # fmt: skip
    assert len(result.history) == 2
    assert ud.GHBM(tau=two).tau == 2


def test_a_singular_quadratic_is_fine() -> None:
    H = torch.diag(torch.tensor([1.0, 0.0]).double()).repeat(3, 1, 1)
    e = torch.tensor([[1.0, 0], [2, 0], [3, 0]]).double()
    result = ud.run(ud.FedAvg(), ud.Quadratic(H, e), rounds=200, local=ud.Local(lr=0.2))
    assert result.history[-1].metrics["distance"] < 1e-10


def test_clients_without_weight_are_nobody() -> None:
    problem = quadratic([0, 0, 0.5, 0.25, 0.125, 0.125])
    result = ud.run(ud.FedAvg(), problem, rounds=30, participation=ud.Uniform(1))
    assert result.stopped is None and len(result.history) == 30
    idle = [r for r in result.history if set(r.clients) <= {0, 1}]
    assert idle and all(r.exchanges == 0 for r in idle)


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


def test_tables_with_named_columns() -> None:
    table = {
        "a": [1.0, 2.0, 3.0, 4.0],
        "b": [0.0, 1.0, 0.0, 1.0],
        "y": [0, 1, 0, 1],
        "site": list("xyxy"),
    }
    data = ud.from_table(table, ["a", "b"], "y", "site")
    problem = ud.federate(data, model=nn.Linear(2, 2), loss=F.cross_entropy, clients=ud.Natural())
    assert problem.N == 2 and problem.samples(0).tolist() == [0, 2]
    with pytest.raises(ud.InvalidInput, match="unknown column 'c'"):
        ud.from_table(table, ["a", "c"], "y")
    with pytest.raises(ud.InvalidInput, match="1 samples name no client, the first is sample 2"):
        ud.from_table(table | {"site": ["x", "y", None, "y"]}, ["a", "b"], "y", "site")
    with pytest.raises(ud.InvalidInput, match="not numbers: encode it first"):
        ud.from_table(table, ["a", "site"], "y")


# accuracy only where it is one


def test_one_logit_is_not_a_class() -> None:
    loss = lambda o, t: F.binary_cross_entropy_with_logits(o.squeeze(1), t.to(o.dtype))
    data = X, (X[:, 0] > 0).long()
    problem = ud.federate(data, model=nn.Linear(6, 1).double(), loss=loss, clients=ud.IID(4))
    assert set(problem.evaluate(problem.x0)) == {"loss"}


def test_targets_to_be_ignored_do_not_count() -> None:
    targets = torch.where(torch.arange(101) % 2 == 0, -100, 1)
    net = nn.Linear(6, 3).double()
    nn.init.zeros_(net.weight)
    net.bias.data = torch.tensor([0.0, 5.0, 0.0]).double()
    problem = ud.federate((X, targets), model=net, loss=F.cross_entropy, clients=ud.IID(4))
    found = problem.evaluate(problem.x0)
    assert found["accuracy"] == 1.0
    assert found["loss"] == pytest.approx(float(F.cross_entropy(net(X), targets).detach()))


def test_a_test_set_of_ones_own_has_no_natural_clients() -> None:
    who = torch.arange(101) % 5
    names = tuple("abcde")
    data = ud.Data(
        "toy", (X, X[:, 0].gt(0).long()), (X[:50], X[:50, 0].gt(0).long()), who, who[:50], names, 2
    )
    settings: dict[str, Any] = {
        "model": nn.Linear(6, 2).double(), "loss": F.cross_entropy, "metrics": "clients"
    }  # fmt: skip
    own = X[:7], X[:7, 0].gt(0).long()
    for problem in (
        ud.federate(data, clients=ud.Natural(), **settings),
        ud.federate(data, own, clients=ud.Natural(), **settings),
        ud.federate(data, clients=ud.Natural(at_least=21), **settings),
    ):
        found = problem.evaluate(problem.x0)
        assert 0 <= found["client_accuracy"] <= 1
    assert problem.N == 1 and problem.test_clients is not None
    assert (problem.test_clients >= 0).sum() == 10
    few = ud.federate(data, clients=ud.Natural(), test_samples=9, **settings)
    assert few.test is not None and len(few.test[0]) == 9
    assert few.test_clients is not None and len(few.test_clients) == 9


def test_prepare_sees_one_batch_dimension_in_every_engine() -> None:
    images = torch.rand(60, 1, 4, 4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    problem = ud.federate(
        (images, torch.arange(60) % 3),
        model=net,
        loss=F.cross_entropy,
        clients=ud.IID(5),
        prepare=lambda b: b - b.mean((1, 2, 3), keepdim=True),
    )
    a, b = (path(ud.FedAvg(), problem, rounds=3, engine=e) for e in ("sequential", "batched"))
    assert gap(a, b) < 1e-9


def test_figures_are_those_of_samples_that_somebody_holds() -> None:
    problem = federation(clients=[range(10), range(10, 20)], metrics="train")
    expected = F.cross_entropy(mlp()(X[:20]), Y[:20])
    assert problem.evaluate(problem.x0)["train_loss"] == pytest.approx(float(expected.detach()))


def test_a_dropout_called_twice_draws_twice() -> None:
    flat_model = federation(model=nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).double()).flat
    (layer,) = flat_model.dropouts
    layer.train()
    layer.seed, layer.calls = torch.tensor(1), 0
    once, twice = layer(torch.ones(50, 6)), layer(torch.ones(50, 6))
    assert not torch.equal(once, twice)
    layer.p = 1.0
    assert torch.equal(layer(torch.ones(5)), torch.zeros(5))


@pytest.mark.parametrize("step", [1, 2**32, 0x632BE5AB, 0x2545F491])
def test_dropped_units_are_as_many_as_they_should_be_and_unrelated(step: int) -> None:
    """Of seeds that differ little, as those of layers and calls do; within five standard deviations."""
    units, p = 40_000, 0.3
    stays = kept(torch.arange(20) * step + 12345, [units], p).double()
    assert float((stays.mean(1) - (1 - p)).abs().max()) < 5 * (p * (1 - p) / units) ** 0.5
    related = torch.corrcoef(stays).fill_diagonal_(0).abs().max()
    assert float(related) < 5 / units**0.5
    next_to = torch.corrcoef(torch.stack([stays[0, :-1], stays[0, 1:]]))[0, 1]
    assert abs(float(next_to)) < 5 / units**0.5


def test_large_clients_gradients_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = federation(clients=ud.IID(2))
    whole = problem.full_grad(problem.x0, [0])
    monkeypatch.setattr("undrift.problems.evaluation.EVALUATION_BATCH", 7)
    assert torch.allclose(problem.full_grad(problem.x0, [0]), whole, rtol=0, atol=1e-12)


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


def test_numpys_randomness_in_a_model_is_refused() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x) * float(np.random.rand())

    with pytest.raises(ud.InvalidInput, match="numpy's or Python's random numbers"):
        federation(model=Skips().double())
