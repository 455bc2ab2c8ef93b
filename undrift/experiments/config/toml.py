"""Experiments as TOML: read with errors that name the line, written so that reading gives the same again."""

import os
import re
import runpy
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from undrift.core.bounds import check_file
from undrift.core.errors import InvalidInput, first_line, shortened
from undrift.experiments.config.experiment import NAMED_ALONE, Experiment
from undrift.experiments.config.explain import IN_PYTHON, Origin, Setting, explain, split_key
from undrift.experiments.config.virtual import resolve_paths

LARGEST_FILE = 2**24  # bytes of an experiment
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
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from error
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
    except InvalidInput as error:
        wrong = isinstance(error.__cause__, ValidationError) and explain(error.__cause__, Experiment, words, origin)
        raise InvalidInput(shortened(wrong or f"{place}{error}")) from None
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
    if not found or not all(split_key(found[1])):
        raise InvalidInput(f"a setting is written key=value, e.g. algorithm.beta=0.1; got {setting!r}")
    return Setting(tuple(split_key(found[1])), parse_value(found[2].strip()), f"--set {setting}")


def parse_value(text: str) -> Any:
    """A value as TOML has it, or Python's True and False; a bare word is a string."""
    text = {"True": "true", "False": "false"}.get(text, text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
