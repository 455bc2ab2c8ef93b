"""Plain tables on the terminal."""

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table


def make_console(**settings: Any) -> Console:
    """The terminal; what is written elsewhere is as wide as a table needs."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, **settings)


def printable(text: str) -> str:
    """A text whose control characters are shown instead of obeyed by the terminal.

    >>> print(printable("fedavg\\x1b[2J"))
    fedavg\\x1b[2J
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), whole: Collection[str] = ()
) -> Table:
    """A table; columns in `right` are aligned there, and neither they nor those in `whole` nor the first are wrapped."""
    columns = [
        Column(
            heading, justify="right" if heading in right else "left", no_wrap=number == 0 or heading in (*right, *whole)
        )
        for number, heading in enumerate(headings)
    ]
    table = Table(*columns, box=None, header_style="bold", pad_edge=False, show_header=any(headings))
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    return table
