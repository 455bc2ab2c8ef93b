"""A row's side of the measurement: rounds when it is its turn, and how long each took.

Only the standard library, since it runs in every peer's environment.
"""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter

# environment variables, since processes that peers start inherit them
SOCKET = "UNDRIFT_BENCH_SOCKET"
WORK = "UNDRIFT_BENCH_WORK"


@dataclass(frozen=True)
class Work:
    """The numbers of a workload (`benchmarks.workloads.Workload`) and the threads to do it with."""

    name: str
    clients: int
    samples: int  # a client
    cohort: int
    steps: int
    batch: int
    method: str
    lr: float
    evaluated: int  # test samples, after every round
    threads: int


def work() -> Work:
    """What this process was started to do."""
    return Work(**json.loads(os.environ[WORK]))


class Gate:
    """Called after every round: holds the row until its turn comes, and is false once no more rounds are wanted.

    The first call says that the row is ready, so the first round, where everything is made, is never timed.
    `samples` tells how many samples that round trained on, so that all rows can be seen to do the same work.
    """

    def __init__(self, package: str, samples: Callable[[], int]):
        self.package, self.samples = package, samples
        self.times: list[float] = []
        self.left = 0
        self.began: float | None = None

    def __call__(self) -> bool:
        now = perf_counter()
        if self.began is None:
            line = socket.socket(socket.AF_UNIX)
            line.connect(os.environ[SOCKET])
            self.line = line.makefile("rw")
            self._say({"version": version(self.package), "samples": self.samples()})
            self.left = self._asked()
        else:
            self.times.append(now - self.began)
            self.left -= 1
            if not self.left:
                self._say(self.times)
                self.times = []
                self.left = self._asked()
        self.began = perf_counter()
        return self.left > 0

    def _say(self, what: object) -> None:
        self.line.write(json.dumps(what) + "\n")
        self.line.flush()

    def _asked(self) -> int:
        return int(self.line.readline() or 0)
