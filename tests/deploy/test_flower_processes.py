"""Deployed runs with Flower's own processes on loopback, TLS and keys on: what no test within one process can show.

One session of processes serves all of it, since every message takes Flower a few seconds.
"""

import json
import ssl
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from tests.support.flower_processes import BIN, Loopback, loopback, wait_until
from tests.support.in_process_nodes import NAMES, experiment
from tests.support.run_directories import read_lines
from undrift.deploy.project import write_app
from undrift.experiments.config.federation import federation
from undrift.experiments.report import write_report
from undrift.experiments.runs.running import config_of
from undrift.simulation.api import prepare

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]  # one SuperLink for all

PATIENCE = 400  # seconds; it takes a fraction of it, unless the machine is busy
ASKED_AGAIN = 60.0  # seconds; on a busy machine Flower may fail to start the process that a message is for

# A node that misbehaves when a file says so: what it brings to the first contact does not fit; or, after its work, it is
# killed with its SuperNode, or its answer is spoilt.
MISCHIEF = """

import os, signal
from dataclasses import replace
from flwr.app import Message
from flwr.clientapp import ClientApp
import torch
from undrift.deploy import compatibility as facts
from undrift.deploy.flower import from_records, to_records


def order_for(node):
    path = Path(os.environ["MISCHIEF"]) / node["name"]
    return path, path.read_text() if path.exists() else ""


def unfit(node):
    samples, (_, order) = data(node), order_for(node)
    if order == "no data":
        return samples.train[0][:0], samples.train[1][:0]
    if order == "fewer classes":
        few = samples.train[1] < 7
        return replace(samples, train=tuple(t[few] for t in samples.train), classes=7)
    return samples


honest, app = client_app(experiment, unfit), ClientApp()


@app.query()
def query(message, context):
    version = facts.__version__
    if order_for(context.node_config)[1] == "another version":
        facts.__version__ = "9.9"
    try:
        return honest(message, context)
    finally:
        facts.__version__ = version


@app.train()
def train(message, context):
    reply = honest(message, context)
    path, kind = order_for(context.node_config)
    if kind not in ("die", "NaN", "shape", "round"):  # the others are for the first contact
        return reply
    path.unlink()
    if kind == "die":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    told = from_records(reply.content)
    (name, vector), *_ = told.arrays.items()
    if kind == "NaN":
        vector[0] = torch.nan
    if kind == "shape":
        vector = vector[1:]
    if kind == "round":
        told.header["visit"]["round"] -= 1
    return Message(to_records(replace(told, arrays={**told.arrays, name: vector})), reply_to=message)
"""

EVERYONE = {"scheme": "everyone"}
EXPERIMENTS = {
    "kills": experiment({"name": "scaffold-m", "beta": 0.2}, rounds=2, participation=EVERYONE),
    "hbm": experiment("fedhbm", rounds=2),
    "bad": experiment("fedavg", rounds=1, participation=EVERYONE),
    "late": experiment("autonomous-fedgm", rounds=3, server={"kind": "buffer", "size": 1, "concurrency": 3}),
    "unfit": experiment("fedavg", rounds=1),
}


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("flower")
    with loopback(folder) as made:
        made.environment["MISCHIEF"] = str(folder / "mischief")
        (folder / "mischief").mkdir()
        made.apps = [app_of(made, name) for name in EXPERIMENTS]
        made.superlink()
        made.register(*NAMES, "oak")
        # three that must not get in: one whose key is not registered, one without a key, one without TLS
        made.make_key("stranger")
        made.supernode("stranger", 0)
        made.supernode("keyless", 0, key=None)
        made.supernode("plain", 0, key=None, tls=False)
        for part, name in enumerate(NAMES):
            made.nodes[name] = made.supernode(name, part)
        yield made
    assert not [log for log in folder.glob("*.log") if "PRIVATE KEY" in log.read_text(errors="replace")]


def app_of(flower: Loopback, name: str) -> Path:
    folder = flower.folder / name
    write_app(folder, EXPERIMENTS[name], NAMES, "127.0.0.1")
    with (folder / "app" / "client_app.py").open("a") as file:
        file.write(MISCHIEF)
    return folder


def run_of(flower: Loopback, name: str) -> Path:
    return flower.folder / "runs" / name


def recorded(flower: Loopback, name: str) -> int:
    """How many rounds of a run are done."""
    return len(read_lines(run_of(flower, name) / "metrics.jsonl"))


def finished(flower: Loopback, name: str, log: str) -> None:
    wait_until(
        lambda: (run_of(flower, name) / "result.json").exists(),
        PATIENCE,
        lambda: flower.said(log) + "".join(flower.said(f"node-{n}") for n in NAMES),
    )


