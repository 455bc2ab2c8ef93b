"""Experiments as TOML: read with errors that name the line, written so that reading gives the same again."""

import os
import re
import runpy
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import ValidationError

from undrift.core.bounds import check_file
from undrift.core.errors import InvalidInput, first_line, shortened, unknown
from undrift.experiments.config.experiment import NAMED_ALONE, Experiment
from undrift.experiments.config.section import Section
from undrift.experiments.config.virtual import resolve_paths

LARGEST_FILE = 2**24  # bytes of an experiment
KEY = re.compile(r"[\w.\"' -]+")
SETTING = re.compile(r"((?:[^=\"]|\"[^\"]*\")+)=(.*)", flags=re.DOTALL)
# Keys that name something, and what of their section stays when another is named.
NAMING: dict[tuple[str, ...], tuple[str, ...]] = {
    ("algorithm", "name"): ("local",),
    ("model", "name"): ("seed",),
    ("data", "name"): (),
    ("engine", "name"): (),
    ("clients", "partition"): ("number", "weights", "seed"),
    ("participation", "scheme"): (),
    ("server", "kind"): (),
}
EMPTY = ("use", "log", "algorithms")  # left out if there is nothing in them


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


def read(path: Path | str, settings: Iterable[str | Setting] = ()) -> Experiment:
    """An experiment from a TOML file, or from a Python file that calls one `experiment`.

    `settings` are changes to it, such as "algorithm.beta=0.1".
    """
    path = Path(path)
    if path.exists():
        check_file(path, LARGEST_FILE)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidInput(f"{path} cannot be read ({reason}): give an experiment file") from error
    if path.suffix == ".py":
        try:
            experiment = runpy.run_path(str(path)).get("experiment")
        except ValidationError as error:
            raise InvalidInput(_explain(error, {}, Origin(str(path)))) from None
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(f"{path} failed: {type(error).__name__}: {first_line(error)}") from error
        if not isinstance(experiment, Experiment):
            raise InvalidInput(f"{path} must set `experiment = ud.Experiment(...)`")
        return with_settings(experiment, settings)
    try:
        words = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError
        raise InvalidInput(f"{path} is not TOML: {shortened(first_line(error))}") from error
    use = words.get("use")
    if isinstance(use, (str, list)):
        words["use"] = [os.path.abspath(path.parent / str(file)) for file in ([use] if isinstance(use, str) else use)]
    changed = change(words, settings)
    return from_dict(resolve_paths(words, path.parent), Origin(str(path), text, changed))


def with_settings(experiment: Experiment, settings: Iterable[str | Setting]) -> Experiment:
    """The experiment with some things changed.

    >>> e = Experiment(algorithm={"name": "scaffold-m"})
    >>> with_settings(e, ["algorithm.beta=0.5", "rounds=7"]).algorithm.parameters
    {'beta': 0.5}
    """
    words = to_dict(experiment)
    changed = change(words, settings)
    return from_dict(words, Origin(settings=changed)) if changed else experiment


