"""The door of a server's machine: nodes' requests go through to the SuperLink, and nothing else does.

Flower 1.41 serves three APIs on one port.  Fleet is for nodes, whose keys it checks.  Control starts runs, i.e. code, and
registers keys; Runtime hands out tasks: neither asks who is calling (accounts are not in the free distribution, and
--control-api-address is accepted and ignored).  So the SuperLink listens on loopback, and this listens where nodes are:
twelve paths of the Fleet API, POST, of a bounded size.
"""

import logging
import ssl
from pathlib import Path
from typing import Any

import httpx
import uvicorn

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
LARGEST = 64 * 2**20  # bytes of a request; Flower sends arrays in pieces of 5 MB
ACROSS = frozenset({"content-type", "accept", "user-agent"})  # and what begins with flwr- or is a trace
PATIENCE = 60.0  # seconds for the SuperLink to answer


class Gateway:
    """An ASGI app that passes Fleet requests on to a SuperLink."""

    def __init__(self, superlink: str, ca: Path, largest: int = LARGEST):
        trusted = ssl.create_default_context(cafile=str(ca))
        self.largest = largest
        self.client = httpx.AsyncClient(
            base_url=f"https://{superlink}", verify=trusted, timeout=PATIENCE, trust_env=False
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            return
        path = scope["path"]
        if scope["method"] != "POST" or path not in FLEET or scope["query_string"]:
            host = (scope.get("client") or ("?",))[0]
            log.warning("refused: %s %s from %s", scope["method"], printable(path), host)
            return await _answer(send, 404)
        body = await self._body(receive)
        if body is None:
            log.warning("refused: a request of more than %d bytes for %s", self.largest, path)
            return await _answer(send, 413)
        headers = [(k, v) for k, v in scope["headers"] if _passes(k.decode("latin-1").lower())]
        await self._pass_on(path, headers, body, send)

    async def _body(self, receive: Any) -> bytes | None:
        parts, size, more = [], 0, True
        while more:
            event = await receive()
            parts.append(event.get("body", b""))
            size, more = size + len(parts[-1]), event.get("more_body", False)
            if size > self.largest:
                return None
        return b"".join(parts)

    async def _pass_on(self, path: str, headers: list[tuple[bytes, bytes]], body: bytes, send: Any) -> None:
        try:
            reply = await self.client.post(path, headers=headers, content=body)
        except (TimeoutError, httpx.HTTPError) as error:
            log.error("the SuperLink does not answer: %s", type(error).__name__)
            return await _answer(send, 503)
        kept = [(k, v) for k, v in reply.headers.raw if _passes(k.decode("latin-1").lower())]
        await _answer(send, reply.status_code, kept, reply.content)


def _passes(header: str) -> bool:
    return header in ACROSS or header.startswith("flwr-") or header == "traceparent"


async def _answer(send: Any, status: int, headers: list[tuple[bytes, bytes]] | None = None, body: bytes = b"") -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or []), length]})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


def make_server(gateway: Gateway, bind: str, port: int, keys: Path) -> uvicorn.Server:
    """The server of a gateway, over TLS."""
    return uvicorn.Server(
        uvicorn.Config(
            gateway,
            host=bind,
            port=port,
            ssl_certfile=str(keys / "server.crt"),
            ssl_keyfile=str(keys / "server.key"),
            access_log=False,
            log_level="warning",
            limit_concurrency=1000,
            timeout_keep_alive=30,
            server_header=False,
        )
    )
