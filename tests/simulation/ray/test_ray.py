"""Engine "ray": the same trajectory as on one machine, whoever is lost on the way.

The cluster is real: two nodes on this machine, each with processes of its own, one of which is killed.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.oracles.world import make_world
from tests.support.ray_cluster import NODE
from tests.support.toy_problem import PlainFedAvg, WorldProblem, gap
from undrift.core.algorithm import Cohort, Exchange, Vec
from undrift.core.errors import InvalidInput, MethodFailure, WorkersLost
from undrift.core.records import nbytes, record, tensors
from undrift.core.rng import Key
from undrift.experiments.config import Experiment
from undrift.experiments.config.federation import federation
from undrift.experiments.runs.running import prepare_directory, run_experiment, set_workers
from undrift.simulation.engines import EngineChoice
from undrift.simulation.results import Round

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

from undrift.simulation.ray import cluster as clusters  # noqa: E402
from undrift.simulation.ray import transport as ray_transport  # noqa: E402
from undrift.simulation.ray.worker import Worker  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


@record
class Kept:
    c: Vec


@record
class Sum:
    x: Vec
    c: Vec


class Twice:
    """Two exchanges a round, both of which change what clients remember; the second sees what the first wrote."""

    def server(self, x: Vec) -> Sum:
        return Sum(x, 0 * x)

    def client(self, x: Vec) -> Kept:
        return Kept(0.1 * x)

    def exchanges(self, t: int) -> tuple[Exchange, ...]:
        usual = Exchange(self.send, self.local, self.update)
        return (usual, Exchange(self.send, self.second, self.update)) if t > 0 else ()

    def send(self, server: Sum) -> Sum:
        return server

    def local(self, down: Sum, client: Kept, work: Any) -> tuple[Sum, Kept]:
        g = work.full_grad(down.x)
        return Sum(0.1 * g, client.c), Kept(0.5 * client.c + g)

    def second(self, down: Sum, client: Kept, work: Any) -> tuple[Sum, Kept]:
        y = work.loop(lambda y: y - work.lr * (work.grad(y) - client.c + down.c), down.x)
        return Sum(down.x - y, client.c), Kept(0.9 * client.c + 0.1 * (down.x - y))

    def update(self, server: Sum, mean: Sum, cohort: Cohort) -> Sum:
        return Sum(server.x - mean.x, mean.c)


class Perilous(WorldProblem):
    """Something happens to the process that draws minibatches of a certain round, exchange and client: once, or always."""

    def __init__(self, when: Key, what: str, folder: Path | None = None, victim: str = ""):
        super().__init__(make_world(6, d=4))
        self.when, self.what, self.folder, self.victim = when, what, folder, victim

    def draw(self, key: Key, clients: Any, steps: Any, batch: Any) -> Any:
        here = (key.round, key.exchange) == (self.when.round, self.when.exchange)
        if here and self.what == "die":
            os._exit(1)
        if here and self.what == "wait" and self._on_victim():
            assert self.folder is not None
            (self.folder / "reached").touch()
            time.sleep(120)  # until the node is killed
        return super().draw(key, clients, steps, batch)

    def _on_victim(self) -> bool:
        return ray.get_runtime_context().get_node_id() == self.victim


def world() -> WorldProblem:
    return WorldProblem(make_world(6, d=4))


def on(workers: int, shards: int, inside: str = "batched") -> EngineChoice:
    return EngineChoice("ray", chunk=4, workers=workers, shards=shards, inside=inside)


SETTINGS: dict[str, Any] = {
    "rounds": 5, "participation": ud.Uniform(4), "local": ud.Local(steps=[4, 2, 3, 1, 5, 3], lr=0.05)
}  # fmt: skip


def trace(rounds: Iterator[Round]) -> tuple[np.ndarray, list[Any], np.ndarray]:
    """Models, what is told of rounds, and what clients remember in the end."""
    models, told, states = [], [], None
    for r in rounds:
        models.append(r.x)
        told.append((r.round, r.clients, r.bytes_down, r.bytes_up, r.left_out, r.exchanges))
        states = r.state
    assert states is not None  # read after the run: they have come home
    rows = [t.reshape(6, -1) for t in tensors(states.clients.gather(range(6)))]
    return torch.stack(models).numpy(), told, torch.cat(rows or [torch.zeros(6, 1)], 1).numpy()


METHODS = {
    "fedavg": "nothing is remembered",
    "ghbm": "a history on the server",
    "scaffold-m": "a control variate a client",
    "fedhbm": "an anchor a client",
    "scaffold": "an initialisation round with everyone",
    "mime": "two exchanges",
    "ce-lsgd": "two exchanges, one of them with a single client",
    "twice": "two exchanges that change states",
}


def method(name: str) -> Any:
    if name == "twice":
        return Twice()
    return ud.method(name, **({"B": 2} if name == "scaffold" else {}))


@pytest.mark.parametrize("name", METHODS)
def test_the_same_trajectory_as_on_one_machine(name: str, ray_workers: None) -> None:
    alone = trace(ud.rounds(method(name), world(), engine="sequential", **SETTINGS))
    ours = trace(ud.rounds(method(name), world(), engine=on(2, 3), **SETTINGS))
    assert gap(ours[0], alone[0]) < 1e-9 and gap(ours[2], alone[2]) < 1e-9
    assert ours[1] == alone[1]
    playing = ud.rounds(method(name), world(), engine=on(1, 3), **SETTINGS)
    after = [next(playing) for _ in range(2)][-1].snapshot()
    *_, last = playing
    assert (last.x.numpy() == ours[0][-1]).all(), "the same bits for any number of workers"
    more = trace(ud.rounds(method(name), world(), engine=on(2, 3), start=after, **SETTINGS))
    assert (more[0] == ours[0][2:]).all() and (more[2] == ours[2]).all()
    others = trace(ud.rounds(method(name), world(), engine=on(2, 2), start=after, **SETTINGS))
    assert gap(others[0], alone[0][2:]) < 1e-9 and gap(others[2], alone[2]) < 1e-9


def personal() -> Any:
    """Six clients with heads of their own."""
    random = torch.Generator().manual_seed(1)
    data = torch.randn(36, 4, dtype=torch.float64, generator=random), torch.arange(36) % 3
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)).double()
    loss = torch.nn.functional.cross_entropy
    return ud.federate(data, model=model, loss=loss, clients=ud.IID(6), local_parameters="1")


def test_all_that_clients_keep_stays_with_them(ray_workers: None) -> None:
    """Beside the method's state: parameters of their own, moments of their optimiser, what a codec has left out."""
    local = ud.Local(steps=[4, 2, 3, 1, 5, 3], batch=3, lr=0.05, optimiser="adam", optimiser_state="keep")
    settings: dict[str, Any] = SETTINGS | {"local": local, "codec": "top-k:0.2,feedback"}
    alone, ours = (trace(ud.rounds(ud.FedDyn(), personal(), engine=e, **settings)) for e in ("sequential", on(2, 3)))
    assert gap(ours[0], alone[0]) < 1e-9 and gap(ours[2], alone[2]) < 1e-9
    assert ours[1] == alone[1]
    problem = personal()
    assert ours[2].shape[1] == 4 * problem.x0.numel() + problem.local_x0.numel() + 2  # g, m, v, 1 - beta^k, error


