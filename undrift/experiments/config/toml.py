"""Experiments as TOML: read with errors that name the line, written so that reading gives the same again."""

import re
import runpy
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import ValidationError

from undrift.core.errors import InvalidInput, unknown
from undrift.experiments.config.experiment import Experiment
from undrift.experiments.config.virtual import resolved

SETTING = re.compile(r"((?:[^=\"]|\"[^\"]*\")+)=(.*)", flags=re.DOTALL)
# Words that name something, and what of their section stays if they are set otherwise.
RENAMED = {
    ("algorithm", "name"): ("local",),
    ("model", "name"): ("seed",),
    ("data", "name"): (),
    ("clients", "partition"): ("number", "weights", "seed"),
    ("participation", "scheme"): (),
    ("server", "kind"): (),
}


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
        try:
            found = runpy.run_path(str(path)).get("experiment")
        except ValidationError as error:
            raise InvalidInput(_first(error, {}, str(path), "")) from None
        if not isinstance(found, Experiment):
            raise InvalidInput(f"{path} must set `experiment = ud.Experiment(...)`")
        return with_settings(found, settings)
    try:
        words = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from error
    if "use" in words:
        files = [words["use"]] if isinstance(words["use"], str) else words["use"]
        words["use"] = [str((path.parent / str(file)).resolve()) for file in files]
    settings = list(settings)
    words = resolved(_changed(words, settings), path.parent)
    return described(words, str(path), text, settings)


def with_settings(experiment: Experiment, settings: Iterable[str]) -> Experiment:
    """The experiment with some things set otherwise.

    >>> e = Experiment(algorithm={"name": "scaffold-m"})
    >>> with_settings(e, ["algorithm.beta=0.5", "rounds=7"]).algorithm.parameters
    {'beta': 0.5}
    """
    settings = list(settings)
    words = _changed(as_words(experiment), settings)
    return described(words, settings=settings) if settings else experiment


