"""The reference, written anew by every build into docs/reference: methods, experiments, commands and the Python API.

All of it is read from the package: registries, fields, commands and docstrings; what ends where and what equals what from the tests.
"""

import ast
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import click
import torch
import typer
from _text import cell, docstring, rows, table, to_markdown, to_rst
from pydantic import ByteSize
from sphinx.util.fileutil import copy_asset

import undrift as ud
from undrift.cli.about import HEADINGS, cells, hyper_parameters
from undrift.cli.app import app as commands
from undrift.core.hyper import METHODS, Entry, Spec
from undrift.experiments.config import Experiment
from undrift.experiments.config.section import Section
from undrift.experiments.config.toml import to_dict
from undrift.experiments.config.virtual import AVAILABILITIES, SERVERS, PopulationSection, ServerSection
from undrift.simulation.catalogue import EXAMPLES, measure_by_name
from undrift.simulation.engines import EngineChoice

DOCS = Path(__file__).parent
ROOT, OUT = DOCS.parent, DOCS / "reference"


def write_reference() -> None:
    """All pages; one whose content has not changed is left alone, so that a second build is quick."""
    pages = {"experiment.md": _experiment(), "commands.md": _commands()}
    pages |= {f"methods/{name}.md": _method(name, entry) for name, entry in METHODS.items()}
    pages |= {"methods/index.md": _methods()} | dict(_api()) | dict(_recipes())
    for path, text in pages.items():
        file = OUT / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for file in OUT.rglob("*.md"):
        if str(file.relative_to(OUT)) not in pages:
            file.unlink()


def _toctree(*names: str, depth: int = 1) -> str:
    listed = "\n".join(names)
    return f"```{{toctree}}\n:maxdepth: {depth}\n\n{listed}\n```\n"


# methods


def _methods() -> str:
    headings = ("method", "paper", *HEADINGS[2:6], "exact with", "with a buffer", "remarks")
    lines = []
    for name in sorted(METHODS):
        _, paper, *sizes, remarks = cells(measure_by_name(name))
        ends = sorted({who for who, _ in _exact(METHODS[name])})
        lines.append((f"[{name}]({name}.md)", *map(cell, (paper, *sizes, " or ".join(ends), _buffered(name), remarks))))
    text = table(headings, lines)
    return f"""# Methods

{len(METHODS)} methods, each with a page: its rule, its code, its hyper-parameters, what it keeps and sends. A click on a heading sorts.

Sizes are multiples of the model, measured from the messages of a visit; a + means that a few numbers go along. *Exact with*
says with which participation the tests hold a method to the optimum of heterogeneous quadratics; *with a buffer* whether it
takes `ud.Buffer`, in which clients come when they like.

:::{{table}}
:class: sortable

{text}
:::

{_toctree(*sorted(METHODS)).replace(":maxdepth", ":hidden:" + chr(10) + ":maxdepth")}"""


