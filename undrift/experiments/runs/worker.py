"""A process that executes runs: it reads their directories from stdin and writes news of them to stdout."""

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from time import monotonic
from typing import Any, TextIO

from undrift.experiments.config.federation import Federations
from undrift.experiments.runs.directory import open_directory
from undrift.experiments.runs.running import STOP, Update, run_one

EVERY = 0.1  # seconds between news of a run


def main() -> None:
    news = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed, by a user's file or a library, is not news
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever was inherited
    runs: Queue[Path] = Queue()
    busy = Event()
    Thread(target=_listen, args=(runs, busy), daemon=True).start()
    at_a_time = int(sys.argv[1]) if sys.argv[1:] else 1
    federations = Federations()  # runs of one seed share theirs
    _tell(news, {"ready": True})
    try:
        while True:
            _run(runs.get(), busy, news, at_a_time, federations)
    except KeyboardInterrupt:
        os._exit(130)
    except BrokenPipeError:
        os._exit(1)


def _listen(runs: "Queue[Path]", busy: Event) -> None:
    """Take orders.  If there will be none any more, whoever gave them is gone."""
    for line in sys.stdin:
        if (word := line.rstrip("\n")) == STOP:
            if not busy.is_set():
                os._exit(0)
            os.kill(os.getpid(), signal.SIGINT)
            continue
        busy.set()
        runs.put(Path(word))
    os._exit(1)  # at once: a run may be stopped at any moment, and someone may want to resume it


def _run(path: Path, busy: Event, news: TextIO, at_a_time: int, federations: Federations) -> None:
    last = 0.0
    try:
        updates = run_one(open_directory(path), at_a_time=at_a_time, federations=federations)
        for update in updates:
            if update.finished:
                busy.clear()
            if update.finished or monotonic() - last > EVERY:
                _tell(news, {**asdict(update), "run": str(path)})
                last = monotonic()
    except BrokenPipeError:
        raise
    except Exception as error:
        busy.clear()
        update = Update(path, 0, 0, {}, 0, error=f"{type(error).__name__}: {error}")
        _tell(news, {**asdict(update), "run": str(path)})


def _tell(news: TextIO, what: dict[str, Any]) -> None:
    print(json.dumps(what), file=news, flush=True)


if __name__ == "__main__":
    main()
