"""What the gateway lets through, and what a node runs: without processes."""

import asyncio
import shutil
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

import undrift as ud
from tests.support.in_process_nodes import experiment
from undrift.deploy import executor
from undrift.deploy.executor import answer, answer_messages, load_apps
from undrift.deploy.gateway import FLEET, Gateway
from undrift.deploy.keys import write_certificates
from undrift.deploy.project import write_app
from undrift.deploy.running import check_address, run_node, run_superlink


def answers(tmp_path: Path, *requests: tuple[str, str, bytes, dict[str, str]]) -> tuple[list[int], list[httpx.Request]]:
    """The gateway's answers, and what it has passed on."""
    passed: list[httpx.Request] = []

    def superlink(request: httpx.Request) -> httpx.Response:
        passed.append(request)
        return httpx.Response(200, content=b"ok", headers={"server": "uvicorn", "flwr-a": "b"})

    write_certificates(tmp_path, ["127.0.0.1"])
    gateway = Gateway("127.0.0.1:1", tmp_path / "ca.crt", largest=10)
    gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://127.0.0.1:1")

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app=gateway)  # pyright: ignore[reportArgumentType]
        async with httpx.AsyncClient(transport=transport, base_url="https://door") as client:
            made = [await client.request(method, path, content=body, headers=h) for method, path, body, h in requests]
        assert all("server" not in reply.headers for reply in made)
        return [reply.status_code for reply in made]

    return asyncio.run(ask()), passed


def test_fleet_requests_pass_and_nothing_else_does(tmp_path: Path) -> None:
    from flwr.superlink.routers.fleet.router import router

    assert {route.path for route in router.routes} == FLEET  # pyright: ignore[reportAttributeAccessIssue]
    others = (
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/docs",
        "/",
        "/v1/fleet/",
        "/v1/fleet/pull-messages/",
    )
    tricks = ("/v1/fleet/..%2fcontrol/start-run", "//v1/fleet/get-run", "/v1/fleet/get-run?a=b", "/V1/fleet/get-run")
    requests: list[Any] = [("POST", path, b"", {}) for path in (*others, *tricks)]
    requests += [(method, "/v1/fleet/get-run", b"", {}) for method in ("GET", "PUT", "OPTIONS")]
    headers = {"flwr-signature": "s", "authorization": "Bearer x", "x-forwarded-for": "1.2.3.4"}
    requests += [("POST", "/v1/fleet/get-run", b"x" * 11, {}), ("POST", "/v1/fleet/get-run", b"x" * 10, headers)]
    statuses, (passed,) = answers(tmp_path, *requests)
    assert statuses == [404] * (len(requests) - 2) + [413, 200]
    assert (passed.url.path, passed.content) == ("/v1/fleet/get-run", b"x" * 10)
    assert passed.headers["flwr-signature"] == "s"
    assert not {"authorization", "x-forwarded-for"} & set(passed.headers)


def test_a_superlink_that_is_not_there_is_an_answer(tmp_path: Path) -> None:
    write_certificates(tmp_path, ["127.0.0.1"])
    gateway, sent = Gateway("127.0.0.1:1", tmp_path / "ca.crt"), []

    async def ask() -> None:
        async def send(event: Any) -> None:
            sent.append(event)

        await gateway._pass_on("/v1/fleet/get-run", [], b"", send)

    asyncio.run(ask())
    assert sent[0]["status"] == 503


def test_wrong_addresses_and_missing_keys_are_told(tmp_path: Path) -> None:
    with pytest.raises(ud.InvalidInput, match="--bind takes an address of this machine"):
        check_address("203.0.113.7", 8443)
    with pytest.raises(ud.InvalidInput, match="ca.crt is not there: `undrift deploy certificates`"):
        run_superlink("127.0.0.1", 8443, 8000, tmp_path)
    with pytest.raises(ud.InvalidInput, match="--name: a client's name"):
        run_node([tmp_path], "h:1", tmp_path / "k", "no name", tmp_path, tmp_path / "ca.crt", 9094, "")


# what a node runs


def message() -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    made = Message(RecordDict(), 1, "train")
    made.metadata.__dict__["_message_id"] = "m"
    return made


