"""Where commands print tables."""

import sys
from typing import Any

from rich.console import Console


def make_console(**settings: Any) -> Console:
    """The terminal; what is written elsewhere is as wide as a table needs."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, **settings)
