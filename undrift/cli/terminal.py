"""What commands put on a terminal: what is being done, tables, lines, how to go on.  Loaded before torch."""

import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ERASE = "\r\x1b[2K"


@contextmanager
def status(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """What shows on a line of stderr, where that is a terminal, what is being done now; it leaves nothing behind."""
    shown = sys.stderr.isatty() and not quiet

    def write(text: str) -> None:
        if shown:
            sys.stderr.write(text)
            sys.stderr.flush()

    try:
        yield lambda doing: write(f"{ERASE}{doing} ...")
    finally:
        write(ERASE)


def make_console(**settings: Any) -> Any:
    """The terminal; what is written elsewhere is as wide as a table needs."""
    from rich.console import Console  # here, because it is slow to import

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, **settings)


def printer(console: Any) -> Callable[[str], None]:
    """What prints a line on a console as it is: without markup, and as long as it may be."""
    return lambda line: console.print(line, markup=False, soft_wrap=True)


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """Whoever interrupts this is told how to resume it."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nundrift: interrupted; `undrift resume {shlex.quote(str(directory))}` goes on", file=sys.stderr)
        raise


def set_verbosity(verbose: bool) -> None:
    """Log to stderr, more or less."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=logging.WARNING, format="undrift: %(message)s")
    logging.getLogger("undrift").setLevel(level)
