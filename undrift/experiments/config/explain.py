"""What is wrong with an experiment, in one line: where it was given, what was got, what is allowed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, get_args

from pydantic import ValidationError

from undrift.core.errors import unknown
from undrift.experiments.config.section import Section

KEY = re.compile(r"[\w.\"' -]+")


@dataclass(frozen=True)
class Setting:
    """A key of an experiment that was set on the command line, e.g. ("local", "lr"), 0.1, "--lr 0.1"."""

    key: tuple[str, ...]
    value: Any
    option: str


@dataclass(frozen=True)
class Origin:
    """Where an experiment was given, for errors: a file, and settings of the command line."""

    file: str = ""
    text: str = ""
    settings: Sequence[Setting] = ()


IN_PYTHON = Origin()


def explain(error: ValidationError, model: type[Section], words: Mapping[str, Any], origin: Origin = IN_PYTHON) -> str:
    """The first thing that is wrong: where, what was got, what is allowed."""
    problem, *others = error.errors()
    path = _path(problem)
    if problem["type"] == "extra_forbidden":
        kind = f"key of [{'.'.join(path[:-1])}]:" if path[1:] else "key"
        message = str(unknown(kind, path[-1], _allowed(path, model)))
        path = next((list(s.key) for s in origin.settings if s.key[: len(path)] == tuple(path)), path)
    else:
        cause = problem.get("ctx", {}).get("error")
        if cause is None:
            alternatives = [problem, *(other for other in others if _path(other) == path)]
            allowed = " or ".join(dict.fromkeys(map(_what_is_allowed, alternatives)))
            message = f"{'.'.join(path) or 'an experiment'} must be {allowed}, got {problem['input']!r}"
        else:
            message = str(cause)
            section = ".".join(path[: 2 if path[:1] == ["algorithms"] else 1])
            named = f"[{section}" in message  # already, by what was wrong inside
            if path and isinstance(words.get(path[0]), Mapping) and not named:
                message = f"[{section}] {message}"
        path = _narrow(path, words, message)
    line = _line_of(origin.text, path)
    place = f"{origin.file}, line {line}" if line else origin.file
    if option := _option_of(origin.settings, path, message):
        place, message = option, re.sub(r"^\[[^]]*\] ", "", message)  # which says where already
    more = len({tuple(_path(other)) for other in others} - {tuple(_path(problem))})
    rest = f" (and {more} more)" if more else ""
    return f"{place}: {message}{rest}" if place else message + rest


# What may stand where pydantic found something else, by the type of its error.
ALLOWED = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a word",
    "list_type": "a list in brackets",
    "dict_type": "a section of keys and values",
    "model_type": "a section of keys and values",
    "literal_error": "{expected}",
    "byte_size": "a size, such as 2GB",
    "byte_size_unit": "a size, such as 2GB",
    "too_short": "a list of at least {min_length}",
    "missing": "given",
}


def _what_is_allowed(problem: Any) -> str:
    """In our words, not pydantic's."""
    if problem["type"] in ALLOWED:
        return ALLOWED[problem["type"]].format(**problem.get("ctx", {}))
    return problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")


def _narrow(path: list[str], words: Any, message: str) -> list[str]:
    """The path with the key that a message is about, where it names one."""
    if not path and (named := re.match(r"\[(\w+)(?:\.(.+?))?(?:\.local)?\]|(\w+)\.(\w+) =", message)):
        path = [word for word in named.groups() if word]
    for part in path:
        words = words.get(part, {}) if isinstance(words, Mapping) else {}
    if not isinstance(words, Mapping):
        return path
    message, *_ = re.split("; did you mean|Known: ", message)  # what follows is about other keys
    of_key = (key for key in words if re.search(rf"\b{re.escape(key)}\b", message))
    of_value = (
        k for k, value in words.items() if re.search(rf"(?<![\w.]){re.escape(repr(value))}(?!\w|\.\d)", message)
    )
    for key in chain(of_key, of_value):
        return [*path, key]
    for key, value in words.items():  # Link: up must lie in ...
        if isinstance(value, Mapping) and f"{key.capitalize()}: " in message:
            inner = [word for word in value if re.search(rf"\b{re.escape(word)}\b", message)]
            return [*path, key, *inner[:1]]
    return path


def _option_of(settings: Sequence[Setting], path: Sequence[str], message: str) -> str | None:
    """The option on the command line that a message is about, if it is not about the file."""
    for setting in reversed(settings):
        key = setting.key
        above = key[: len(path)] == tuple(path) and re.search(rf"\b{key[-1]}\b", message)
        if tuple(path[: len(key)]) == key or (path and above):
            return setting.option
    return None


def _path(problem: Any) -> list[str]:
    """The keys of the place where a problem is; pydantic's names of a union's types are left out."""
    types = re.compile(r"(int|float|list|dict|str|literal|constrained-\w+|function-\w+)(\[|$)")
    return [str(part) for part in problem["loc"] if not types.match(str(part))]


def _allowed(path: Sequence[str], model: type[Section]) -> list[str]:
    """The keys that may stand where an unknown one was found."""
    top = model
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        kinds = [annotation, *get_args(annotation)]  # of one that may be left out, the section
        sections = (k for k in kinds if isinstance(k, type) and issubclass(k, Section))
        model = next(sections, top)
    return list(model.model_fields)


def _line_of(text: str, path: Sequence[str]) -> int | None:
    """The line of a TOML text that sets a key, or opens its section."""
    table: list[str] = []
    best = (0, 0)  # how much of the path it has, line
    for number, line in enumerate(text.splitlines(), start=1):
        before, sign, _ = line.strip().partition("=")
        if line.lstrip().startswith("["):
            table = found = split_key(line.strip().lstrip("[").partition("]")[0])
        elif sign and KEY.fullmatch(before):
            found = [*table, *split_key(before)]
        else:
            continue
        if found == list(path[: len(found)]) and len(found) > best[0]:
            best = len(found), number
    return best[1] or None


def split_key(dotted: str) -> list[str]:
    """The parts of a key; dots within quotes are none."""
    parts = dotted.split('"')
    parts[::2] = [outside.replace(".", "\0") for outside in parts[::2]]
    return [word.strip().strip("\"'") for word in '"'.join(parts).split("\0")]
