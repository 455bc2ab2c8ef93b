"""What `undrift deploy superlink` and `undrift deploy node` do: Flower's processes, as they are safe to run."""

import logging
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.deploy import flower_process
from undrift.deploy.checks import NAME

log = logging.getLogger("undrift")

LOOPBACK = "127.0.0.1"


def run_superlink(bind: str, port: int, control_port: int, keys: Path) -> int:
    """A SuperLink on loopback, and a gateway for nodes; until either ends."""
    from undrift.deploy.apps import log_to_stderr
    from undrift.deploy.gateway import Gateway, make_server

    _need(keys, "ca.crt", "server.crt", "server.key")
    check_address(bind, port)
    check_address(LOOPBACK, control_port)
    if port == control_port and bind in (LOOPBACK, "localhost"):
        raise InvalidInput(f"--port and --control-port are both {port}: nodes and the operator need a port each")
    log_to_stderr()
    certificates = ("--ssl-ca-certfile", "ca.crt"), ("--ssl-certfile", "server.crt"), ("--ssl-keyfile", "server.key")
    server = make_server(Gateway(f"{LOOPBACK}:{control_port}", keys / "ca.crt"), bind, port, keys)
    with _flower(
        "superlink",
        *("--host", LOOPBACK, "--port", str(control_port)),
        *(word for option, file in certificates for word in (option, str(keys / file))),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ) as superlink:
        log.info(
            "nodes find the server at %s:%d; runs are started on this machine only, at %s:%d",
            bind,
            port,
            LOOPBACK,
            control_port,
        )
        _serve_while(server, superlink)
    return superlink.returncode or 0


def _serve_while(server: Any, process: "subprocess.Popen[bytes]") -> None:
    """Serve until the process has ended, or this one is told to."""

    def watch() -> None:
        process.wait()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run()


def run_node(
    apps: Sequence[Path], superlink: str, key: Path, name: str, state: Path, ca: Path, port: int, config: str
) -> int:
    """A SuperNode that runs nothing, and these apps to answer for it; until it ends."""
    from undrift.deploy.apps import log_to_stderr
    from undrift.deploy.executor import answer_messages, load_apps

    if not NAME.fullmatch(name):
        raise InvalidInput(f"--name: a client's name has at most 64 letters, digits and _.@-, got {name!r}")
    _need(ca.parent, ca.name)
    _need(key.parent, key.name)
    check_address(LOOPBACK, port)
    log_to_stderr()
    os.umask(0o077)  # states tell of samples: the owner's alone
    found = load_apps(apps)
    secret = secrets.token_bytes(32)  # between the SuperNode and this process
    with tempfile.TemporaryDirectory(prefix="undrift-") as private:
        file = Path(private) / "secret"
        file.write_bytes(secret)
        with _flower(
            "supernode",
            *("--superlink", superlink, "--root-certificates", str(ca)),
            *("--auth-supernode-private-key", str(key)),
            *("--host", LOOPBACK, "--port", str(port), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(file)),
            *("--node-config", f'name="{name}" state="{state}" {config}'.strip()),
        ) as supernode:
            answer_messages(found, f"{LOOPBACK}:{port}", secret, lambda: supernode.poll() is None)
    return supernode.returncode or 0


@contextmanager
def _flower(which: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of Flower's, for as long as this is entered; also if this one is asked to end."""

    def ended(*_: Any) -> None:
        raise SystemExit(0)

    before = {each: signal.signal(each, ended) for each in (signal.SIGTERM, signal.SIGINT)}
    process = flower_process.start(which, *arguments)
    try:
        yield process
    finally:
        flower_process.stop(process)
        for each, handler in before.items():
            signal.signal(each, handler)


def _need(folder: Path, *names: str) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise InvalidInput(
                f"{folder / name} is not there: `undrift deploy certificates` makes the server's files, `undrift deploy "
                "key` a node's key, and a node gets ca.crt from the server's people"
            )


def check_address(bind: str, port: int) -> None:
    """Refuse an address that this machine does not have, or a port that is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {bind}:{port} ({error.strerror or error}): --bind takes an address of this machine, "
            "--port and --control-port ports that are free"
        ) from error