RAISES = """
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskResponse
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.runtime import RuntimeHttpClient
app = ClientApp()
app.train()(lambda message, context: data({}))
"""


def test_a_node_runs_the_apps_that_it_has_and_no_others(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_app(tmp_path / name, experiment(), ("a", "b", "c"), "h")
        raises = f"\n\ndef data(node):\n    raise ValueError('{name}')\n\n\napp = client_app(experiment, data)\n"
        with (tmp_path / name / "app" / "client_app.py").open("a") as file:
            file.write(raises.replace("app = client_app(experiment, data)", RAISES))
    apps = load_apps([tmp_path / "one", tmp_path / "two"])
    for name in ("one", "two"):
        assert answer(apps, f"undrift/{name}", message(), None).error.reason == f"ValueError: {name}"
    refused = answer(apps, "evil/three", message(), None).error
    assert "'three' is not on this node, which has one, two" in str(refused.reason)
    shutil.copytree(tmp_path / "one", tmp_path / "again")
    with pytest.raises(ud.InvalidInput, match="two apps are called one"):
        load_apps([tmp_path / "one", tmp_path / "again"])
    with pytest.raises(ud.InvalidInput, match="is no app"):
        load_apps([tmp_path])
    assert all(isinstance(app, ClientApp) for app in apps.values())


# how many clients there are


def test_clients_of_natural_partitions_are_counted(tmp_path: Path) -> None:
    @ud.dataset("three-wards")
    def three_wards() -> ud.Data:
        samples, names = (torch.zeros(30, 2), torch.arange(30) % 2), ("a", "b", "c")
        return ud.Data("three-wards", samples, samples, torch.arange(30) % 3, client_names=names, classes=2)

    made = experiment(
        data={"name": "three-wards"}, clients={"partition": "natural"}, participation={"scheme": "everyone"}
    )
    with pytest.raises(ud.InvalidInput, match="has 3 clients, 2 are named: name them all"):
        write_app(tmp_path / "a", made, ("x", "y"), "h")
    with pytest.raises(ud.InvalidInput, match="name them in --clients"):
        write_app(tmp_path / "a", made, (), "h")
    write_app(tmp_path / "a", made, ("x", "y", "z"), "h")
    with pytest.raises(ud.InvalidInput, match="--host is where nodes find the server"):
        write_app(tmp_path / "b", made, ("x", "y", "z"), "0.0.0.0")


class OverTask(BaseHTTPRequestHandler):
    """A SuperNode that has one task, which is over when it is worked on."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        offered = self.path.endswith("acquire-task")
        body = AcquireTaskResponse(token="over").SerializeToString() if offered else b"{}"
        self.send_response(200 if offered else 401)
        self.send_header("Content-Type", "application/protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_node_outlives_a_run_that_ends_while_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    """Flower's own client ends its process with SIGINT when a task's token is not taken any more."""
    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    server = ThreadingHTTPServer(("127.0.0.1", 0), OverTask)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        turns = iter([True, True, False])
        answer_messages({}, f"127.0.0.1:{server.server_port}", b"secret", lambda: next(turns))
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
        signal.signal(signal.SIGINT, before)
    assert not interrupted
    assert caplog.text.count("a message could not be answered: HTTPStatusError") == 2


def test_a_message_whose_parts_do_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a run that has ended: else a node would wait for it for hours, and answer nobody."""
    clock, available = [0.0], [True]
    reply = lambda *_: PullObjectResponse(object_found=True, object_available=available[0])
    monkeypatch.setattr(RuntimeHttpClient, "PullObject", reply)
    monkeypatch.setattr(executor.time, "monotonic", lambda: clock[0])
    client = executor.TaskClient.from_server_address("127.0.0.1:1", True, None, [])
    asked = PullObjectRequest(object_id="part")
    clock[0] = 100.0
    assert client.PullObject(asked).object_available
    available[0] = False
    clock[0] = 100.0 + executor.STALLED  # long after it began, but something came meanwhile
    assert not client.PullObject(asked).object_available
    clock[0] += 1
    with pytest.raises(ObjectPullError, match="no part of the message has come for 120 s"):
        client.PullObject(asked)
    client.close()
