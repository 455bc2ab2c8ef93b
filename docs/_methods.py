"""The page of a method, and the index of all: from its docstrings, its spec, the tests and recorded results."""

import ast
import inspect
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from _measured import ROOT, WORKLOADS, costs
from _text import cell, docstring, table, to_markdown, toctree

import undrift as ud
from undrift.cli.about import HEADINGS, cells, hyper_parameters
from undrift.core.hyper import METHODS, Entry, Spec
from undrift.experiments.recipes.page import claims_table
from undrift.experiments.recipes.recipe import Recipe, list_recipes, read_recipe
from undrift.experiments.recipes.results import Results, read_results
from undrift.simulation.catalogue import EXAMPLES, MethodCost, measure_by_name

RECIPES = ROOT / "recipes"


def method_pages() -> Iterator[tuple[str, str]]:
    """Names and texts of all pages about methods."""
    yield "index", _index()
    for name, entry in METHODS.items():
        yield name, _page(name, entry)


def _index() -> str:
    headings = ("method", "paper", *HEADINGS[2:6], "exact with", "asynchronous", "private", "remarks")
    lines = []
    for name in sorted(METHODS):
        _, paper, *sizes, remarks = cells(measure_by_name(name))
        ends = sorted({who for who, _ in _exact(METHODS[name])})
        known = (paper, *sizes, " or ".join(ends), _yes(_buffered(name)), _yes(_private(name)), remarks)
        lines.append((f"[{name}]({name}.md)", *map(cell, known)))
    text = table(headings, lines)
    return f"""# Methods

{len(METHODS)} methods, each with a page: its rule, code, hyper-parameters, cost, where it converges to, and what was published and measured.
Click a heading to sort.

- **Client keeps, down, up**: multiples of the model, measured from the messages of a visit. A + means a few numbers more.
- **Exact with**: the participation with which the tests hold the method to the optimum of heterogeneous quadratics.
- **Asynchronous**: it runs with a buffered server (`ud.Buffer`), where clients report when they are done.
- **Private**: it runs with client-level differential privacy (`ud.Privacy`).

:::{{table}}
:class: sortable

{text}
:::

{toctree(*sorted(METHODS), hidden=True)}"""


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def _page(name: str, entry: Entry) -> str:
    module = sys.modules[entry.make.__module__]
    path = Path(inspect.getsourcefile(module) or "").relative_to(ROOT)
    made = entry.make(**EXAMPLES.get(name, {}))
    public = entry.make.__name__
    parameters = list(hyper_parameters(name, entry))
    values = [f"{key}={value}" for key, value, _ in parameters if value not in ("none", "required")]
    relatives = [n for n, other in METHODS.items() if other.make.__module__ == entry.make.__module__ and n != name]
    parts = [
        f"# {public}\n\n`{name}` · {entry.spec.paper}",
        to_markdown(docstring(entry.make)),
        f"```python\nud.{public}({', '.join(f'{k}={v!r}' for k, v in EXAMPLES.get(name, {}).items())})\n```\n\n"
        f"```sh\nundrift compare fedavg {name}{':' + values[0] if values else ''}\n```",
    ]
    if type(made).__name__ != public:
        parts.append(f"A special case of `ud.{type(made).__name__}`: with its defaults it is `{made!r}`.")
    parts.append("## When to use it\n\n" + "\n".join(f"- {reason}" for reason in _reasons(name, entry)))
    parts.append(f"## The rule\n\n{to_markdown(docstring(module))}")
    if parameters:
        lines = [(f"`{key}`", cell(default), cell(allowed)) for key, default, allowed in parameters]
        parts.append("## Hyper-parameters\n\n" + table(("name", "default", "allowed"), lines))
    parts.append(f"## What it keeps, sends and costs\n\n{_costs(name)}")
    known = [cell(about) for flag, about in _flags().items() if getattr(entry.spec, flag) != getattr(_PLAIN, flag)]
    if known:
        parts.append("## Properties\n\n" + "\n".join(f"- {line}" for line in known))
    parts.append(f"## Where it converges to\n\n{_end(entry)}")
    if limits := list(_limits(public)):
        parts.append(
            "## What it equals\n\nThe tests hold these differences between trajectories below 1e-9 "
            "(`tests/algorithms/test_limits.py`; `go` runs a method, `gap` is the largest difference):\n\n"
            + "\n\n".join(f"```python\n{source}\n```" for source in limits)
        )
    parts += [f"## Published and ours\n\n{_published(name, public)}"]
    parts.append(
        f"## Code\n\n```{{literalinclude}} ../../../{path}\n:language: python\n:pyobject: {public}\n```\n\n"
        f"<details><summary>All of {path}</summary>\n\n```{{literalinclude}} ../../../{path}\n:language: python\n```\n\n</details>"
    )
    if relatives:
        parts.append("## In the same file\n\n" + ", ".join(f"[{other}]({other}.md)" for other in relatives))
    return "\n\n".join(parts) + "\n"


