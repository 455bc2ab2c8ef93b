"""undrift list: methods, data sets, partitions, models."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from undrift.cli.tables import make_console, make_table
from undrift.core.errors import unknown
from undrift.core.hyper import METHODS
from undrift.data.registry import DATASETS
from undrift.experiments.config.parts import PARTITIONS, SCHEMES, list_models
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
        from undrift.experiments.sweeps.spaces import SPACES  # seldom asked for

        return _show(("space", "what it is"), ((n, space.about) for n, space in SPACES.items()))
    tables: dict[str, Mapping[str, Callable[..., Any]]] = {
        "partitions": PARTITIONS,
        "participation": SCHEMES,
        "models": list_models(),
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


def _show(headings: Sequence[str], rows: Iterable[Sequence[str]], **layout: Sequence[str]) -> None:
    make_console().print(make_table(headings, rows, **layout))


def _parameters(make: Callable[..., Any]) -> str:
    """The parameters as an experiment names them."""
    shown = {"N": "number", "S": "per_round"}
    parts = []
    for p in signature(make).parameters.values():
        name = shown.get(p.name, p.name)
        parts.append(name if p.default is Parameter.empty else f"{name}={p.default!r}")
    return f"({', '.join(parts)})"


def _first_line(make: Callable[..., Any]) -> str:
    return (make.__doc__ or "").strip().partition("\n")[0]


def _methods() -> None:
    numbers = ("client keeps", "down", "up", "gradients a step")
    headings = ("method", "paper", *numbers, "remarks")
    _show(headings, map(_cells, catalogue()), right=numbers, whole=("paper",))


def _cells(cost: MethodCost) -> list[str]:
    spec, first = cost.spec, cost.initialisation
    full = f"and {cost.full_gradients} full gradient a round" if cost.full_gradients else ""
    remarks = (
        "all clients every round" if spec.everyone else "",
        "same steps for all" if spec.equal_steps else "",
        f"initialisation round {_size(first[0][0])} down, {_size(first[0][1])} up" if first else "",
        "second exchange with one client" if cost.one_walks else "",
        "now and then a full gradient of all clients" if cost.restarts else full,
        "our reading" if spec.reading else "",
    )
    down, up = (" + ".join(map(_size, each)) for each in zip(*cost.traffic, strict=True))
    sizes = [_size(cost.keeps), down, up, f"{cost.gradients:g}"]
    return [spec.name, spec.paper, *sizes, "; ".join(filter(None, remarks))]


def _size(vectors: float) -> str:
    """A number of vectors; single numbers beside them are shown as a sign that they are there."""
    whole = round(vectors)
    return f"{whole}" + ("+" if vectors - whole > 1e-9 else "")


def _explain(name: str) -> None:
    entry = METHODS[name]
    print(f"{name} ({entry.spec.paper})\n\n{_own_doc(entry.make)}\n")
    module = sys.modules[entry.make.__module__]
    print((module.__doc__ or "").strip())


def _own_doc(make: object) -> str:
    lines = (make.__doc__ or "").strip().splitlines()
    return "\n".join(line.strip() for line in lines)
