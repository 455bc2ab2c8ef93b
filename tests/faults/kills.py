"""Runs that are killed at a write and go on: they end with the same bits.

Most kills are simulated in this process: at a random call of the system that changes a file (open, write, truncate, sync,
rename, remove) or line of a record the process is "gone": that call and all later ones, also those of the thread that writes checkpoints, do
nothing but raise, a write perhaps after a part of its bytes.  Every tenth kill is a real `kill -9` of a forked process,
or Ctrl-C.

    python -m tests.faults.kills 1000 0
"""

import contextlib
import gc
import logging
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.faults.harness import Tally, killed_after, run_as_script
from tests.faults.runs import METHODS, Killed, finish, outcome
from undrift.core.errors import InvalidInput
from undrift.experiments.runs.files import Lines, json_line

ATTACK = "kills of runs"
CALLS = ("open", "write", "ftruncate", "truncate", "fsync", "replace", "unlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Crash:
    """The system's calls that change files below a folder, counted, and gone after so many."""

    def __init__(self, root: Path, after: int | None, dice: random.Random):
        self.root, self.left, self.dice, self.count, self.dead = str(root), after, dice, 0, False
        self.real = {name: getattr(os, name) for name in CALLS}

    def _dies(self) -> bool:
        if self.dead:
            raise Killed
        self.count += 1
        if self.left is not None and self.count > self.left:
            self.dead = True
        return self.dead

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        about = args[1] if name == "replace" else args[0]
        changes = name != "open" or args[1] & WRITING
        if isinstance(about, (str, os.PathLike)) and not str(about).startswith(self.root):
            changes = False
        if changes and self._dies():
            if name == "write" and isinstance(about, int):  # a part of it may have been written
                data = memoryview(args[1])
                self.real["write"](about, data[: self.dice.randrange(len(data) + 1) // 4096 * 4096])
            raise Killed
        return self.real[name](*args, **kwargs)

    @contextlib.contextmanager
    def entered(self) -> Iterator["Crash"]:
        """While this is entered calls go through `call`."""
        add = Lines.add

        def add_line(lines: Lines, line: Mapping[str, Any]) -> None:
            if self._dies():
                content = json_line(line)
                self.real["write"](lines._file.fileno(), content[: self.dice.randrange(len(content) + 1)])
                raise Killed
            add(lines, line)

        for name in CALLS:
            setattr(os, name, lambda *args, name=name, **kwargs: self.call(name, *args, **kwargs))
        Lines.add = add_line  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield self
        finally:
            Lines.add = add
            for name, real in self.real.items():
                setattr(os, name, real)


def simulated(folder: Path, method: str, after: int | None, dice: random.Random) -> tuple[bool, int]:
    """Go on with a run until so many changes of files have been made; whether it ended, and how many there were."""
    crash = Crash(folder, after, dice)
    with crash.entered():
        try:
            finish(folder, method)
        except Killed:
            return False, crash.count
    return not crash.dead, crash.count


def main(tries: int, seed: int) -> Tally:
    """So many kills, over all kinds of state."""
    dice, tally, most = random.Random(seed), Tally(ATTACK), math.ceil(tries / len(METHODS))
    threads, level = torch.get_num_threads(), logging.getLogger("undrift").level
    torch.set_num_threads(1)
    logging.getLogger("undrift").setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # who is killed closes no files
            kills, number = 0, 0
            whole: dict[str, tuple[dict[str, bytes], int, float]] = {}  # of runs that nothing happens to
            while kills < tries:
                method = list(METHODS)[number % len(METHODS)]
                if method not in whole:
                    begun = time.monotonic()
                    _, count = simulated(Path(root) / method, method, None, dice)
                    whole[method] = outcome(Path(root) / method), count, time.monotonic() - begun
                expected, count, seconds = whole[method]
                folder, number, deaths = Path(root) / str(number), number + 1, 0
                try:
                    ended = False
                    while not ended:
                        if kills + deaths >= tries or deaths >= most:  # then the next method
                            finish(folder, method)
                            ended = True
                        elif dice.random() < 0.1:
                            by = dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT))
                            ended = killed_after(partial(finish, folder, method), dice.uniform(0.0, 1.5 * seconds), by)
                        else:
                            ended, _ = simulated(folder, method, dice.randrange(count), dice)
                        deaths += not ended
                    wrong = [name for name, content in expected.items() if outcome(folder).get(name) != content]
                    for _ in range(deaths):
                        tally.hide(f"{method}: other bits in {wrong}") if wrong else tally.survive()
                except InvalidInput as error:
                    tally.crash(f"{method}: a killed run was refused: {error}")
                except Exception as error:
                    tally.crash(f"{method}: {type(error).__name__}: {error}")
                kills += deaths
                shutil.rmtree(folder, ignore_errors=True)
            gc.collect()
    finally:
        torch.set_num_threads(threads)
        logging.getLogger("undrift").setLevel(level)
    return tally


if __name__ == "__main__":
    sys.setswitchinterval(1e-4)  # the thread that writes and the run take turns often
    run_as_script(main)
