"""Experiments as TOML: read with errors that name the line, written so that reading gives the same again."""

import re
import runpy
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from undrift.errors import InvalidInput, unknown
from undrift.experiment.description import Experiment
from undrift.experiment.virtual import resolved


def read(path: Path | str, settings: Iterable[str] = ()) -> Experiment:
    """An experiment from a TOML file, or from a Python file that calls one `experiment`.

    `settings` are changes to it, such as "algorithm.beta=0.1".
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidInput(f"{path} cannot be read ({reason}): give an experiment file") from error
    if path.suffix == ".py":
        found = runpy.run_path(str(path)).get("experiment")
        if not isinstance(found, Experiment):
            raise InvalidInput(f"{path} must set `experiment = ud.Experiment(...)`")
        return with_settings(found, settings)
    try:
        words = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from error
    words["use"] = [str(path.parent / file) for file in _list(words.get("use", []))]
    if not words["use"]:
        del words["use"]
    words = resolved(_changed(words, settings), path.parent)
    return described(words, str(path), text)


def with_settings(experiment: Experiment, settings: Iterable[str]) -> Experiment:
    """The experiment with some things set otherwise.

    >>> e = Experiment(algorithm={"name": "scaffold-m"})
    >>> with_settings(e, ["algorithm.beta=0.5", "rounds=7"]).algorithm.parameters
    {'beta': 0.5}
    """
    settings = list(settings)
    return described(_changed(as_words(experiment), settings)) if settings else experiment


def described(words: Mapping[str, Any], source: str = "", text: str = "") -> Experiment:
    """An experiment from its words; what is wrong is said in one line, with its place."""
    try:
        return Experiment(**words)
    except ValidationError as error:
        raise InvalidInput(_first(error, words, source, text)) from None
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}" if source else str(error)) from None


def as_words(experiment: Experiment) -> dict[str, Any]:
    """All words of an experiment, those that say nothing left out."""
    return _without_none(experiment.model_dump())


def as_toml(experiment: Experiment) -> str:
    """The experiment as TOML.

    >>> print(as_toml(Experiment(algorithm={"name": "fedavg"})).splitlines()[0])
    rounds = 100
    """
    return tomli_w.dumps(as_words(experiment))


def _without_none(words: Any) -> Any:
    if isinstance(words, Mapping):
        found = {key: _without_none(value) for key, value in words.items() if value is not None}
        return {
            key: value for key, value in found.items() if value not in ({}, []) or key == "figures"
        }
    if isinstance(words, (list, tuple)):
        return [_without_none(each) for each in words]
    return words


def _changed(words: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Words with settings such as "algorithm.beta=0.1" put in."""
    for setting in settings:
        key, sign, value = setting.partition("=")
        path = key.strip().split(".")
        if not sign or not all(path):
            raise InvalidInput(
                f"a setting is written key=value, e.g. algorithm.beta=0.1; got {setting!r}"
            )
        *above, last = path
        place = words
        for word in above:
            place = place.setdefault(word, {})
            if not isinstance(place, dict):
                raise InvalidInput(f"{setting!r}: {word} is not a section")
        place[last] = value_of(value.strip())
        if path == ["algorithm", "name"]:  # another method has other hyper-parameters
            words["algorithm"] = {"name": place[last]}
    return words


def value_of(text: str) -> Any:
    """A value as TOML has it; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# errors


def _first(error: ValidationError, words: Mapping[str, Any], source: str, text: str) -> str:
    """The first thing that is wrong: where, what was got, what is allowed."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"] if _is_there(words, part)]
    name = ".".join(path)
    if problem["type"] == "extra_forbidden":
        kind = f"key of [{'.'.join(path[:-1])}]:" if path[1:] else "key"
        message = str(unknown(kind, path[-1], _allowed(path)))
    else:
        cause = problem.get("ctx", {}).get("error")
        message = str(cause) if cause is not None else f"{problem['msg']}, got {problem['input']!r}"
        message = f"{name}: {message}" if name and cause is None else message
        section = path[0] if path else ""
        message = f"[{section}] {message}" if cause is not None and section else message
        path = _narrowed(path, words, message)
    line = _line_of(text, path)
    place = f"{source}, line {line}" if line else source
    more = len(error.errors()) - 1
    others = f" (and {more} more)" if more else ""
    return f"{place}: {message}{others}" if place else message + others


def _narrowed(path: list[str], words: Any, message: str) -> list[str]:
    """The path with the key that a message speaks of, where it speaks of one."""
    for part in path:
        words = words.get(part, {}) if isinstance(words, Mapping) else {}
    for key, value in words.items() if isinstance(words, Mapping) else ():
        if re.search(rf"\b{re.escape(key)}\b", message) or repr(value) in message:
            return [*path, key]
    return path


def _is_there(words: Mapping[str, Any], part: Any) -> bool:
    """Whether a part of pydantic's path is a word of the user's, not the name of one of a union's types."""
    return not isinstance(part, str) or not re.match(r"(int|float|list|dict|str)(\[|$)", part)


def _allowed(path: Sequence[str]) -> list[str]:
    """The words that may stand where a wrong one was found."""
    model: Any = Experiment
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        model = annotation if hasattr(annotation, "model_fields") else Experiment
    return list(model.model_fields)


def _line_of(text: str, path: Sequence[str]) -> int | None:
    """The line of a TOML text that sets a key, or opens its section."""
    table: list[str] = []
    best: tuple[int, int] | None = None  # (how much of the path it has, line)
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            table = _words_of(header[1])
            found = table
        elif key := re.match(r"\s*([\w.\"' -]+?)\s*=", line):
            found = [*table, *_words_of(key[1])]
        else:
            continue
        common = 0
        while common < min(len(found), len(path)) and found[common] == path[common]:
            common += 1
        if common == len(found) and common and (best is None or common > best[0]):
            best = common, number
    return best[1] if best else None


def _words_of(dotted: str) -> list[str]:
    return [
        word.strip().strip("\"'")
        for word in re.split(r"\.(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", dotted)
    ]
