"""A process that carries out runs: reads their directories from stdin, writes news of them to stdout."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from time import monotonic

from undrift.record.running import Update, one_run

EVERY = 0.1  # seconds between news of a run


def main() -> None:
    runs: Queue[Path | None] = Queue()
    busy = Event()
    Thread(target=_listen, args=(runs, busy), daemon=True).start()
    try:
        while (path := runs.get()) is not None:
            _one(path, busy)
    except KeyboardInterrupt:
        sys.exit(130)


def _listen(runs: "Queue[Path | None]", busy: Event) -> None:
    """Take orders; whoever gives them closes stdin only between runs, so if it closes in one, they are gone."""
    for line in sys.stdin:
        busy.set()
        runs.put(Path(line.rstrip("\n")))
    if busy.is_set():
        os._exit(
            1
        )  # at once: a run may be stopped at any moment, and someone may want to go on with it
    runs.put(None)


def _one(path: Path, busy: Event) -> None:
    waiting: Update | None = None
    told = 0.0
    try:
        for update in one_run(path):
            if waiting is not None:  # what was not told separately is told together
                update = replace(
                    update,
                    bytes=update.bytes + waiting.bytes,
                    seconds=update.seconds + waiting.seconds,
                    figures=update.figures or waiting.figures,
                )
            waiting = update
            if update.finished:
                busy.clear()
            if update.finished or monotonic() - told > EVERY:
                _tell(update)
                waiting, told = None, monotonic()
    except Exception as error:
        busy.clear()
        _tell(Update(path, 0, 0, {}, 0, 0.0, error=f"{type(error).__name__}: {error}"))


def _tell(update: Update) -> None:
    print(json.dumps({**asdict(update), "run": str(update.run)}), flush=True)


if __name__ == "__main__":
    main()