def _reasons(name: str, entry: Entry) -> Iterator[str]:
    """What speaks for a method and against it, from what is known and was measured."""
    cost, ends = measure_by_name(name), {who for who, _ in _exact(entry)}
    if entry.spec.everyone:
        yield "**All clients must take part in every round**; it is not defined otherwise."
    elif cost.keeps:
        yield "Clients **keep state** between visits: use it where the same clients come back (sites, hospitals), not where each is seen once."
    else:
        yield "Clients keep **no state**: it suits federations in which a client may be seen only once."
    if "some" in ends:
        yield "It reaches the optimum whatever the heterogeneity, **also with partial participation** (exact gradients, tests)."
    elif ends:
        yield "It reaches the optimum whatever the heterogeneity **if all clients take part** (exact gradients, tests)."
    else:
        yield "With several local steps on heterogeneous data it is **not exact**; see [where methods converge to](../../methods.md)."
    relative = _traffic(cost) / _traffic(measure_by_name("fedavg"))
    yield f"A visit transfers {relative:.3g} times as many bytes as FedAvg's, and a local step computes {cost.gradients:.3g} gradient{'' if cost.gradients == 1 else 's'}."
    yield (
        f"Asynchronous clients (`ud.Buffer`): {_yes(_buffered(name))}. Differential privacy (`ud.Privacy`): {_yes(_private(name))}."
    )
    tried = [(choice, c) for choice in _choices() for c in choice.contenders if c.label == name]
    if tried:
        taken = sum(choice.chosen == name for choice, _ in tried)
        close = sum(bool(c.noise) for _, c in tried)
        yield (
            f"[Measured choices](../../choosing.md): tuned on {len(tried)} federations, it was the choice on {taken} and the best "
            f"or within noise of the best on {close}."
        )


def _traffic(cost: MethodCost) -> float:
    return sum(map(sum, cost.traffic))


@cache
def _choices() -> list[Any]:
    return [ud.load_choice(path) for path in sorted((ROOT / "docs" / "choices").glob("*.json"))]


def _costs(name: str) -> str:
    cost, fedavg = measure_by_name(name), measure_by_name("fedavg")
    row = dict(zip(HEADINGS, cells(cost), strict=True))
    base = dict(zip(HEADINGS, cells(fedavg), strict=True))
    lines = [(key, row[key], base[key]) for key in HEADINGS[2:6]]
    lines.append(("traffic of a visit", f"{_traffic(cost):.4g}", f"{_traffic(fedavg):.4g}"))
    lines += [
        (f"time of a round, FedAvg's = 1, {w} ({WORKLOADS[w]})", f"{ratio:.2f}", "1.00")
        for w, ratio in costs().get(name, {}).items()
    ]
    note = f"\nNote: {row['remarks']}.\n" if row["remarks"] else ""
    text = "Sizes are multiples of the model, measured from the messages; times are recorded benchmarks ([speed](../../speed.md)).\n\n"
    return text + table(("", name, "fedavg"), lines) + note