def _method(name: str, entry: Entry) -> str:
    module = sys.modules[entry.make.__module__]
    path = Path(inspect.getsourcefile(module) or "").relative_to(ROOT)
    made = entry.make(**EXAMPLES.get(name, {}))
    public = entry.make.__name__
    parameters = list(hyper_parameters(name, entry))
    values = [f"{key}={value}" for key, value, _ in parameters if value not in ("none", "required")]
    row = dict(zip(HEADINGS, cells(measure_by_name(name)), strict=True))
    fedavg = measure_by_name("fedavg").traffic
    traffic = sum(map(sum, measure_by_name(name).traffic)) / sum(map(sum, fedavg))
    relatives = [n for n, other in METHODS.items() if other.make.__module__ == entry.make.__module__ and n != name]
    parts = [
        f"# {public}\n\n`{name}` · {entry.spec.paper}",
        to_markdown(docstring(entry.make)),
        f"```python\nud.{public}({', '.join(f'{k}={v!r}' for k, v in EXAMPLES.get(name, {}).items())})\n```\n\n"
        f"```sh\nundrift compare fedavg {name}{':' + values[0] if values else ''}\n```",
    ]
    if type(made).__name__ != public:
        parts.append(f"A special case of `ud.{type(made).__name__}`: with its defaults it is `{made!r}`.")
    parts.append(f"## The rule\n\n{to_markdown(docstring(module))}")
    if parameters:
        lines = [(f"`{key}`", cell(default), cell(allowed)) for key, default, allowed in parameters]
        parts.append("## Hyper-parameters\n\n" + table(("name", "default", "allowed"), lines))
    measured = [(key, row[key]) for key in HEADINGS[2:6]] + [("traffic of a visit, FedAvg's = 1", f"{traffic:.4g}")]
    parts.append("## What it keeps and sends\n\nIn multiples of the model, measured from its messages.\n\n")
    parts[-1] += table(("", "vectors"), measured) + (f"\nNote: {row['remarks']}.\n" if row["remarks"] else "")
    known = [cell(about) for flag, about in _flags().items() if getattr(entry.spec, flag) != getattr(_PLAIN, flag)]
    known.append(f"with a buffered server (`ud.Buffer`): {_buffered(name)}")
    parts.append("## What is known of it\n\n" + "\n".join(f"- {line}" for line in known))
    if ends := list(_exact(entry)):
        lines = [(f"`{call}`", who) for who, call in ends]
        parts.append(
            "## Where it ends\n\nAt the optimum of heterogeneous quadratics, to 1e-10 "
            "(`tests/algorithms/test_optimum.py`):\n\n" + table(("method", "participation"), lines)
        )
    if limits := list(_limits(public)):
        parts.append(
            "## What it equals\n\nThese gaps between trajectories are below 1e-9 (`tests/algorithms/test_limits.py`; `go` "
            "runs a method, `gap` is the largest difference):\n\n"
            + "\n\n".join(f"```python\n{source}\n```" for source in limits)
        )
    parts.append(
        f"## Code\n\n```{{literalinclude}} ../../../{path}\n:language: python\n:pyobject: {public}\n```\n\n"
        f"<details><summary>All of {path}</summary>\n\n```{{literalinclude}} ../../../{path}\n:language: python\n```\n\n</details>"
    )
    if relatives:
        parts.append("## In the same file\n\n" + ", ".join(f"[{other}]({other}.md)" for other in relatives))
    return "\n\n".join(parts) + "\n"


_PLAIN = Spec("", "")


@cache
def _flags() -> dict[str, str]:
    """What the flags of a spec say, from the comments beside them."""
    source = inspect.getsource(Spec)
    found = dict(re.findall(r"(\w+): bool = \(?\s*(?:True|False)\s*# (.+)", source))
    if missing := [f.name for f in fields(Spec) if f.type in (bool, "bool") and f.name not in found]:
        raise ValueError(f"Spec: no comment beside {missing}")
    return found


@cache
def _buffered(name: str) -> str:
    """Whether a run with a buffered server is refused."""
    problem = ud.Quadratic(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2))
    method = METHODS[name].make(**EXAMPLES.get(name, {}))
    try:
        ud.run(method, problem, rounds=16, local=ud.Local(steps=2, lr=0.1), server=ud.Buffer(2), progress=False)
    except ud.InvalidInput:
        return "no"
    return "yes"


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


# experiments


def _experiment() -> str:
    usual = to_dict(Experiment(algorithm={"name": "fedavg"}))  # pyright: ignore[reportArgumentType]
    top, sections = [], []
    for key, field in Experiment.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if inspect.isclass(kind)]
        inner = next((kind for kind in kinds if issubclass(kind, Section) or is_dataclass(kind)), None)
        if inner is None or key in ("engine", "algorithms"):
            about = _about(key, field.description)
            top.append((f"`{key}`", cell(_type(field.annotation)), _shown(usual.get(key)), about))
        if inner is not None and get_origin(field.annotation) is not dict:
            sections.append(_section(key, inner, usual.get(key, {})))
    return (
        "# Experiments\n\nEvery key of an experiment file, and of `ud.Experiment`; `--set section.key=value` sets one on the command "
        "line. What is left out has the default; an unknown key is refused. [From one command to a report](../experiments.md) shows "
        f"experiments at work.\n\n{to_markdown(docstring(Experiment))}\n\n## At the top\n\n"
        + table(("key", "type", "default", "what it is"), top)
        + "\n"
        + "\n".join(sections)
    )


