"""undrift list: methods, data sets, partitions, models."""

import sys
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from undrift.core.errors import unknown
from undrift.core.hyper import METHODS
from undrift.data.registry import DATASETS
from undrift.experiments.config.parts import PARTITIONS, SCHEMES, makers
from undrift.simulation.catalogue import MethodCost, catalogue

KINDS = ("methods", "data", "partitions", "participation", "models", "spaces")


def list_all(
    name: Annotated[
        str | None, typer.Argument(help=f"{', '.join(KINDS)}; or one of them, to read about it")
    ] = None,
) -> None:
    """Every method: its paper, what a client keeps, what travels, gradients a step.  Also data, models, partitions.

    Sizes are multiples of the model, measured from the messages themselves.

    Example: undrift list; undrift list data; undrift list scaffold-m
    """
    if name in (None, "methods"):
        return _methods()
    if name == "data":
        return _show(
            ("data set", "source and licence"), ((n, s.about) for n, s in DATASETS.items())
        )
    if name == "spaces":
        from undrift.experiments.sweeps.spaces import (
            SPACES,  # needs nothing, but is seldom asked for
        )

        return _show(("space", "what it is"), ((n, space.about) for n, space in SPACES.items()))
    tables: dict[str, Mapping[str, Callable[..., Any]]] = {
        "partitions": PARTITIONS,
        "participation": SCHEMES,
        "models": makers(),
    }
    if name in tables:
        entries = ((n, _parameters(make), _first_line(make)) for n, make in tables[name].items())
        return _show((name, "parameters", "what it is"), entries)
    for table in tables.values():
        if name in table:
            print(f"{name}{_parameters(table[name])}\n\n{_own_doc(table[name])}")
            return
    if name in DATASETS:
        print(f"{name}: {DATASETS[name].about}")
        return
    if name not in METHODS:
        raise unknown("method", name, METHODS)  # pyright: ignore[reportArgumentType]
    _explain(name)


def _show(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    table = _table(headings)
    for row in rows:
        table.add_row(*map(escape, row))
    _console().print(table)


def _table(headings: Iterable[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    first, *others = headings
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading)
    return table


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)


def _parameters(make: Callable[..., Any]) -> str:
    """The parameters as an experiment names them."""
    shown = {"N": "number", "S": "per_round"}
    parts = []
    for p in signature(make).parameters.values():
        name = shown.get(p.name, p.name)
        parts.append(name if p.default is Parameter.empty else f"{name}={p.default!r}")
    return f"({', '.join(parts)})"


def _first_line(make: Callable[..., Any]) -> str:
    return (make.__doc__ or "").strip().splitlines()[0] if make.__doc__ else ""


def _methods() -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("method", "paper"):
        table.add_column(heading, no_wrap=True)
    for heading in ("client keeps", "down", "up", "gradients a step"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remarks")
    for cost in catalogue():
        table.add_row(*_cells(cost))
    _console().print(table)


def _cells(cost: MethodCost) -> list[str]:
    spec = cost.spec
    remarks = ["all clients every round"] if spec.everyone else []
    remarks += ["same steps for all"] if spec.equal_steps else []
    remarks += [f"first contact {_pair(*cost.first_contact[0])}"] if cost.first_contact else []
    remarks += ["second exchange with one client"] if cost.one_walks else []
    if cost.restarts:
        remarks += ["now and then a full gradient of all clients"]
    elif cost.full_gradients:
        remarks += [f"and {cost.full_gradients} full gradient a round"]
    remarks += ["our reading"] if spec.reading else []
    down = " + ".join(_size(d) for d, _ in cost.traffic)
    up = " + ".join(_size(u) for _, u in cost.traffic)
    return [
        spec.name,
        spec.paper,
        _size(cost.keeps),
        down,
        up,
        f"{cost.gradients:g}",
        "; ".join(remarks),
    ]


def _size(vectors: float) -> str:
    """A number of vectors; single numbers beside them are shown as a sign that they are there."""
    whole = round(vectors)
    return f"{whole}" + ("+" if vectors - whole > 1e-9 else "")


def _pair(down: float, up: float) -> str:
    return f"{_size(down)} down, {_size(up)} up"


def _explain(name: str) -> None:
    entry = METHODS[name]
    print(f"{name} ({entry.spec.paper})\n\n{_own_doc(entry.make)}\n")
    module = sys.modules[entry.make.__module__]
    print((module.__doc__ or "").strip())


def _own_doc(make: object) -> str:
    lines = (make.__doc__ or "").strip().splitlines()
    return "\n".join(line.strip() for line in lines)
