"""The door of a server's machine: nodes' requests go through to the SuperLink, and nothing else does.

Flower 1.41 serves three APIs on one port.  Fleet is for nodes, whose keys it checks.  Control starts runs, i.e. code, and
registers keys; Runtime hands out tasks: neither asks who is calling (accounts are not in the free distribution, and
--control-api-address is accepted and ignored).  So the SuperLink listens on loopback, and this listens where nodes are:
twelve paths of the Fleet API, POST, of a bounded size, in bounded time, and of a bounded size all together.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from undrift.deploy.checks import printable

log = logging.getLogger("undrift")

FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        *("register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat"),
        *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
        *("get-run", "get-fab"),
    )
)
ACROSS = frozenset({"content-type", "accept", "user-agent"})  # and what begins with flwr- or is a trace
PIECE = 64 * 2**10  # bytes that are sent at a time


@dataclass(frozen=True)
class Limits:
    """What strangers may cost: they are met before anybody has looked at their keys.

    largest       bytes of a request; Flower sends arrays in pieces of 5 MB
    held          bytes of all requests and replies that are here at a time, and a quarter of them of one address
    connections   likewise
    grace, rate   a body has come, or is taken, after `grace` seconds and one more for every `rate` bytes
    idle          seconds that a connection may be without a whole request
    patience      seconds for the SuperLink to answer
    headers       bytes of a request's headers
    """

    largest: int = 64 * 2**20
    held: int = 512 * 2**20
    connections: int = 1000
    grace: float = 30.0
    rate: float = 16 * 2**10
    idle: float = 30.0
    patience: float = 60.0
    headers: int = 64 * 2**10

    def share(self, whole: int) -> int:
        """What one address may have of it."""
        return whole // 4


class _Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


class _Budget:
    """The bytes that are held for whom."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.held: Counter[str] = Counter()

    def take(self, host: str, size: int) -> None:
        limits = self.limits
        if self.held[host] + size > limits.share(limits.held) or self.held.total() + size > limits.held:
            raise _Refused(503, f"{self.held.total()} bytes are held, {self.held[host]} of them for it")
        self.held[host] += size

    def give_back(self, host: str, size: int) -> None:
        self.held[host] -= size
        if not self.held[host]:
            del self.held[host]