def _section(key: str, kind: Any, usual: Any) -> str:
    words = usual if isinstance(usual, dict) else {"name": usual}
    parts = [f"## [{key}]", to_markdown(re.split(r"\n\s*\n", docstring(kind))[0])]
    if issubclass(kind, Section):
        lines = [
            (
                f"`{name}`",
                cell(_type(f.annotation)),
                _shown(words.get(name, f.default)),
                _about(f"{key}.{name}", f.description),
            )
            for name, f in kind.model_fields.items()
        ]
        parts.append(table(("key", "type", "default", "what it is"), lines))
    else:
        parts.append(_dataclass(kind, words, engine="name"))
    if kind is PopulationSection:
        for title, each in (("", ud.Population), (".link", ud.Link), (".dropout", ud.Dropout)):
            parts += [
                title and f"### [{key}{title}]",
                to_markdown(docstring(each).split("\n")[0]),
                _dataclass(each, {}),
            ]
        parts += [f"### [{key}.availability]", _kinds(AVAILABILITIES)]
    if kind is ServerSection:
        parts.append(_kinds(SERVERS))
    return "\n\n".join(filter(None, parts)) + "\n"


def _dataclass(kind: Any, usual: dict[str, Any], **renamed: str) -> str:
    """The fields of a dataclass, with what its docstring says of them."""
    told = rows(docstring(kind))
    lines = []
    for f in fields(kind):
        name = renamed.get(f.name, f.name)
        default = usual.get(name, f.default)
        lines.append((f"`{name}`", _shown(default), _about(f"{kind.__name__}.{f.name}", told.get(f.name))))
    return table(("key", "default", "what it is"), lines)


def _kinds(known: dict[str, Any]) -> str:
    lines = [
        (f"`{name}`", cell(", ".join(inspect.signature(make).parameters)), cell(docstring(make).partition("\n")[0]))
        for name, make in known.items()
    ]
    return table(("kind", "parameters", "what it is"), lines)


def _shown(value: Any) -> str:
    """A default as an experiment file has it; what is itself a section has rows of its own."""
    plain = isinstance(value, str | int | float | list) and value != []
    return f"`{json.dumps(value)}`" if plain else ""


def _about(key: str, text: str | None) -> str:
    if not text:
        raise ValueError(f"{key} has no description: every key of an experiment is in the reference")
    return cell(text)


def _type(annotation: Any) -> str:
    """A type in words that an experiment file knows."""
    words: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): ""}
    words |= {ByteSize: 'size, such as "4GB"', EngineChoice: "section"}
    if annotation in words:
        return words[annotation]
    inner = get_args(annotation)
    if get_origin(annotation) is list:
        return f"list of {_type(inner[0])}".replace("number", "numbers")
    if get_origin(annotation) is dict or annotation is dict:
        return "section"
    if inner and isinstance(inner[0], str):
        return " or ".join(f'"{word}"' for word in inner)
    if hasattr(annotation, "__metadata__"):
        return _type(inner[0])
    return " or ".join(dict.fromkeys(filter(None, map(_type, inner)))) or getattr(
        annotation, "__name__", str(annotation)
    )


# commands


def _commands() -> str:
    parts = ["# Commands", "What `undrift COMMAND --help` says of each, on one page."]
    parts += list(_command("undrift", typer.main.get_command(commands), 1))
    return "\n\n".join(parts) + "\n"