def from_dict(words: Mapping[str, Any], origin: Origin = IN_PYTHON) -> Experiment:
    """An experiment from its sections and keys; an error is one line, with the place that it is about."""
    place = f"{origin.file}: " if origin.file else ""
    try:
        return Experiment(**words)
    except ValidationError as error:
        raise InvalidInput(shortened(_explain(error, words, origin))) from None
    except InvalidInput as error:
        raise InvalidInput(shortened(f"{place}{error}")) from None
    except (TypeError, AttributeError, OverflowError, RecursionError) as error:  # of something that was named
        raise InvalidInput(shortened(f"{place}these words do not fit together ({first_line(error)})")) from error


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """All sections and keys of an experiment, without what is None or empty."""
    words = _without_none(experiment.model_dump())
    for method in [words.get("algorithm", {}), *words["algorithms"].values()]:
        if not method.get("local"):
            method.pop("local", None)
    return {key: value for key, value in words.items() if key not in EMPTY or value}


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML.

    >>> print(to_toml(Experiment(algorithm={"name": "fedavg"})).splitlines()[0])
    rounds = 100
    """
    return tomli_w.dumps(to_dict(experiment))


def _without_none(words: Any) -> Any:
    """None, which TOML does not have, left out."""
    if isinstance(words, Mapping):
        return {key: _without_none(value) for key, value in words.items() if value is not None}
    if isinstance(words, (list, tuple)):
        return [_without_none(each) for each in words]
    return words


def change(words: dict[str, Any], settings: Iterable[str | Setting]) -> list[Setting]:
    """Put settings into an experiment's sections, which are made if need be; returns them."""
    parsed = [parse_setting(each) if isinstance(each, str) else each for each in settings]
    for setting in parsed:
        *above, last = setting.key
        place: dict[str, Any] = words
        for part in above:
            inner: Any = place.setdefault(part, {})
            if isinstance(inner, str) and part in NAMED_ALONE:
                inner = place[part] = {"name": inner}
            if not isinstance(inner, dict):
                raise InvalidInput(f"{setting.option}: {part} is not a section")
            place = inner
        place[last] = setting.value
        if setting.key in NAMING:  # another thing has other parameters
            kept = (last, *NAMING[setting.key])
            words[above[0]] = {key: value for key, value in place.items() if key in kept}
            if words[above[0]].get("partition") == "natural":
                words[above[0]].pop("number", None)
    return parsed


def parse_setting(setting: str) -> Setting:
    """A setting such as "algorithm.beta=0.1"; a label with dots or signs is quoted."""
    found = SETTING.fullmatch(setting.strip())
    if not found or not all(_split(found[1])):
        raise InvalidInput(f"a setting is written key=value, e.g. algorithm.beta=0.1; got {setting!r}")
    return Setting(tuple(_split(found[1])), value_of(found[2].strip()), f"--set {setting}")


def value_of(text: str) -> Any:
    """A value as TOML has it; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


# errors


def _explain(error: ValidationError, words: Mapping[str, Any], origin: Origin) -> str:
    """The first thing that is wrong: where, what was got, what is allowed."""
    problem, *others = error.errors()
    path = _path(problem)
    if problem["type"] == "extra_forbidden":
        kind = f"key of [{'.'.join(path[:-1])}]:" if path[1:] else "key"
        message = str(unknown(kind, path[-1], _allowed(path)))
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
    place = _option_of(origin.settings, path, message) or place
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
    if not path and (named := re.match(r"\[(\w+)\]|(\w+)\.(\w+) =", message)):
        path = [word for word in named.groups() if word]
    for part in path:
        words = words.get(part, {}) if isinstance(words, Mapping) else {}
    if not isinstance(words, Mapping):
        return path
    message, *_ = re.split("; did you mean|Known: ", message)  # what follows is about other keys
    for key, value in words.items():
        if re.search(rf"\b{re.escape(key)}\b", message) or repr(value) in message:
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


def _allowed(path: Sequence[str]) -> list[str]:
    """The keys that may stand where an unknown one was found."""
    model: type[Section] = Experiment
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        kinds = [annotation, *get_args(annotation)]  # of one that may be left out, the section
        sections = (k for k in kinds if isinstance(k, type) and issubclass(k, Section))
        model = next(sections, Experiment)
    return list(model.model_fields)


def _line_of(text: str, path: Sequence[str]) -> int | None:
    """The line of a TOML text that sets a key, or opens its section."""
    table: list[str] = []
    best = (0, 0)  # how much of the path it has, line
    for number, line in enumerate(text.splitlines(), start=1):
        before, sign, _ = line.strip().partition("=")
        if line.lstrip().startswith("["):
            table = found = _split(line.strip().lstrip("[").partition("]")[0])
        elif sign and KEY.fullmatch(before):
            found = [*table, *_split(before)]
        else:
            continue
        if found == list(path[: len(found)]) and len(found) > best[0]:
            best = len(found), number
    return best[1] or None


def _split(dotted: str) -> list[str]:
    """The parts of a key; dots within quotes are none."""
    parts = dotted.split('"')
    parts[::2] = [outside.replace(".", "\0") for outside in parts[::2]]
    return [word.strip().strip("\"'") for word in '"'.join(parts).split("\0")]
