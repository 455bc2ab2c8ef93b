"""The reference, written anew by every build into docs/reference: methods, experiments, commands and the Python API.

All of it is read from the package: registries, fields, commands and docstrings.
"""

import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import click
import typer
from _measured import filled
from _methods import method_pages
from _text import cell, docstring, rows, table, to_markdown, to_rst, toctree
from pydantic import ByteSize
from sphinx.util.fileutil import copy_asset

import undrift as ud
from undrift.cli.app import app as commands
from undrift.experiments.config import Experiment
from undrift.experiments.config.section import Section
from undrift.experiments.config.toml import to_dict
from undrift.experiments.config.virtual import AVAILABILITIES, SERVERS, PopulationSection, ServerSection
from undrift.simulation.engines import EngineChoice

DOCS = Path(__file__).parent
ROOT, OUT = DOCS.parent, DOCS / "reference"


def write_reference() -> None:
    """All pages; one whose content has not changed is left alone, so that a second build is quick."""
    pages = {"experiment.md": _experiment(), "commands.md": _commands()}
    pages |= {f"methods/{name}.md": text for name, text in method_pages()}
    pages |= dict(_api()) | dict(_recipes())
    for path, text in pages.items():
        file = OUT / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    for file in OUT.rglob("*.md"):
        if str(file.relative_to(OUT)) not in pages:
            file.unlink()


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
        "line. Keys that are left out have their default; unknown keys are refused. [Run, sweep, report](../experiments.md) shows "
        f"experiments in use.\n\n{to_markdown(docstring(Experiment))}\n\n## At the top\n\n"
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
    parts = ["# Commands", "The help of every command (`undrift COMMAND --help`) on one page."]
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
        "# Python\n\nThe public names of `import undrift as ud`, by the package that defines them; [methods](../methods/index.md) have "
        f"their own pages.\n\n{toctree(*pages, depth=2)}",
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
        text = text.replace("](../../docs/", "](../../")
        beside = rf"\]\((?=({'|'.join(re.escape(each.name) for each in file.parent.iterdir())})\))"
        yield f"recipes/{name}.md", re.sub(beside, f"](../../../recipes/{name}/", text)


# the site


def _place_pages(app: Any, page: str, source: list[str]) -> None:
    """Pages that the index names nowhere are how-to pages; what lies above docs/ is a page, too."""
    if page == "index":
        named = set(re.findall(r"(?m)^(?:.* <)?([\w-]+)>?$", source[0])) | {"index"}
        others = sorted(p.stem for p in DOCS.glob("*.md") if p.stem not in named and not p.match("tutorial-*"))
        source[0] = source[0].replace("(other pages)", "\n".join(others))
    source[0] = filled(source[0])
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