def _end(entry: Entry) -> str:
    if ends := list(_exact(entry)):
        lines = [(f"`{call}`", {"some": "a few clients a round"}.get(who, who)) for who, call in ends]
        return (
            "To the optimum of heterogeneous quadratics, to 1e-10 (`tests/algorithms/test_optimum.py`), with these "
            "hyper-parameters and clients:\n\n" + table(("method", "participation"), lines)
        )
    return (
        "No test holds it to the optimum of heterogeneous quadratics: with several local steps it converges to a point that depends on "
        "the step size and on who takes part, or the papers do not claim more. [Methods](../../methods.md) says what is known of each family."
    )


def _published(name: str, public: str) -> str:
    """The claims of papers about a method, with what was recorded here."""
    parts = []
    for recipe_name, recipe, results in _recorded():
        chosen = [claim for claim in recipe.claim if _is_about(claim, name, public) and results.of(claim)]
        if chosen:
            text = claims_table(recipe.model_copy(update={"claim": chosen}), results)
            parts.append(f"[{recipe_name}](../recipes/{recipe_name}.md): {recipe.paper}.\n\n{text}")
    return "\n".join(parts) or "No recipe has a claim about this method yet ([reproductions](../../reproductions.md))."


@cache
def _recorded() -> list[tuple[str, Recipe, Results]]:
    found = [(name, read_recipe(folder), read_results(folder)) for name, folder in list_recipes([RECIPES]).items()]
    return [(name, recipe, results) for name, recipe, results in found if results]


def _is_about(claim: Any, name: str, public: str) -> bool:
    """Whether a claim says something of a method: of what it measures, or where that has no label, in its words."""
    labels = [label.rpartition("/")[2].lower() for label in (claim.of or "", *claim.order) if "/" in label]
    if any(label in METHODS for label in labels):
        return name in labels
    names = {name, public.lower(), public.lower().replace("_", "-")}
    return any(re.search(rf"(?<![\w-]){re.escape(each)}(?![\w-])", claim.claim.lower()) for each in names)


_PLAIN = Spec("", "")


@cache
def _flags() -> dict[str, str]:
    """What the flags of a spec say, from the comments beside them."""
    source = inspect.getsource(Spec)
    found = dict(re.findall(r"(\w+): bool = \(?\s*(?:True|False)\s*# (.+)", source))
    if missing := [f.name for f in fields(Spec) if f.type in (bool, "bool") and f.name not in found]:
        raise ValueError(f"Spec: no comment beside {missing}")
    return found


def _runs(name: str, **settings: Any) -> bool:
    problem = ud.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    method = METHODS[name].make(**EXAMPLES.get(name, {}))
    logging.getLogger("undrift").setLevel(logging.CRITICAL)  # whether it runs is asked, not whether it converges
    try:
        ud.run(method, problem, local=ud.Local(steps=2, lr=0.1), progress=False, **settings)
    except ud.InvalidInput:
        return False
    return True


@cache
def _buffered(name: str) -> bool:
    """Whether a run with a buffered server is allowed."""
    return _runs(name, rounds=16, server=ud.Buffer(2))


@cache
def _private(name: str) -> bool:
    """Whether a private run is allowed."""
    return _runs(name, rounds=16, privacy=ud.Privacy(clip=1.0, noise=1.0, delta=1e-5))


@cache
def _source(name: str) -> str:
    return (ROOT / "tests" / "algorithms" / name).read_text()


def _names(node: ast.AST) -> set[str]:
    """The public names of the package that code uses."""
    return {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "ud"
    }


def _exact(entry: Entry) -> Iterator[tuple[str, str]]:
    """With whom, and which hyper-parameters, the tests hold a method to the optimum."""
    for node in ast.parse(_source("test_optimum.py")).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "EXACT"
            and isinstance(node.value, ast.List)
        ):
            for row in node.value.elts:
                assert isinstance(row, ast.Tuple)
                if entry.make.__name__ in _names(row.elts[0]):
                    yield {"SOME": "some", "EVERYONE": "everyone"}[ast.unparse(row.elts[1])], ast.unparse(row.elts[0])


def _limits(public: str) -> Iterator[str]:
    """The equivalences of the tests that name a method."""
    source = _source("test_limits.py")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and re.fullmatch(r"e\d+", node.name) and public in _names(node):
            yield ast.get_source_segment(source, node) or ""