def close_to_simulation(flower: Loopback, name: str) -> None:
    made = EXPERIMENTS[name]
    one = made.single(*made.runs()[0])
    problem = federation(one, one.seeds[0]).problem
    here = list(prepare(config_of(one, federation(one, one.seeds[0]))).play())
    named = load_file(run_of(flower, name) / "model.safetensors")
    x = torch.cat([named[each].flatten() for each in problem.flat.names])
    assert float((x - here[-1].x).abs().max()) <= 1e-5
    lines = read_lines(run_of(flower, name) / "metrics.jsonl")
    for line, r in zip(lines, here, strict=True):
        assert (line["bytes_down"], line["bytes_up"]) == (r.bytes_down, r.bytes_up)
        assert tuple(line["clients"]) == r.clients and line["left_out"] == []


def stamps(flower: Loopback, name: str) -> list[str]:
    """The states that a node has."""
    found = (flower.folder / "states" / name).glob("*/*.safetensors")
    return sorted(path.stem for path in found)


def mischief(flower: Loopback, **orders: str) -> None:
    for name, order in orders.items():
        (flower.folder / "mischief" / name).write_text(order)


def test_scaffold_m_survives_kills_of_everyone(flower: Loopback) -> None:
    """Equal to its simulation, though a node dies between rounds, one after its work, and then the server."""
    app = flower.folder / "kills"
    settings: dict[str, Any] = {"run-dir": str(run_of(flower, "kills")), "poll": 0.3}
    flower.flwr_run("kills-1", app, **settings)
    wait_until(lambda: recorded(flower, "kills") == 1, PATIENCE, lambda: flower.said("kills-1"))
    flower.kill(flower.nodes["birch"])  # between rounds
    mischief(flower, cedar="die")  # in round 2, when its work is done and its state is written
    wait_until(lambda: flower.nodes["cedar"].poll() is not None, PATIENCE)
    assert stamps(flower, "birch") == ["00000001-01"]
    assert stamps(flower, "cedar") == ["00000001-01", "00000002-01"]
    flower.kill_server_app()
    assert recorded(flower, "kills") == 1
    flower.flwr_run("kills-2", app, **settings)
    for name in ("birch", "cedar"):
        flower.revive(name, NAMES.index(name))
    finished(flower, "kills", "kills-2")
    close_to_simulation(flower, "kills")


def test_fedhbm_equals_its_simulation_and_flower_counts_the_same_bytes(flower: Loopback) -> None:
    flower.flwr_run("hbm", flower.folder / "hbm", **{"run-dir": str(run_of(flower, "hbm")), "poll": 0.3})
    finished(flower, "hbm", "hbm")
    close_to_simulation(flower, "hbm")
    ours = read_lines(run_of(flower, "hbm") / "metrics.jsonl")
    theirs = read_lines(run_of(flower, "hbm") / "wire.jsonl")
    for mine, flowers in zip(ours, theirs, strict=True):  # headers and header besides
        assert mine["bytes_down"] < flowers["sent"] < mine["bytes_down"] + 2 * 2000
        assert mine["bytes_up"] < flowers["received"] < mine["bytes_up"] + 2 * 1000
    page = write_report([run_of(flower, "hbm")], run_of(flower, "hbm"))
    assert "fedhbm" in page.read_text()


def test_bad_answers_are_left_out(flower: Loopback) -> None:
    mischief(flower, ash="NaN", birch="shape", cedar="round")
    settings = {"run-dir": str(run_of(flower, "bad")), "poll": 0.3, "bad-replies": 2}
    flower.flwr_run("bad", flower.folder / "bad", **settings)
    finished(flower, "bad", "bad")
    (only,) = read_lines(run_of(flower, "bad") / "metrics.jsonl")
    assert only["left_out"] == [0, 1, 2] and only["exchanges"] == 0
    said = {f["client"]: f["fault"] for f in read_lines(run_of(flower, "bad") / "faults.jsonl")}
    assert said == {
        "ash": "up.delta has NaN or Inf in it",
        "birch": "up.delta has shape [649], not [650]",
        "cedar": "answers round 0, not round 1",
    }


def test_strangers_and_plain_connections_do_not_get_in(flower: Loopback) -> None:
    """They have been at the door all the time."""
    turned_away = {
        "stranger": "Failed to activate SuperNode",
        "keyless": "All SuperNodes must be registered",
        "plain": "Connection attempt failed",
    }
    for name, header in turned_away.items():
        said = f"node-{name}"
        wait_until(lambda: header in flower.said(said), PATIENCE, lambda: flower.said(said))  # noqa: B023
        assert "SuperNode ID" not in flower.said(said)
    assert "No SuperNode found with the given public key" in flower.said("superlink")
    known = flower.run(BIN / "flwr", "supernode", "list", "here", "--format", "json")
    assert len(json.loads(known.stdout)["nodes"]) == len(NAMES) + 1, known.stdout  # and oak
    plain = HTTPConnection("127.0.0.1", flower.port, timeout=60)
    with pytest.raises((HTTPException, ConnectionError)):
        plain.request("GET", "/")
        plain.getresponse()
    plain.close()


