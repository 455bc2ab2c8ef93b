"""Flower's processes on loopback, with TLS and keys, all of them gone when the test is over, however it ends."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from undrift.deploy.keys import write_certificates, write_node_key

BIN = Path(sys.executable).parent
HERE = Path(__file__).parents[2]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Loopback:
    """A SuperLink and SuperNodes; everything they write is in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.apps: list[Path] = []  # that nodes have
        self.port, self.control_port = free_ports(2)  # for nodes, for the operator
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(HERE),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    # processes

    def start(self, name: str, *command: Any, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own; what it says goes to a file."""
        log = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # whatever kills the tests
        )
        log.close()
        self.processes.append(process)
        return process

    def run(self, *command: Any, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9 of a process and of all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def left_over(self) -> list[int]:
        """Every process that was started from here, at any remove: they all have this environment."""
        mine = f"FLWR_HOME={self.folder / 'flwr'}"
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mine in _words(path)]

    def said(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # Flower

    def superlink(self) -> None:
        keys = self.folder / "keys"
        write_certificates(keys, ["127.0.0.1"])
        self.start(
            "superlink",
            *(sys.executable, "-m", "undrift.cli", "deploy", "superlink", "--host", "127.0.0.1"),
            *("--port", self.port, "--control-port", self.control_port, "--keys", keys),
        )
        self.known_as(self.folder / "flwr", self.control_port)
        wait_until(lambda: _listening(self.port) and _listening(self.control_port), 60, lambda: self.said("superlink"))

    def known_as(self, home: Path, port: int) -> None:
        """Write where `flwr` with this home finds the SuperLink."""
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{self.folder / "keys" / "ca.crt"}"\n'
        )

    def make_key(self, name: str) -> Path:
        return write_node_key(self.folder / "keys" / name)[1]

    def register(self, *names: str) -> None:
        """Make keys for nodes and tell the SuperLink of them, all at the same time."""
        register = (BIN / "flwr", "supernode", "register")
        asked = [self.start("register", *register, self.make_key(name), "here", "--name", name) for name in names]
        assert all(process.wait(120) == 0 for process in asked), self.said("register")

    def supernode(
        self, name: str, part: int, key: str | None = "", log: str = "", tls: bool = True
    ) -> subprocess.Popen[bytes]:
        """A node with the key of its own name, with another's, or, for None, Flower's own SuperNode with none."""
        keys, log = self.folder / "keys", f"node-{log or name}"
        where = ("--superlink", f"127.0.0.1:{self.port}", "--port", free_ports(1)[0])
        if key is None:
            secure = ("--root-certificates", keys / "ca.crt") if tls else ("--insecure",)
            return self.start(log, BIN / "flower-supernode", *where, *secure)
        return self.start(
            log,
            *(sys.executable, "-m", "tests.support.supernode", "deploy", "node", *self.apps, *where),
            *("--key", keys / (key or name), "--name", name, "--state", self.folder / "states"),
            *("--config", f"part={part}"),
        )

    def revive(self, name: str, part: int) -> None:
        """Start a node that was killed, as often as it takes: the SuperLink believes it alive for up to 20 s."""
        end = time.monotonic() + 300
        while True:
            before = self.said(f"node-{name}").count("SuperNode ID")
            process = self.nodes[name] = self.supernode(name, part)
            while process.poll() is None:
                if self.said(f"node-{name}").count("SuperNode ID") > before:
                    return
                assert time.monotonic() < end, self.said(f"node-{name}")
                time.sleep(0.2)

    def kill_server_app(self) -> None:
        """kill -9 of the ServerApp's process, which the SuperLink started."""
        (found,) = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if _words(path)[1:2] == [str(BIN / "flwr-serverapp")] and str(self.folder) in " ".join(_words(path))
        ]
        os.kill(found, signal.SIGKILL)

    def flwr_run(self, name: str, app: Path, **config: Any) -> subprocess.Popen[bytes]:
        words = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
        return self.start(name, BIN / "flwr", "run", app, "here", "--stream", "--run-config", words)


def _words(path: Path) -> list[str]:
    """The command or the environment of a process, if it is still there."""
    try:
        return path.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str | Path) else str(value)


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(done: Callable[[], Any], seconds: float, what: Callable[[], str] = str) -> None:
    """Wait for something to happen, and say what was seen instead if it does not."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


@contextmanager
def loopback(folder: Path) -> Iterator[Loopback]:
    made = Loopback(folder)
    try:
        yield made
    finally:
        for process in made.processes:
            made.kill(process)
        for pid in made.left_over():  # the SuperLink starts some in a session of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
