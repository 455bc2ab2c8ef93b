"""One line on a terminal that says what is being done, until there is something to show."""

import sys
from types import TracebackType
from typing import Self

ERASE = "\r\x1b[2K"


class Status:
    """Shows a line on stderr while it is entered, where that is a terminal; leaves nothing behind."""

    def __init__(self, quiet: bool = False):
        self.shown = sys.stderr.isatty() and not quiet

    def show(self, doing: str) -> None:
        """Say what is being done now."""
        if self.shown:
            sys.stderr.write(f"{ERASE}{doing} ...")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.shown:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