def described(
    words: Mapping[str, Any], source: str = "", text: str = "", settings: Sequence[str] = ()
) -> Experiment:
    """An experiment from its words; what is wrong is said in one line, with its place: a line of `text`, or one of the
    settings that are in the words already."""
    try:
        return Experiment(**words)
    except ValidationError as error:
        raise InvalidInput(_first(error, words, source, text, settings)) from None
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}" if source else str(error)) from None
    except (
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:  # of something that was named in words
        place = f"{source}: " if source else ""
        raise InvalidInput(f"{place}these words do not fit together ({error})") from error


EMPTY = ("use", "log", "algorithms")  # not worth a word if there is nothing in them


def as_words(experiment: Experiment) -> dict[str, Any]:
    """All words of an experiment, those that say nothing left out."""
    words = _said(experiment.model_dump())
    for method in [words.get("algorithm", {}), *words["algorithms"].values()]:
        if not method.get("local"):
            method.pop("local", None)
    return {key: value for key, value in words.items() if key not in EMPTY or value}


def as_toml(experiment: Experiment) -> str:
    """The experiment as TOML.

    >>> print(as_toml(Experiment(algorithm={"name": "fedavg"})).splitlines()[0])
    rounds = 100
    """
    return tomli_w.dumps(as_words(experiment))


def _said(words: Any) -> Any:
    """Words without what says nothing: None, which TOML does not have."""
    if isinstance(words, Mapping):
        return {key: _said(value) for key, value in words.items() if value is not None}
    if isinstance(words, (list, tuple)):
        return [_said(each) for each in words]
    return words


def _changed(words: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Words with settings such as "algorithm.beta=0.1" put in; a label with dots or signs is quoted."""
    for setting in settings:
        found = SETTING.fullmatch(setting.strip())
        path = _words_of(found[1]) if found else []
        if not found or not all(path):
            raise InvalidInput(
                f"a setting is written key=value, e.g. algorithm.beta=0.1; got {setting!r}"
            )
        *above, last = path
        place = words
        for word in above:
            place = place.setdefault(word, {})
            if not isinstance(place, dict):
                raise InvalidInput(f"{setting!r}: {word} is not a section")
        place[last] = value_of(found[2].strip())
        if tuple(path) in RENAMED:  # another thing has other parameters
            kept = (last, *RENAMED[path[0], last])
            words[path[0]] = {key: value for key, value in place.items() if key in kept}
            if words[path[0]].get("partition") == "natural":
                words[path[0]].pop("number", None)
    return words


def value_of(text: str) -> Any:
    """A value as TOML has it; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# errors


def _first(
    error: ValidationError,
    words: Mapping[str, Any],
    source: str,
    text: str,
    settings: Sequence[str] = (),
) -> str:
    """The first thing that is wrong: where, what was got, what is allowed."""
    problem, *others = error.errors()
    path = _path(problem)
    alternatives = [other for other in others if _path(other) == path]
    name = ".".join(path)
    if problem["type"] == "extra_forbidden":
        kind = f"key of [{'.'.join(path[:-1])}]:" if path[1:] else "key"
        message = str(unknown(kind, path[-1], _allowed(path)))
    else:
        cause = problem.get("ctx", {}).get("error")
        allowed = " or ".join(dict.fromkeys([problem["msg"], *(a["msg"] for a in alternatives)]))
        allowed = allowed.replace(" or Input should be", " or")
        allowed = re.sub(r"valid dictionary or instance of \w+", "section", allowed)
        message = str(cause) if cause is not None else f"{allowed}, got {problem['input']!r}"
        message = f"{name}: {message}" if name and cause is None else message
        if cause is not None and path and isinstance(words.get(path[0]), Mapping):
            section = ".".join(path[: 2 if path[0] == "algorithms" else 1])
            message = f"[{section}] {message}"
        path = _narrowed(path, words, message)
    line = _line_of(text, path)
    place = f"{source}, line {line}" if line else source
    place = _set_by(settings, path, message) or place
    more = len({tuple(_path(other)) for other in others} - {tuple(_path(problem))})
    rest = f" (and {more} more)" if more else ""
    return f"{place}: {message}{rest}" if place else message + rest


def _narrowed(path: list[str], words: Any, message: str) -> list[str]:
    """The path with the key that a message speaks of, where it speaks of one."""
    if not path and (named := re.match(r"\[(\w+)\]|(\w+)\.(\w+) =", message)):
        path = [word for word in named.groups() if word]
    for part in path:
        words = words.get(part, {}) if isinstance(words, Mapping) else {}
    if not isinstance(words, Mapping):
        return path
    message, *_ = message.split("Known: ")  # what is said of the word itself
    for key, value in words.items():
        if re.search(rf"\b{re.escape(key)}\b", message) or repr(value) in message:
            return [*path, key]
    for key, value in words.items():  # Link: up must lie in ...
        if isinstance(value, Mapping) and f"{key.capitalize()}: " in message:
            inner = [word for word in value if re.search(rf"\b{re.escape(word)}\b", message)]
            return [*path, key, *inner[:1]]
    return path


def _set_by(settings: Sequence[str], path: Sequence[str], message: str) -> str | None:
    """The setting on the command line that a message is about, if it is not about the file."""
    for setting in settings:
        found = SETTING.fullmatch(setting.strip())
        words = _words_of(found[1]) if found else []
        above = words[: len(path)] == list(path) and re.search(rf"\b{words[-1]}\b", message)
        if words and (list(path[: len(words)]) == words or (path and above)):
            return f"--set {setting}"
    return None


def _path(problem: Any) -> list[str]:
    """Where a problem is, in words of the user's; pydantic's names of a union's types are left out."""
    types = re.compile(
        r"(int|float|list|dict|str|literal|constrained-\w+|function-\w+|\w+Section)(\[|$)"
    )
    return [str(part) for part in problem["loc"] if not types.match(str(part))]


def _allowed(path: Sequence[str]) -> list[str]:
    """The words that may stand where a wrong one was found."""
    model: Any = Experiment
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        kinds = [annotation, *get_args(annotation)]  # of one that may be left out, the section
        model = next((kind for kind in kinds if hasattr(kind, "model_fields")), Experiment)
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
