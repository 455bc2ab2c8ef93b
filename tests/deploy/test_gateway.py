"""What the gateway lets through, and what a node runs: without processes."""

import asyncio
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from undrift.deploy.gateway import FLEET, Gateway, Limits, make_server
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
    gateway = Gateway("127.0.0.1:1", tmp_path / "ca.crt", Limits(largest=10))
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
    assert asyncio.run(asked_at_once(Gateway("127.0.0.1:1", tmp_path / "ca.crt"), [b"x"])) == [503]


async def asked_at_once(gateway: Gateway, bodies: list[Any]) -> list[int]:
    """What these requests are answered, each of a host of its own unless it names one, all under way together."""

    async def ask(host: str, body: Any) -> int:
        transport = httpx.ASGITransport(app=gateway, client=(host, 1))  # pyright: ignore[reportArgumentType]
        async with httpx.AsyncClient(transport=transport, base_url="https://door") as client:
            return (await client.post("/v1/fleet/push-object", content=body)).status_code

    asked = (each if isinstance(each, tuple) else (f"host-{n}", each) for n, each in enumerate(bodies))
    return list(await asyncio.gather(*(ask(host, body) for host, body in asked)))


def limited(tmp_path: Path, limits: Limits, reply: bytes = b"ok") -> tuple[Gateway, list[bytes], asyncio.Event]:
    """A gateway, what it passes on, and an event before which the SuperLink does not answer."""
    write_certificates(tmp_path, ["127.0.0.1"])
    gateway, passed, ready = Gateway("127.0.0.1:1", tmp_path / "ca.crt", limits), [], asyncio.Event()

    async def superlink(request: httpx.Request) -> httpx.Response:
        passed.append(await request.aread())
        await ready.wait()
        return httpx.Response(200, content=reply)

    gateway.client = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://127.0.0.1:1")
    return gateway, passed, ready


def test_what_the_gateway_holds_is_bounded_in_all_and_of_one_address(tmp_path: Path) -> None:
    gateway, passed, ready = limited(tmp_path, Limits(largest=100, held=400))

    async def ask() -> list[int]:
        one = [("stranger", b"x" * 60)] * 3  # no more than a quarter is one's
        asking = asyncio.create_task(asked_at_once(gateway, [*one, *[b"y" * 100] * 5]))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(passed) == 4 and gateway.budget.held.total() == 360
        ready.set()
        return await asking

    statuses = asyncio.run(ask())
    assert statuses[:3] == [200, 503, 503] and sorted(statuses[3:]) == [200, 200, 200, 503, 503]
    assert not gateway.budget.held  # all is given back
    assert asyncio.run(asked_at_once(gateway, [b"y" * 100])) == [200]


def test_a_reply_that_does_not_fit_is_not_held(tmp_path: Path) -> None:
    gateway, _, ready = limited(tmp_path, Limits(held=400), reply=b"z" * 101)
    ready.set()
    assert asyncio.run(asked_at_once(gateway, [b""])) == [503]
    assert not gateway.budget.held


def test_a_body_must_come_and_a_reply_be_taken_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway, passed, ready = limited(tmp_path, Limits(grace=0.2, rate=100.0), reply=b"z" * 10)
    ready.set()

    async def trickle(parts: int) -> Any:
        for _ in range(parts):
            yield b"0123456789"  # in a tenth of a second, at this rate
            await asyncio.sleep(0.05)
        if parts < 10:
            await asyncio.sleep(60)

    async def never_taken() -> None:
        events = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Any:
            return next(events)

        async def send(event: Any) -> None:
            await asyncio.sleep(60)

        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/get-run", "query_string": b"", "headers": []}
        await gateway({**scope, "client": ("slow", 1)}, receive, send)

    statuses = asyncio.run(asked_at_once(gateway, [trickle(1), trickle(10)]))
    assert statuses == [408, 200] and passed == [b"0123456789" * 10]
    assert "refused: POST /v1/fleet/push-object from host-0: 10 bytes have come in 0.2 s and more" in caplog.text
    asyncio.run(asyncio.wait_for(never_taken(), 10))
    assert not gateway.budget.held


def test_half_a_body_is_not_passed_on(tmp_path: Path) -> None:
    gateway, passed, ready = limited(tmp_path, Limits())
    ready.set()
    events = iter([{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": "/v1/fleet/get-run", "query_string": b"", "headers": []}
    asyncio.run(gateway(scope, receive, send))
    assert not passed and not sent and not gateway.budget.held


@contextmanager
def listening(tmp_path: Path, limits: Limits) -> Iterator[Callable[[], ssl.SSLSocket]]:
    """A gateway on a port of this machine, as `undrift deploy superlink` starts it; what connects to it."""
    write_certificates(tmp_path, ["127.0.0.1"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = make_server(Gateway("127.0.0.1:1", tmp_path / "ca.crt", limits), "127.0.0.1", port, tmp_path)
    serving = threading.Thread(target=server.run)
    serving.start()
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    opened: list[ssl.SSLSocket] = []

    def connect() -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", port), timeout=20)
        opened.append(trusted.wrap_socket(raw, server_hostname="127.0.0.1"))
        return opened[-1]

    try:
        while not server.started:
            time.sleep(0.01)
        yield connect
    finally:
        for each in opened:
            each.close()
        server.should_exit = True
        serving.join()


def heard(connection: ssl.SSLSocket) -> bytes:
    """All that comes until the other side ends the connection."""
    found = b""
    try:
        while part := connection.recv(4096):
            found += part
    except (ConnectionError, ssl.SSLError):  # it went without a goodbye
        pass
    return found


POST = b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: h\r\n"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"", b""),
        (POST, b""),  # headers that do not end
        (POST + b"x: " + b"y" * 5000, b"400"),  # nor will
        (POST + b"content-length: 100\r\n\r\nx", b"408"),  # a body that does not come
        (POST + b"transfer-encoding: chunked\r\n\r\n14\r\n01234567890123456789\r\n", b"413"),
        (b"GET /v1/fleet/get-run HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", b"404"),
    ],
    ids=["nothing", "half a request", "endless headers", "half a body", "too much", "a socket"],
)
def test_connections_that_come_to_nothing_are_closed(said: bytes, status: bytes, tmp_path: Path) -> None:
    limits = Limits(largest=10, headers=2000, idle=0.5, grace=0.5, rate=1e9)
    with listening(tmp_path, limits) as connect:
        connection = connect()
        connection.sendall(said)
        assert heard(connection)[9:12] == status


def test_one_address_cannot_have_all_connections(tmp_path: Path) -> None:
    with listening(tmp_path, Limits(connections=8, idle=30.0)) as connect:
        two = [connect(), connect()]
        third = None
        with suppress(ConnectionError, ssl.SSLError):  # it may be gone before its handshake is over
            third = connect()
        assert third is None or heard(third) == b""
        for each in two:
            each.sendall(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            assert heard(each).startswith(b"HTTP/1.1 404")


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
