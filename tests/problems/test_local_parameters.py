"""Parameters that clients keep to themselves: FedPer, FedBN, in all engines and on nodes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.in_process_nodes import (
    NAMES,
    Nodes,
    deployed,
    deployed_rounds,
    experiment,
    quietly,
    run_dir,
    simulated,
)
from undrift.core.errors import InvalidInput
from undrift.deploy.messages import stamps_of
from undrift.deploy.state_store import ClientStateStore

LOCAL = ud.Local(steps=3, batch=5, lr=0.1)
SIX = range(6)


def net(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    between = nn.BatchNorm1d(6) if norm else nn.Identity()
    layers = {"body": nn.Linear(4, 6), "norm": between, "relu": nn.ReLU(), "head": nn.Linear(6, 3)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model.double()


def federation(local: Any, clients: int = 6, norm: bool = False) -> ud.ModelProblem:
    random = torch.Generator().manual_seed(1)
    X, Y = torch.randn(60, 4, dtype=torch.float64, generator=random), torch.arange(60) % 3
    parts = ud.IID(clients)
    return ud.federate((X, Y), model=net(norm), loss=F.cross_entropy, clients=parts, local_parameters=local)


def own(result: ud.Result) -> Tensor:
    return result.state.clients.gather(SIX).local_parameters


def test_is_fedper_as_one_would_write_it() -> None:
    """y = w x + b_i with b_i local, everyone, full batches: in numpy."""
    random = np.random.default_rng(0)
    X, b = random.standard_normal((3, 8, 2)), np.array([-1.0, 0.0, 2.0])
    Y = X @ np.array([1.0, -2.0]) + b[:, None]
    data = [(torch.tensor(x), torch.tensor(y)[:, None]) for x, y in zip(X, Y, strict=True)]
    torch.manual_seed(0)
    problem = ud.federate(data, model=nn.Linear(2, 1).double(), loss=F.mse_loss, local_parameters="bias")
    result = ud.run(ud.FedAvg(), problem, rounds=4, local=ud.Local(steps=3, lr=0.1))
    assert problem.local_x0 is not None
    w, c = problem.x0.numpy().copy(), np.repeat(problem.local_x0.numpy(), 3)
    for _ in range(4):
        new = []
        for i in range(3):
            v = w.copy()
            for _ in range(3):
                off = X[i] @ v + c[i] - Y[i]
                v, c[i] = v - 0.1 * 2 * off @ X[i] / 8, c[i] - 0.1 * 2 * off.mean()
            new.append(v)
        w = np.mean(new, axis=0)
    assert np.abs(result.x.numpy() - w).max() < 1e-12
    assert np.abs(result.state.clients.gather(range(3)).local_parameters[:, 0].numpy() - c).max() < 1e-12


def test_one_client_trains_as_without_local_parameters() -> None:
    local = ud.Local(steps=4, batch=10, lr=0.1, optimiser="adam", clip=0.5, weight_decay=0.1)
    whole, split = federation(None, clients=1), federation("head", clients=1)
    a, b = (ud.run(ud.FedAvg(), each, rounds=1, local=local) for each in (whole, split))
    found = torch.cat([b.x, b.state.clients.gather([0]).local_parameters[0]])
    assert (found - a.x).abs().max() < 1e-9


METHODS = ("fedavg", "scaffold", "mime", "fedhbm", "fednova", "scaffold-m", "feddyn", "ce-lsgd")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("local", ("head", "batch-norm"))
def test_engines_agree_and_only_shared_parameters_travel(name: str, local: str) -> None:
    settings: dict[str, Any] = {"rounds": 2, "local": LOCAL, "participation": ud.Uniform(3)}
    problem, whole = federation(local, norm=local == "batch-norm"), federation(None)
    one, many = (ud.run(ud.method(name), problem, engine=e, **settings) for e in ("sequential", "batched"))
    assert (one.x - many.x).abs().max() < 1e-9 and (own(one) - own(many)).abs().max() < 1e-9
    assert problem.local_x0 is not None
    moved = (own(one) != problem.local_x0).any(1)
    seen = {i for r in one.history for i in r.clients}
    assert {i for i in SIX if moved[i]} == seen and len(seen) < 6
    if local == "head":
        every = ud.run(ud.method(name), whole, engine="sequential", **settings)
        count = whole.x0.numel() - problem.x0.numel()
        vectors = (every.history[1].bytes_up - one.history[1].bytes_up) / (8 * count)
        assert vectors == int(vectors) and vectors >= 1


def test_unequal_work_codecs_and_kept_optimisers() -> None:
    local = ud.Local(steps=(1, 5), batch=5, lr=0.05, optimiser="momentum", optimiser_state="keep")
    settings: dict[str, Any] = {"rounds": 3, "local": local, "codec": "top-k:0.5,feedback"}
    one, many = (ud.run(ud.FedAvg(), federation("head"), engine=e, **settings) for e in ("sequential", "batched"))
    assert (one.x - many.x).abs().max() < 1e-9 and (own(one) - own(many)).abs().max() < 1e-9


def test_resumes_to_the_same_bits() -> None:
    settings: dict[str, Any] = {"local": LOCAL, "participation": ud.Uniform(3), "engine": "sequential"}
    whole = ud.run(ud.Scaffold(), federation("head"), rounds=4, **settings)
    half = ud.run(ud.Scaffold(), federation("head"), rounds=2, **settings)
    rest = ud.run(ud.Scaffold(), federation("head"), rounds=4, start=half, **settings)
    assert torch.equal(rest.x, whole.x) and torch.equal(own(rest), own(whole))


def test_compiling_is_given_up_with_a_notice(caplog: Any) -> None:
    plain = ud.run(ud.FedAvg(), federation("head"), rounds=2, local=LOCAL, engine="batched")
    found = ud.run(ud.FedAvg(), federation("head"), rounds=2, local=LOCAL, engine="compiled")
    assert "clients have parameters of their own" in caplog.text
    assert torch.equal(found.x, plain.x)


@pytest.mark.parametrize("name", ("fedavg", "scaffold-m"))
def test_on_nodes_as_in_simulation(name: str, tmp_path: Path) -> None:
    made = experiment(name, model={"name": "logistic", "local_parameters": "*bias"})
    here, there = simulated(made), deployed(Nodes(made, tmp_path))
    assert here[-1].x.numel() == 640
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a.x, b.x) and a.metrics == b.metrics
        assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)


@pytest.mark.parametrize("name", ("fedavg", "scaffold"))
def test_a_node_that_lost_its_parameters_starts_again_and_no_others_leave_theirs(name: str, tmp_path: Path) -> None:
    made = experiment(
        name, model={"name": "logistic", "local_parameters": "*bias"}, participation={"scheme": "everyone"}, rounds=4
    )
    nodes, lost, arrays = Nodes(made, tmp_path), [], []

    def spoil(who: str, reply: Any) -> Any:
        arrays.extend((reply.kind, t.numel()) for t in reply.arrays.values())
        return reply

    def fault(who: str, envelope: Any) -> str:
        if envelope.kind == "work" and envelope.header["visit"]["round"] == 3 and not lost:
            lost.append(who)
            nodes.lose(who)
        return ""

    nodes.spoil, nodes.fault = spoil, fault
    with quietly():
        rounds = []
        for r in deployed_rounds(nodes):
            rounds.append(r.round)
            if name == "scaffold":
                kept = [on_disk(nodes, i, r) for i in range(3)]
                mean = sum(state["state.own.c"] for state in kept) / 3  # of as many samples each
                assert (r.state.server.c - mean).abs().max() < 1e-6
    assert rounds == [1, 2, 3, 4] and lost
    assert {size for _, size in arrays} <= {640, 1}, "ten biases stay where they are"
    assert (("state", 640) in arrays) == (name == "scaffold"), "the sum of c is rebuilt from all c"


def on_disk(nodes: Nodes, client: int, r: Any) -> dict[str, Tensor]:
    """What a node keeps of the state that it has by the server's book."""
    run = json.loads((run_dir(nodes.folder) / "deployment.json").read_text())["run"]
    (stamp,) = stamps_of(r.state.clients.gather([client]))
    stored = ClientStateStore(nodes.folder / NAMES[client] / run).get(stamp)
    assert stored is not None and stored[0]["state.local_parameters"].numel() == 10
    return stored[0]


