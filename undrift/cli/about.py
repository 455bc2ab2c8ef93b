"""undrift list: methods, data sets, and everything else that has a name."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from undrift.cli.terminal import make_console
from undrift.codecs.codec import CODECS
from undrift.core.errors import known_name
from undrift.core.hyper import METHODS, Entry, spec_of
from undrift.data.registry import DATASETS, load
from undrift.data.store import DataMissing
from undrift.data.trees import shapes, take
from undrift.experiments.config.parts import PARTITIONS, SCHEMES, default_model, list_models
from undrift.experiments.report.format import format_settings
from undrift.experiments.report.tables import make_table
from undrift.experiments.report.theory import ABOUT
from undrift.experiments.sweeps.spaces import SPACES
from undrift.local.optimisers import NAMED as OPTIMISERS
from undrift.local.schedules import SCHEDULES
from undrift.metrics.registry import METRICS
from undrift.simulation.catalogue import EXAMPLES, MethodCost, catalogue, measure_by_name

OF_MODEL = {
    "test": "loss and quality on test data; recorded unless others are asked for",
    "train": "the same on all training data",
    "clients": "quality of each client, by name where there are few; mean, worst and worst tenth",
    "gradient": "the norm of the objective's gradient",
    "accuracy, auroc, f1, top-5": "on test data, of tasks with classes or labels (also top-2, top-3, top-10)",
    "r2, mae": "on test data, of regressions",
    "fine-tuned": "quality of each client's model after a few local steps: fine-tuned:5",
    "lora_bias": "what averaging two factors of an adapter loses against averaging their product",
}
KINDS = (
    "methods",
    "data",
    "partitions",
    "participation",
    "models",
    "metrics",
    "codecs",
    "optimisers",
    "schedules",
    "spaces",
)
NAMED = 50  # clients, at most, that are listed by name
NUMBERS = ("client keeps", "down", "up", "gradients a step")
HEADINGS = ("method", "paper", *NUMBERS, "remarks")
TYPES: dict[Any, str] = {bool: "true or false", int: "whole number", float: "number"}


def list_all(
    name: Annotated[str | None, typer.Argument(help=f"{', '.join(KINDS)}; or one of them, to read about it")] = None,
) -> None:
    """Every method: its paper, what a client keeps, what travels, gradients a step.  Also data, models, metrics, ...

    Sizes are multiples of the model, measured from the messages themselves.

    Example: undrift list; undrift list data; undrift list scaffold-m
    """
    if name in (None, "methods"):
        return _methods()
    metrics = OF_MODEL | ABOUT
    metrics |= {n: _first_line(make) for n, make in METRICS.items() if n not in metrics}
    sentences = {
        "data": ("data set", "source and licence", {n: entry.about for n, entry in DATASETS.items()}),
        "spaces": ("space", "what it is", {n: space.about for n, space in SPACES.items()}),
        "metrics": ("metric", "what it is", metrics),
    }
    if name in sentences:
        *headings, about = sentences[name]
        return _show(headings, about.items())
    tables: dict[str, Mapping[str, Callable[..., Any]]] = {
        "partitions": PARTITIONS,
        "participation": SCHEMES,
        "models": list_models(),
        "codecs": CODECS,
        "optimisers": OPTIMISERS | {"sgd": _sgd},
        "schedules": SCHEDULES,
    }
    if name in tables:
        rows = ((n, _parameters(make), _first_line(make)) for n, make in tables[name].items())
        return _show((name, "parameters", "what it is"), rows)
    entries: list[tuple[str, Callable[[], None]]] = [
        *((each, partial(_explain, each)) for each in METHODS),
        *((each, partial(_describe_data, each)) for each in DATASETS),
        *((each, partial(_print_parts, each, table[each])) for table in tables.values() for each in table),
        *((each, partial(print, f"space {each}: {space.about}")) for each, space in SPACES.items()),
        *(
            (each, partial(print, f"metric {each}: {about}"))
            for names, about in metrics.items()
            for each in names.split(", ")
        ),
    ]
    found = known_name("name", str(name), {*KINDS, *(each for each, _ in entries)})
    if found in KINDS:
        return list_all(found)
    for number, show in enumerate(show for each, show in entries if each == found):  # of several kinds
        print(end="\n" * (number > 0))
        show()


def _sgd() -> None:
    """Plain steps along the gradient."""


def _print_parts(name: str, make: Callable[..., Any]) -> None:
    print(f"{name}{_parameters(make)}\n\n{own_doc(make)}")


def _describe_data(name: str) -> None:
    """What a data set is made of: read, if it is on this machine."""
    entry = DATASETS[name]
    about = f"{name}: {entry.about}\n\n{own_doc(entry.read)}\n"
    try:
        data = load(name)
    except DataMissing as error:
        return print(f"{about}\nnot read: {error}")
    print(about)
    inputs, targets = data.train
    print(f"rows      {len(targets):,} to train, {len(data.test[1]) if data.test else 0:,} to test")
    print(f"features  {shapes(take(data.prepare(take(inputs, slice(1))) if data.prepare else inputs, slice(1)))}")
    if data.classes is not None:
        print(f"target    one of {data.classes} classes")
    else:
        print(f"target    numbers, {list(targets.shape[1:]) or 'one a row'}")
    print(f"model     {format_settings(default_model(name)).removeprefix('name ')}, unless another is named")
    if data.clients is None:
        return print("clients   none of its own: a partition deals the rows, --dirichlet, --iid, --shards")
    sizes = data.clients.bincount(minlength=len(data.client_names)).tolist()
    each = zip(data.client_names, sizes, strict=True)
    few = len(sizes) <= NAMED
    listed = ", ".join(f"{who} ({n})" for who, n in each) if few else f"{min(sizes)} to {max(sizes)} rows each"
    print(f"clients   {len(sizes)} of its own, taken by default, with rows to train: {listed}")


def _show(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    make_console().print(make_table(headings, rows, right))


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
    _show(HEADINGS, map(cells, catalogue()), right=NUMBERS)
    print("\nundrift list METHOD shows its mathematics and its hyper-parameters")


def cells(cost: MethodCost) -> list[str]:
    """A row of the table of methods, in the order of HEADINGS."""
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
    """All of a method: what it is, its hyper-parameters, what it keeps and sends, its mathematics."""
    entry = METHODS[name]
    print(f"{name} ({entry.spec.paper or 'no paper'})\n\n{own_doc(entry.make)}\n")
    rows = list(hyper_parameters(name, entry))
    if rows:
        _show(("hyper-parameter", "default", "allowed"), rows)
        given = {key: value for key, value, _ in rows if value not in ("none", "required")}
        given |= {key: _written(value) for key, value in EXAMPLES.get(name, {}).items()}
        example = f"{name}:" + (",".join(f"{key}={value}" for key, value in given.items()) or f"{rows[0][0]}=...")
        print(f"\nSet them with a colon: undrift compare {shlex.quote(example)}")
    row = dict(zip(HEADINGS, cells(measure_by_name(name)), strict=True))
    sizes = f"{row['client keeps']} kept by a client, {row['down']} sent down, {row['up']} up in a visit"
    print(f"\nIn multiples of the model: {sizes}.  Gradients a local step: {row['gradients a step']}.")
    if row["remarks"]:
        print(f"Note: {row['remarks']}.")
    module = sys.modules[entry.make.__module__]
    print(f"\n{(module.__doc__ or '').strip()}")


def hyper_parameters(name: str, entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Name, default and what is allowed; a special case is checked as the method that it returns."""
    made = entry.make(**EXAMPLES.get(name, {}))
    known = {f.name: f for f in fields(made)}
    for p in signature(entry.make).parameters.values():
        if p.default is Parameter.empty:
            default = "required"
        else:
            default = _written(p.default)
        about = known[p.name].metadata if p.name in known else {}
        kind = known[p.name].type if p.name in known else p.annotation
        allowed = [about.get("within", ""), *map(_written, about.get("among", ()))]
        words = (
            " or ".join(filter(None, allowed))
            or TYPES.get(kind)
            or ("numbers" if "tuple" in str(kind) else "see below")
        )
        whole = "whole, " if about.get("within") and kind in (int, int | None, int | str) else ""
        yield p.name, default, whole + words


def _written(value: Any) -> str:
    """A value as a command line and TOML have it.

    >>> _written(False), _written((2.0, 1.0)), _written("zero"), _written(None), _written(0.1)
    ('false', '[2.0,1.0]', 'zero', 'none', '0.1')
    """
    if is_dataclass(value):  # a method within a method
        return f'{{name="{spec_of(value).name}"}}'
    if value is None or isinstance(value, str):
        return value or "none"
    return json.dumps(value, separators=(",", ":"))


def own_doc(make: object) -> str:
    """Its docstring without the examples."""
    text, *_ = (make.__doc__ or "").partition(">>>")
    return "\n".join(line.strip() for line in text.strip().splitlines())
