"""The command line."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from undrift import __version__
from undrift.catalogue import Cost, catalogue
from undrift.errors import InvalidInput, unknown
from undrift.hyper import METHODS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated optimisation on heterogeneous clients.",
)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(f"undrift {__version__}")
        raise typer.Exit


@app.command("list")
def list_methods(
    name: Annotated[str | None, typer.Argument(help="A method, to read about it.")] = None,
) -> None:
    """Every method: its paper, what a client keeps, what travels, gradients a step.

    Sizes are multiples of the model, measured from the messages themselves.

    Example: undrift list; undrift list scaffold-m
    """
    if name is not None:
        return _explain(name)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("method", "paper"):
        table.add_column(heading, no_wrap=True)
    for heading in ("client keeps", "down", "up", "gradients a step"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remarks")
    for cost in catalogue():
        table.add_row(*_cells(cost))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cells(cost: Cost) -> list[str]:
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
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    entry = METHODS[name]
    print(f"{name} ({entry.spec.paper})\n\n{_own_doc(entry.make)}\n")
    module = sys.modules[entry.make.__module__]
    print((module.__doc__ or "").strip())


def _own_doc(make: object) -> str:
    lines = (make.__doc__ or "").strip().splitlines()
    return "\n".join(line.strip() for line in lines)


def main() -> None:
    """Run the command line; an error of the user's is one line on stderr."""
    try:
        app()
    except InvalidInput as error:
        print(f"undrift: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