def skewed(shift: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Digits of five clients: of scanners of their own, or of two classes each."""
    data = ud.load("digits")
    made = []
    assert data.test is not None
    for X, Y in (data.train, data.test):
        X = data.prepare(X) if data.prepare else X
        X, who = X.float().flatten(1)[:400], Y[:400] // 2
        if shift:
            each = [(2.0 ** (i - 2) * X[i::5] + 1.5 * (i - 2), Y[:400][i::5]) for i in range(5)]
        else:
            each = [(X[who == i], Y[:400][who == i]) for i in range(5)]
        made.append({f"client {i}": samples for i, samples in enumerate(each)})
    return made[0], made[1]


def digits(local: str | None, shift: bool, norm: nn.Module) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), norm, nn.ReLU(), nn.Linear(32, 10))
    problem = ud.federate(*skewed(shift), model=model, loss=F.cross_entropy, local_parameters=local)
    local_work = ud.Local(steps=10, batch=20, lr=0.1)
    metrics = ("clients", "fine-tuned:5")
    result = ud.run(ud.FedAvg(), problem, rounds=12, local=local_work, metrics=metrics, evaluate_every=12)
    return result.history[-1].metrics


def test_fedbn_where_features_differ() -> None:
    shared, mine = digits(None, True, nn.GroupNorm(4, 32)), digits("batch-norm", True, nn.BatchNorm1d(32))
    assert mine["client_accuracy"] > shared["client_accuracy"] + 0.25


def test_fedper_where_labels_differ() -> None:
    shared, mine = digits(None, False, nn.Identity()), digits("3", False, nn.Identity())
    assert mine["client_accuracy"] > shared["client_accuracy"] + 0.1
    assert shared["fine_tuned_accuracy"] > shared["client_accuracy"]


def test_metrics_and_models_of_clients() -> None:
    problem = federation("batch-norm", norm=True)
    result = ud.run(ud.FedAvg(), problem, rounds=2, local=LOCAL)
    found = result.history[-1].metrics
    assert {"loss", "accuracy", "client_accuracy"} <= {*found}  # by default
    correct = []
    for i in SIX:
        mine = problem.samples(i)
        assert isinstance(problem.X, Tensor) and isinstance(problem.Y, Tensor)
        module = result.model(client=i)
        correct.append(float((module(problem.X[mine]).argmax(1) == problem.Y[mine]).double().mean()))
        norm: Any = module.get_submodule("norm")
        inputs = module.get_submodule("body")(problem.X[mine])
        assert (norm.running_mean - inputs.mean(0)).abs().max() < 1e-9
        assert (norm.running_var - inputs.var(0, correction=0)).abs().max() < 1e-9
    assert np.mean(correct) == pytest.approx(found["client_accuracy"])
    assert torch.equal(result.model().get_parameter("norm.weight"), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize(
    "local, said",
    [
        (
            "haed",
            r"local_parameters='haed' matches none of .*: body.weight, body.bias, head.weight, head.bias; name one",
        ),
        ("*", r"local_parameters='\*' matches all trainable parameters"),
        (["head", "neck"], "local_parameters='neck' matches none"),
        ([], "empty list"),
        (3, "names or patterns"),
        ("batch-norm", "'batch-norm' matches none"),
    ],
)
def test_bad_patterns_are_refused(local: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        federation([local] if isinstance(local, int) else local)


def test_batch_norm_needs_to_be_local() -> None:
    with pytest.raises(InvalidInput, match=r"'norm' .*local_parameters='batch-norm'"):
        federation("head", norm=True)


def test_fine_tuned_needs_a_number() -> None:
    with pytest.raises(InvalidInput, match="steps is a number of local steps, at least 1, as in 'fine-tuned:10'"):
        ud.run(ud.FedAvg(), federation("head"), rounds=1, metrics="fine-tuned:x")
    quadratic = ud.Quadratic(torch.ones(2, 1, 1), torch.ones(2, 1))
    with pytest.raises(InvalidInput, match="Quadratic has no samples of clients"):
        ud.run(ud.FedAvg(), quadratic, rounds=1, metrics="fine-tuned")