def _command(path: str, command: click.Command, depth: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if depth > 1:
        yield f"{'#' * min(depth, 3)} {path}"
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{path} {usage}\n```"
        about, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
        yield to_markdown(about) + (f"\n\n```sh\n{example.replace('; ', chr(10))}\n```" if example else "")
    groups: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.hidden:
            continue
        flags = parameter.opts + parameter.secondary_opts if isinstance(parameter, click.Option) else [parameter.name]
        names = ", ".join(f"`{flag}`" for flag in flags if flag)
        about, default = vars(parameter).get("help") or "", vars(parameter).get("show_default")
        if default is True and parameter.default:
            default = parameter.default
        shown = "" if default in (True, False, None, "[]") else f"`{default}`"
        panel = vars(parameter).get("rich_help_panel") or (
            "Options" if isinstance(parameter, click.Option) else "Arguments"
        )
        groups[panel].append((names, shown, cell(about)))
    for panel, lines in groups.items():
        yield f"**{panel}**\n\n" + table(("name", "default", "what it is"), lines)
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _command(f"{path} {name}", each, depth + 1)


# Python


def _api() -> Iterator[tuple[str, str]]:
    """A page a package, with the public names that it defines; methods have pages of their own."""
    packages: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(ud.__all__) - {*ud.algorithms.__all__}, key=str.lower):
        thing = getattr(ud, name)
        if isinstance(thing, ModuleType):
            packages[thing.__name__] += [f"{name}.{each}" for each in _public(thing)]
        elif inspect.isclass(thing) or callable(thing):
            packages[".".join(thing.__module__.split(".")[:2])].append(name)
    for package, names in packages.items():
        entries = "\n".join(map(_autodoc, names))
        name = package.rpartition(".")[2]
        about = to_markdown(docstring(sys.modules[package]).partition("\n")[0])
        head = f"# {name.title()}\n\n{about}\n\n"
        yield f"api/{name}.md", f"{head}```{{eval-rst}}\n{entries}```\n"
    pages = sorted(package.rpartition(".")[2] for package in packages)
    yield (
        "api/index.md",
        "# Python\n\nWhat `import undrift as ud` gives, by the package that defines it; methods are [on pages of their "
        f"own](../methods/index.md).\n\n{_toctree(*pages, depth=2)}",
    )


def _public(module: ModuleType) -> list[str]:
    own = [n for n, v in vars(module).items() if callable(v) and v.__module__ == module.__name__ and n[0] != "_"]
    return sorted((n for n in getattr(module, "__all__", own) if getattr(module, n).__doc__), key=str.lower)


def _autodoc(name: str) -> str:
    thing: Any = ud
    for part in name.split("."):
        thing = getattr(thing, part)
    if inspect.isclass(thing):
        return f".. autoclass:: undrift.{name}\n   :members:\n   :exclude-members: model_config\n"
    return f".. autofunction:: undrift.{name}\n"


def _restructured(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines))


def _recipes() -> Iterator[tuple[str, str]]:
    """What lies beside a recipe can be downloaded."""
    for file in (ROOT / "recipes").glob("*/README.md"):
        name = file.parent.name
        text = re.sub(r"\]\(\.\./([\w-]+)/README\.md\)", r"](\1.md)", file.read_text())
        beside = rf"\]\((?=({'|'.join(re.escape(each.name) for each in file.parent.iterdir())})\))"
        yield f"recipes/{name}.md", re.sub(beside, f"](../../../recipes/{name}/", text)


# the site


def _place_pages(app: Any, page: str, source: list[str]) -> None:
    """Pages that the index names nowhere are how-to pages; what lies above docs/ is a page, too."""
    if page == "index":
        named = set(re.findall(r"(?m)^(?:.* <)?([\w-]+)>?$", source[0])) | {"index"}
        others = sorted(p.stem for p in DOCS.glob("*.md") if p.stem not in named and not p.match("tutorial-*"))
        source[0] = source[0].replace("(other pages)", "\n".join(others))
    source[0] = source[0].replace("](../CONTRIBUTING.md)", "](contributing.md)")
    source[0] = re.sub(r"\]\(\.\./recipes/([\w-]+)/README\.md\)", r"](reference/recipes/\1.md)", source[0])


def _copy_mathjax(app: Any, error: Exception | None) -> None:
    spec = find_spec("sphinx-mathjax-offline")
    if error is None and app.builder.format == "html" and spec and spec.origin:
        source, target = Path(spec.origin).parent / "static" / "mathjax", Path(app.outdir) / "_static" / "mathjax"
        copy_asset(source / "tex-chtml.js", target)
        copy_asset(source / "output" / "chtml", target / "output" / "chtml")


def setup(app: Any) -> dict[str, bool]:
    write_reference()
    app.connect("source-read", _place_pages)
    app.connect("autodoc-process-docstring", _restructured)
    app.connect("build-finished", _copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