# An app that nobody asked for: it leaves a file where its halves run, and says what nodes answered.
EVIL_SERVER = """
import os
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    Path(os.environ["MISCHIEF"], "evil-server").touch()
    asked = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(asked, timeout=60):
        print("a node says:", reply.error.reason if reply.has_error() else "it ran")
"""
EVIL_CLIENT = """
import os
from pathlib import Path
from flwr.clientapp import ClientApp

Path(os.environ["MISCHIEF"], "evil-node").touch()
app = ClientApp()

@app.train()
def train(message, context):
    return message
"""


def test_who_reaches_the_server_can_start_nothing_and_nodes_run_no_code_that_is_sent(flower: Loopback) -> None:
    app = flower.folder / "evil"
    write_app(app, EXPERIMENTS["bad"], NAMES, "127.0.0.1")
    (app / "app" / "server_app.py").write_text(EVIL_SERVER)
    (app / "app" / "client_app.py").write_text(EVIL_CLIENT)
    ran = flower.folder / "mischief"
    key = flower.make_key("evil")
    stranger = flower.folder / "stranger-home"
    flower.known_as(stranger, flower.port)
    flwr, home = BIN / "flwr", {"FLWR_HOME": str(stranger)}  # with nothing but the public ca.crt
    attacks = {
        "evil-register": flower.start("evil-register", flwr, "supernode", "register", key, "here", **home),
        "evil-run": flower.start("evil-run", flwr, "run", app, "here", "--stream", **home),
        "evil-list": flower.start("evil-list", flwr, "list", "here", **home),
    }
    for log, process in attacks.items():
        assert process.wait(120) != 0, flower.said(log)
    for api in ("control/list-runs", "control/start-run", "runtime/acquire-task", "fleet/../control/list-runs"):
        assert posted(flower, f"/v1/{api}") == 404
    assert posted(flower, "/v1/fleet/pull-messages") != 404
    assert not (ran / "evil-server").exists() and not (ran / "evil-node").exists()
    # and if the operator is deceived, or the server is not what it was
    flower.flwr_run("evil", app)
    wait_until(
        lambda: flower.said("evil").count("a node says: the app 'evil' is not on this node") == len(NAMES),
        PATIENCE,
        lambda: flower.said("evil"),
    )
    assert (ran / "evil-server").exists() and not (ran / "evil-node").exists()


def posted(flower: Loopback, path: str) -> int:
    """What the door answers to anyone."""
    trusted = ssl.create_default_context(cafile=str(flower.folder / "keys" / "ca.crt"))
    connection = HTTPSConnection("127.0.0.1", flower.port, timeout=60, context=trusted)
    connection.request("POST", path, b"")
    status = connection.getresponse().status
    connection.close()
    return status


IMPOSTOR = "it calls itself ash, its key was registered with the name oak"


@pytest.fixture(scope="module")
def impostor(flower: Loopback) -> None:
    """A node with a key that is registered, but not for the name that it claims."""
    flower.supernode("ash", 0, key="oak", log="impostor")
    wait_until(lambda: "SuperNode ID" in flower.said("node-impostor"), PATIENCE)


def test_clients_come_when_they_like_and_an_impostor_does_not(flower: Loopback, impostor: None) -> None:
    """Autonomous FedGM; who is refused is not waited for."""
    flower.flwr_run(
        "late", flower.folder / "late", **{"run-dir": str(run_of(flower, "late")), "poll": 0.3, "again": ASKED_AGAIN}
    )
    finished(flower, "late", "late")
    lines = read_lines(run_of(flower, "late") / "metrics.jsonl")
    assert [len(line["clients"]) for line in lines] == [1, 1, 1]
    assert read_lines(run_of(flower, "late") / "faults.jsonl") == []
    told_on_both_sides(flower, "late", impostor=f"ash is refused: {IMPOSTOR}")


def told_on_both_sides(flower: Loopback, log: str, **reasons: str) -> None:
    """What the server says of nodes, they say themselves."""

    def missing() -> str:
        return "".join(
            f"{reason!r} is not in the log of {where}:\n{flower.said(where)}\n"
            for node, reason in reasons.items()
            for where in (log, f"node-{node}")
            if reason not in flower.said(where)
        )

    wait_until(lambda: not missing(), PATIENCE, missing)


def test_nodes_that_do_not_fit_are_refused_on_both_sides(flower: Loopback, impostor: None) -> None:
    mischief(flower, ash="no data", birch="fewer classes", cedar="another version")
    flower.flwr_run(
        "unfit", flower.folder / "unfit", **{"run-dir": str(run_of(flower, "unfit")), "poll": 0.3, "again": ASKED_AGAIN}
    )
    told_on_both_sides(
        flower,
        "unfit",
        ash="ash is refused: ash has no samples",
        birch="birch is refused: the data have 7 classes on the node and 10 on the server",
        cedar=f"cedar is refused: undrift is '{ud.__version__}' on the server and '9.9' on the node",
        impostor=IMPOSTOR,
    )
    assert recorded(flower, "unfit") == 0
