"""The package's docstrings as Markdown and reStructuredText: prose, examples, and rows "name   what it is"."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator

from _rules import to_math

ROW = re.compile(r"^(\S*[^\s.:;!?](?: \S*[^\s.:;!?]){0,2}) {2,}(\S.*)$")


def paragraphs(text: str) -> Iterator[list[str]]:
    """The paragraphs of a docstring, without the indentation of the first."""
    for part in re.split(r"\n[ \t]*\n", textwrap.dedent(text).strip("\n")):
        if part.strip():
            yield part.rstrip().splitlines()


def docstring(thing: object) -> str:
    """The docstring of something, the first line indented as the others are."""
    first, _, rest = (thing.__doc__ or "").expandtabs().partition("\n")
    return f"{first.strip()}\n{textwrap.dedent(rest)}".strip()


def rows(text: str) -> dict[str, str]:
    """The rows "name   what it is" of a docstring, with the lines that continue them.

    >>> rows("Settings.\\n\\nlr      step size,\\n        0.1 by default\\nsteps   a number")
    {'lr': 'step size, 0.1 by default', 'steps': 'a number'}
    """
    found: dict[str, str] = {}
    for lines in paragraphs(text):
        if lines[0].startswith(">>>") or not all(ROW.match(line) or line.startswith("  ") for line in lines):
            continue
        name = ""
        for line in lines:
            row = ROW.match(line)
            if row and not line.startswith(" "):
                name, found[row[1]] = row[1], row[2]
            elif name:
                found[name] += " " + line.strip()
    return found


def is_laid_out(lines: list[str]) -> bool:
    """Whether the lines of a paragraph stand where they stand for a reason."""
    return any(line.startswith("  ") or re.search(r"[^.:;!?\s] {2,}\S| {3,}\S", line) for line in lines)


def to_markdown(text: str) -> str:
    """A docstring as Markdown: rules become mathematics, other tables stay as they are laid out."""
    parts = []
    for lines in paragraphs(text):
        rule = to_math(lines)
        if rule:
            parts.append(rule)
        elif lines[0].startswith(">>>"):
            parts.append("```pycon\n" + "\n".join(lines) + "\n```")
        elif is_laid_out(lines):
            block = textwrap.dedent("\n".join(lines))
            parts.append(f"```text\n{block}\n```")
        else:
            parts.append(_mixed("\n".join(lines), _escaped_markdown, lambda code: f"`{code}`"))
    return "\n\n".join(parts)


def _mixed(text: str, prose: Callable[[str], str], code: Callable[[str], str]) -> str:
    """Text with its prose and its `code` written anew."""
    return "".join((code if i % 2 else prose)(part) for i, part in enumerate(re.split(r"`([^`]+)`", text)))


def _escaped_markdown(prose: str) -> str:
    return re.sub(r"(?<!\w)[_*](?=\w)(?!\w+\*)|[\\<\[$]", lambda m: f"\\{m[0]}", prose)


def _escaped_rst(prose: str) -> str:
    return re.sub(r"[\\*_|`]", lambda m: f"\\{m[0]}", prose)


def to_rst(text: str) -> list[str]:
    """A docstring as lines of reStructuredText."""
    parts: list[str] = []
    for lines in paragraphs(text):
        table = rows("\n".join(lines))
        if lines[0].startswith(">>>"):
            parts += [*lines, ""]
        elif table:
            for name, about in table.items():
                parts += [f"``{name}``", f"    {_rst_prose(about)}", ""]
        elif is_laid_out(lines):
            parts += ["::", "", *(f"    {line}" for line in lines), ""]
        else:
            parts += [*_rst_prose("\n".join(lines)).splitlines(), ""]
    return parts


def _rst_prose(text: str) -> str:
    return _mixed(text, _escaped_rst, lambda code: f"\\ ``{code}``\\ ")


def cell(text: object) -> str:
    """Text in a cell of a table."""
    words = " ".join(str(text).split())
    return re.sub(r"[|<\\]", lambda m: f"\\{m[0]}", words)


def table(headings: tuple[str, ...], lines: Iterable[tuple[object, ...]]) -> str:
    """A table of Markdown, "" if it has no rows."""
    body = [f"| {' | '.join(map(str, line))} |" for line in lines]
    rule = "|---" * len(headings) + "|"
    return "\n".join([f"| {' | '.join(headings)} |", rule, *body]) + "\n" if body else ""


def toctree(*names: str, depth: int = 1, hidden: bool = False) -> str:
    """A table of contents, which places pages in the navigation."""
    listed = "\n".join(names)
    options = ":hidden:\n" if hidden else ""
    return f"```{{toctree}}\n{options}:maxdepth: {depth}\n\n{listed}\n```\n"
