"""Progress of a run: a bar on a terminal or in a notebook, nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, TypeAlias

from undrift.core.errors import InvalidInput
from undrift.simulation.results import Round

Show: TypeAlias = Callable[[Round], None]


def in_notebook() -> bool:
    """Whether this is a cell of a notebook: its kernel has a shell that shows HTML."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


@contextmanager
def progress_of(wanted: bool | str, label: str, rounds: int) -> Iterator[Show]:
    """What shows each round: `wanted` is True, False, or "auto": on a terminal or in a notebook only."""
    if wanted not in (True, False, "auto"):
        raise InvalidInput(f"progress must be True, False or 'auto', got {wanted!r}")
    if wanted is False or (wanted == "auto" and not (in_notebook() or sys.stderr.isatty())):
        yield lambda r: None
    elif in_notebook():
        yield _html_bar(label, rounds)
    else:
        with _terminal_bar(label, rounds) as show:
            yield show


def status_of(r: Round) -> str:
    """The first metrics of a round in a few words.

    >>> status_of(Round(3, (0,), {"accuracy": 0.5, "loss": 1.25}, 10, 10, 0.1))
    'accuracy 0.5, loss 1.25'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in list(r.metrics.items())[:2])


def _html_bar(label: str, rounds: int) -> Show:
    from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]  (there, since this is a notebook)

    handle: Any = None
    last = ""

    def show(r: Round) -> None:
        nonlocal handle, last
        last = status_of(r) or last
        said = f"{escape(label)}: {r.round}/{rounds} {escape(last)}"
        bar = HTML(f"<progress value='{r.round}' max='{rounds}'></progress> {said}")
        if handle is None:
            handle = display(bar, display_id=True)
        else:
            handle.update(bar)

    return show


@contextmanager
def _terminal_bar(label: str, rounds: int) -> Iterator[Show]:
    from rich.console import Console  # here, because it is slow to import
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[status]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task, last = progress.add_task(label, total=rounds, status=""), ""

        def show(r: Round) -> None:
            nonlocal last
            last = status_of(r) or last
            progress.update(task, completed=r.round, status=last)

        yield show