def test_a_node_killed_in_mid_round_changes_nothing(
    ray_cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the second exchange of round 3: its first has been accepted, and rounds 1 and 2 were not copied yet."""
    (node,) = ray_cluster.worker_nodes
    problem = Perilous(Key(0, 3, 1), "wait", tmp_path, victim=node.node_id)
    expected = trace(ud.rounds(Twice(), world(), engine=on(1, 2), **SETTINGS))

    def kill() -> None:
        while not (tmp_path / "reached").exists():
            time.sleep(0.05)
        ray_cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with caplog.at_level(logging.WARNING, logger="undrift"):
        ours = trace(ud.rounds(Twice(), problem, engine=on(2, 2), **SETTINGS))
    killer.join()
    ray_cluster.add_node(**NODE)
    assert (ours[0] == expected[0]).all() and (ours[2] == expected[2]).all()
    assert ours[1] == expected[1], "nothing is counted twice"
    said = [line for line in caplog.messages if "was lost" in line]
    assert said, "it is told; twice if the first replacement began on the node that was about to be gone"
    assert all(s.startswith("round 3: worker ") and "repeated by another" in s for s in said)


def test_a_worker_lost_between_rounds_is_noticed_when_states_are_asked_for(
    ray_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    expected = trace(ud.rounds(Twice(), world(), engine="batched", **SETTINGS))
    playing: Any = ud.rounds(Twice(), world(), engine=on(1, 1), **SETTINGS)
    next(playing)
    r = next(playing)
    refresh: Any = r.state.clients.refresh
    ray.kill(refresh.__self__.handles[0].actor)
    after = r.snapshot()
    assert "was lost" in caplog.text
    playing.close()
    more = trace(ud.rounds(Twice(), world(), engine="batched", start=after, **SETTINGS))
    assert gap(more[0], expected[0][2:]) < 1e-9 and gap(more[2], expected[2]) < 1e-9


def test_a_worker_lost_before_it_began_is_replaced(
    ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one is that was started on a node about to be gone."""
    start, lost = ray_transport.start_worker, []

    def first_one_lost(cpu: bool = True) -> Any:
        actor = start(cpu)
        if not lost:
            ray.get(actor.where.remote())
            ray.kill(actor)
            lost.append(actor)
        return actor

    monkeypatch.setattr(ray_transport, "start_worker", first_one_lost)
    ours = trace(ud.rounds(Twice(), world(), engine=on(1, 1), **SETTINGS))
    expected = trace(ud.rounds(Twice(), world(), engine="batched", **SETTINGS))
    assert gap(ours[0], expected[0]) < 1e-9 and gap(ours[2], expected[2]) < 1e-9
    assert caplog.text.count("worker 0 on an unknown node was lost") == 1


def test_workers_that_die_again_and_again_end_the_run(ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_transport, "MAX_LOSSES", 1)
    problem = Perilous(Key(0, 2), "die")
    playing = ud.rounds(ud.FedAvg(), problem, engine=on(1, 1), **SETTINGS)
    next(playing)
    with pytest.raises(WorkersLost, match="lost 1 times in a row.*memory"):
        next(playing)
    assert next(playing, None) is None


class Troubled(PlainFedAvg):
    """Client 1 answers with NaN; in round 3 the code fails."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, client = super().local(down, client, work)
        if work.t == 3:
            raise ZeroDivisionError("on purpose")
        if list(work.clients) == [1]:
            up = type(up)(up.delta / 0)
        return up, client


def test_troubles_of_clients_are_told_as_on_one_machine(ray_workers: None, caplog: pytest.LogCaptureFixture) -> None:
    settings = {**SETTINGS, "participation": ud.Everyone()}
    playing = ud.rounds(Troubled(), world(), engine=on(2, 2, "sequential"), **settings)
    assert next(playing).left_out == (1,) and "round 1: client 1 returned NaN" in caplog.text
    next(playing)
    with pytest.raises(MethodFailure, match="client 0, round 3, stage local: ZeroDivisionError"):
        next(playing)


class Mixing(PlainFedAvg):
    """A norm over all clients of a chunk."""

    def local(self, down: Any, client: Any, work: Any) -> Any:
        up, client = super().local(down, client, work)
        return type(up)(up.delta / up.delta.norm()), client


def test_workers_notice_a_method_that_mixes_clients(ray_workers: None) -> None:
    settings = {**SETTINGS, "participation": ud.Everyone()}
    with pytest.raises(MethodFailure, match="round 1, stage local.*dim=-1, keepdim=True"):
        ud.run(Mixing(), world(), engine=on(2, 2, "batched"), **settings)


class Bursting(Twice):
    """The server's state stops being finite in the second exchange of round 3."""

    def second(self, down: Sum, client: Kept, work: Any) -> tuple[Sum, Kept]:
        up, client = super().second(down, client, work)
        return Sum(up.x * (1e308 if work.t == 3 else 1), up.c), client

    def update(self, server: Sum, mean: Sum, cohort: Cohort) -> Sum:
        return super().update(server, Sum(1e10 * mean.x / 1e10, mean.c), cohort)


def test_a_round_that_fails_has_not_happened(ray_workers: None) -> None:
    """Also what its first exchange had written is undone."""
    ours = ud.run(Bursting(), world(), engine=on(2, 2), **SETTINGS)
    alone = ud.run(Bursting(), world(), engine="sequential", **SETTINGS)
    assert ours.stopped == alone.stopped is not None and ours.state.round == 2
    rows, expected = (r.state.clients.gather(range(6)).c.numpy() for r in (ours, alone))
    assert gap(rows, expected) < 1e-9


def test_states_do_not_travel_and_the_model_is_put_once(ray_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver packs and unpacks in a round: one Down, an Up a shard."""
    down, up, calls = [], [], []
    pack, unpack = ray_transport.pack_object, ray_transport.unpack_object
    problem = world()
    playing: Any = ud.rounds(Twice(), problem, engine=on(2, 2), **SETTINGS)
    next(playing)  # workers have begun
    monkeypatch.setattr(ray_transport, "pack_object", lambda x, *more: down.append(x) or pack(x, *more))

    def seen(content: Any, *more: Any) -> Any:
        up.append(unpack(content, *more))
        return up[-1]

    monkeypatch.setattr(ray_transport, "unpack_object", seen)
    monkeypatch.setattr(ray_transport.RayTransport, "copy", lambda self: calls.append(self))
    next(playing)
    assert [type(x) for x in down] == [Sum, Sum]  # two exchanges
    assert all(part.states == [] for answer in up for part in answer.parts.values())
    assert len(up) == 4 and calls == []
    assert {nbytes(p.total) for a in up for p in a.parts.values()} == {2 * problem.x0.nbytes}
    monkeypatch.undo()
    playing.close()


def digits(**more: Any) -> Experiment:
    words: dict[str, Any] = {
        "rounds": 6,
        "clients": {"partition": "iid", "number": 10},
        "participation": {"per_round": 4},
        "local": {"steps": 2, "batch": 8, "lr": 0.1},
        "evaluation": {"test_samples": 100},
        "checkpoint_every": 2,
        "algorithm": {"name": "fedhbm"},
    }
    return Experiment(**(words | more))


def test_a_recorded_run_goes_on_with_another_number_of_workers(ray_workers: None, tmp_path: Path) -> None:
    """On the second node the data are opened by their reader; metrics come out to the byte."""
    engine = {"name": "ray", "workers": 2}
    whole = prepare_directory(digits(engine=engine), tmp_path / "whole")
    list(run_experiment(whole))
    kept = whole.experiment().engine
    assert isinstance(kept, EngineChoice) and (kept.shards, kept.inside) == (2, "batched")
    halves = prepare_directory(digits(engine=engine), tmp_path / "halves")
    updates: Any = run_experiment(halves)
    for _ in range(3):
        next(updates)
    updates.close()
    list(run_experiment(set_workers(halves, 1)))
    for name in ("metrics.jsonl", "model.safetensors"):
        ours, expected = (d.path / name for d in (halves, whole))
        assert ours.read_bytes() == expected.read_bytes()


def missing() -> None:
    raise InvalidInput("train.bin is not there: put it into /data")


@pytest.fixture
def elsewhere(ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start on the node that this process is not on; spreading, as Ray does it, is a preference only."""
    here = ray.get_runtime_context().get_node_id()
    (other,) = (node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here)
    place: Any = NodeAffinitySchedulingStrategy(other, soft=False)
    kind: Any = ray.remote(num_cpus=0, scheduling_strategy=place)(Worker)
    monkeypatch.setattr(ray_transport, "start_worker", lambda cpu=True: kind.remote())


def test_a_node_that_cannot_read_the_data_is_named(elsewhere: None) -> None:
    problem: Any = world()
    problem.reopen = missing
    playing = ud.rounds(ud.FedAvg(), problem, engine=on(1, 1), **SETTINGS)
    with pytest.raises(InvalidInput, match="^Ray's node .*: train.bin is not there"):
        next(playing)


def test_data_that_differ_on_a_node_are_refused() -> None:
    problem = federation(digits(), 0).problem
    assert problem.reopen is not None
    assert torch.equal(problem.reopen().x0, problem.x0)
    other: Any = replace(problem.reopen, checksums={"train.bin": "1"})  # pyright: ignore
    with pytest.raises(InvalidInput, match="train.bin is another file"):
        other()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"engine": "ray", "workers": 7}, "workers=7 for 6 clients: use at most one for each"),
        ({"engine": EngineChoice("ray", shards=7)}, "7 shards for 6 clients"),
        ({"engine": "ray", "workers": 0}, "workers must lie in"),
        ({"engine": "ray", "server": ud.Buffer(2)}, "for runs in virtual time"),
        ({"engine": on(2, 2), "population": ud.Population()}, "for runs in virtual time"),
        ({"engine": on(2, 2), "workers": 2}, "an EngineChoice has chunk and workers of its own"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_at_once(ray_cluster: Cluster, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        ud.rounds(ud.FedAvg(), world(), rounds=2, **settings)


def test_more_workers_than_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undrift.simulation.ray.choice.cpus", lambda: 2)
    with pytest.raises(InvalidInput, match="workers=4 and the Ray cluster has 2 CPUs"):
        ud.rounds(ud.FedAvg(), world(), rounds=2, engine="ray", workers=4)
    ud.rounds(ud.FedAvg(), world(), rounds=2, engine="ray")  # as many as there are


def test_choices_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="4 workers have nothing to do but 2 shards"):
        EngineChoice("ray", workers=4, shards=2)
    with pytest.raises(InvalidInput, match="unknown engine inside a worker: 'events'"):
        EngineChoice("ray", inside="events")
    with pytest.raises(InvalidInput, match="for engine 'ray', not 'batched'"):
        EngineChoice("batched", shards=2)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://127.0.0.1:10001", "start the run on a machine of the cluster"),
        ("127.0.0.1:1", "no Ray cluster can be used at 127.0.0.1:1 .*refused"),
    ],
)
def test_an_address_without_a_cluster_is_refused(address: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InvalidInput, match=says):
        clusters.connect()


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"pip install 'undrift\[ray\]'"):
        ud.rounds(ud.FedAvg(), world(), rounds=2, engine="ray")


def test_any_tensor_survives_the_wire() -> None:
    from undrift.simulation.ray.serialisation import pack_object, pack_problem, unpack_object

    given: list[Tensor] = [
        torch.zeros(0),
        torch.tensor(3.0),
        torch.arange(6).reshape(2, 3).T,
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([True, False]),
    ]
    for t in given:
        found = unpack_object(pack_object((t, None)))[0]
        assert torch.equal(found, t) and found.dtype == t.dtype and found.shape == t.shape
    problem = federation(digits(), 0).problem
    content = pack_problem(problem)
    assert sum(a.nbytes for a in content.arrays) == problem.X.nbytes + problem.Y.nbytes
    other = unpack_object(content, shared=True)
    assert torch.equal(other.X, problem.X) and other.evaluate(problem.x0) == problem.evaluate(problem.x0)
