"""A row as the measuring process sees it: another process that does rounds when told to."""

import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.peers.environments import PLACE, ROOT, Unavailable, one_line
from benchmarks.peers.turns import SOCKET, WORK, Work

# peers that would report to their makers, do not
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
PATIENT = {"RAY_raylet_start_wait_time_s": "200"}  # where other rows are being measured meanwhile
PATIENCE = 300.0  # seconds that a row may take to start, or for a turn


class Row:
    def __init__(self, process: subprocess.Popen[bytes], listener: socket.socket, folder: Path, log: Path):
        self.process, self.listener, self.folder, self.log = process, listener, folder, log
        self.line: IO[str] | None = None
        self.connection: socket.socket | None = None
        self.last = 0.0  # seconds a round, at its last turn

    @classmethod
    def of(cls, work: Work, module: str, *arguments: str, interpreter: Path = Path(sys.executable)) -> Self:
        """Starts `benchmarks.peers.<module>`; whatever it prints goes to a log."""
        folder = Path(tempfile.mkdtemp(prefix="bench-"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "socket"))
        listener.listen()
        listener.settimeout(0.5)
        log = PLACE / "logs" / f"{'-'.join((module, *arguments))}-{work.name}.log".replace(" ", "-")
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            SOCKET: str(folder / "socket"),
            WORK: json.dumps(asdict(work)),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": str(work.threads),
            **QUIET,
            **PATIENT,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [interpreter, "-m", f"benchmarks.peers.{module}", *arguments],
                cwd=folder,  # where peers leave logs and workspaces of theirs
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, listener, folder, log)

    def ready(self) -> dict[str, Any]:
        """Waits for the first round, and for what the row says of itself then."""
        waited = 0.0
        while waited < PATIENCE:
            try:
                self.connection, _ = self.listener.accept()
                break
            except TimeoutError:
                waited += 0.5
                if self.process.poll() is not None:
                    raise self._failed() from None
        if self.connection is None:
            raise Unavailable(f"no round within {PATIENCE:.0f} s")
        self.connection.settimeout(PATIENCE)
        self.line = self.connection.makefile("rw")
        return self._heard()

    def rounds_for(self, seconds: float) -> list[float]:
        """Seconds a round of about as many rounds as fit; at least one."""
        times = self._rounds(max(1, min(500, int(seconds / self.last))))
        self.last = statistics.median(times)
        return times

    def warm(self, seconds: float) -> None:
        """Rounds that are not counted: a second one, and more if they are short."""
        self.last = self._rounds(1)[0]
        if self.last < seconds:
            self.rounds_for(seconds)

    def _rounds(self, number: int) -> list[float]:
        assert self.line is not None
        try:
            self.line.write(f"{number}\n")
            self.line.flush()
        except OSError:
            raise self._failed() from None
        return self._heard()

    def _heard(self) -> Any:
        assert self.line is not None
        try:
            heard = self.line.readline()
        except TimeoutError:
            raise Unavailable(f"a turn of over {PATIENCE:.0f} s") from None
        except OSError:
            heard = ""
        if not heard:
            raise self._failed()
        return json.loads(heard)

    def _failed(self) -> Unavailable:
        text = self.log.read_text(errors="replace")
        errors = re.findall(r"^[\w.]*(?:Error|Exception): .*", text, re.MULTILINE)
        if errors:
            return Unavailable(one_line(errors[0]))  # which caused the others
        return Unavailable(f"ended with code {self.process.poll()}: {one_line(text)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Lets the row end by itself, then ends what is left of it."""
        if not self.folder.exists():
            return
        try:
            if self.line is not None:
                self.line.write("0\n")
                self.line.flush()
                self.process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            pass
        for end in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, end)
                self.process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        for each in (self.line, self.connection, self.listener):
            if each is not None:
                with suppress(OSError):  # the other end may be gone
                    each.close()
        shutil.rmtree(self.folder, ignore_errors=True)