class Gateway:
    """An ASGI app that passes Fleet requests on to a SuperLink."""

    def __init__(self, superlink: str, ca: Path, limits: Limits | None = None):
        trusted = ssl.create_default_context(cafile=str(ca))
        self.limits = limits or Limits()
        self.budget = _Budget(self.limits)
        self.client = httpx.AsyncClient(
            base_url=f"https://{superlink}", verify=trusted, timeout=self.limits.patience, trust_env=False
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            return
        path, host = scope["path"], (scope.get("client") or ("?",))[0]
        held = _Held(self.budget, host)
        try:
            if scope["method"] != "POST" or path not in FLEET or scope["query_string"]:
                raise _Refused(404, "")
            headers = [(k, v) for k, v in scope["headers"] if _passes(k.decode("latin-1").lower())]
            status, kept, body = await self._passed_on(path, headers, await self._body(receive, held), held)
            await self._answer(send, status, kept, body)
        except _Refused as refused:
            said = ": ".join(filter(None, [f"{scope['method']} {printable(path)} from {host}", refused.why]))
            log.warning("refused: %s", said)
            await self._answer(send, refused.status, [(b"connection", b"close")])
        except ConnectionError:
            log.info("%s is gone", host)
        finally:
            held.give_back()

    async def _body(self, receive: Any, held: "_Held") -> list[bytes]:
        parts, size, more = [], 0, True
        try:
            async with _in_time(self.limits) as came:
                while more:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise ConnectionError
                    parts.append(event.get("body", b""))
                    size, more = size + len(parts[-1]), event.get("more_body", False)
                    if size > self.limits.largest:
                        raise _Refused(413, f"more than {self.limits.largest} bytes")
                    held.take(len(parts[-1]))
                    came(len(parts[-1]))
        except TimeoutError:
            raise _Refused(408, f"{size} bytes have come in {self.limits.grace:g} s and more") from None
        return parts

    async def _passed_on(
        self, path: str, headers: "_Headers", parts: list[bytes], held: "_Held"
    ) -> "tuple[int, _Headers, list[bytes]]":
        """The SuperLink's answer."""
        length = (b"content-length", str(sum(map(len, parts))).encode())
        found: list[bytes] = []
        try:
            asked = self.client.stream("POST", path, headers=[*headers, length], content=_each(parts))
            async with asked as reply:
                parts.clear()  # they are over there now
                held.give_back()
                async for part in reply.aiter_bytes():
                    held.take(len(part))
                    found.append(part)
        except (TimeoutError, httpx.HTTPError) as error:
            log.error("the SuperLink does not answer: %s", type(error).__name__)
            raise _Refused(503, "the SuperLink does not answer") from None
        return reply.status_code, [(k, v) for k, v in reply.headers.raw if _passes(k.decode("latin-1").lower())], found

    async def _answer(self, send: Any, status: int, headers: "_Headers", parts: Sequence[bytes] = ()) -> None:
        length = (b"content-length", str(sum(map(len, parts))).encode())
        try:
            async with _in_time(self.limits) as taken:
                await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
                for part in parts:
                    for at in range(0, len(part), PIECE):  # a piece waits until the one before is on its way
                        await send({"type": "http.response.body", "body": part[at : at + PIECE], "more_body": True})
                        taken(PIECE)
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            raise ConnectionError from None


_Headers = list[tuple[bytes, bytes]]


class _Held:
    """What is held for a request and its reply."""

    def __init__(self, budget: _Budget, host: str):
        self.budget, self.host, self.size = budget, host, 0

    def take(self, size: int) -> None:
        self.budget.take(self.host, size)
        self.size += size

    def give_back(self) -> None:
        self.budget.give_back(self.host, self.size)
        self.size = 0


@asynccontextmanager
async def _in_time(limits: Limits) -> AsyncIterator[Callable[[int], None]]:
    """Time for a body, and more with every part of it."""
    now = asyncio.get_running_loop().time
    end = now() + limits.grace
    async with asyncio.timeout_at(end) as limit:

        def moved(size: int) -> None:
            nonlocal end
            end += size / limits.rate
            limit.reschedule(end)

        yield moved


async def _each(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def _passes(header: str) -> bool:
    return header in ACROSS or header.startswith("flwr-") or header == "traceparent"


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


def make_server(gateway: Gateway, bind: str, port: int, keys: Path) -> uvicorn.Server:
    """The server of a gateway, over TLS."""
    limits = gateway.limits

    class Connection(H11Protocol):  # the other protocol that uvicorn has puts no bound on headers
        """One that is not kept for who says nothing, or has too many."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            host = _host(self)
            if sum(_host(each) == host for each in self.connections) > limits.share(limits.connections):
                log.warning("refused: %s has too many connections", host)
                return transport.abort()
            self.since = self.loop.time()
            self.timer = self.loop.call_later(limits.idle / 4, self.look)

        def look(self) -> None:
            """Go, unless a request is being answered, or hardly any time has passed."""
            now = self.loop.time()
            if self.transport.is_closing():
                return
            if self.cycle is not None and not self.cycle.response_complete:
                self.since = now
            if now - self.since > limits.idle:
                return self.transport.abort()
            self.timer = self.loop.call_later(limits.idle / 4, self.look)

    return uvicorn.Server(
        uvicorn.Config(
            gateway,
            host=bind,
            port=port,
            http=Connection,
            ws="none",
            h11_max_incomplete_event_size=limits.headers,
            ssl_certfile=str(keys / "server.crt"),
            ssl_keyfile=str(keys / "server.key"),
            access_log=False,
            log_level="warning",
            limit_concurrency=limits.connections,
            timeout_keep_alive=round(limits.idle),
            server_header=False,
        )
    )


def _host(connection: H11Protocol) -> str:
    return connection.client[0] if connection.client else "?"
