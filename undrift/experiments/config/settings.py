"""`ud.Local` and the engine's `EngineChoice` as sections of an experiment: their dataclasses define what may be given."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from undrift.core.errors import InvalidInput, known_name
from undrift.core.hyper import build_named
from undrift.experiments.config.section import from_section
from undrift.local.optimisers import NAMED
from undrift.local.schedules import SCHEDULES
from undrift.local.settings import Geometric, Local
from undrift.simulation.engines.choice import ENGINES as IN_PROCESS
from undrift.simulation.engines.choice import EngineChoice

BY_NAME: dict[str, Mapping[str, Any]] = {"optimiser": NAMED, "schedule": SCHEDULES}
ENGINES = ("auto", *IN_PROCESS, "ray")
DEFAULTS = {"batch": 32}  # otherwise than ud.Local's own


def local_from_dict(given: Any, section: str = "local") -> Local:
    """Local training from the keys of its section.

    `steps = {geometric = 0.1}` is ud.Geometric(0.1); `steps = {low = 1, high = 5}` is drawn by client and visit (epochs
    likewise); a list has one number per client; `batch = "all"` is all of a client's samples.

    >>> local_from_dict({"steps": {"low": 1, "high": 5}, "optimiser": "momentum"}).steps
    (1, 5)
    """
    if isinstance(given, Local):
        local_to_dict(given)
        return given
    convert = {
        "steps": lambda value: _count_from_dict("steps", value),
        "epochs": lambda value: _count_from_dict("epochs", value),
        "batch": lambda value: None if value == "all" else value,
        "optimiser": lambda value: build_named("optimiser", NAMED, value) if isinstance(value, dict) else value,
        "schedule": lambda value: build_named("schedule", SCHEDULES, value) if isinstance(value, dict) else value,
    }
    words = {**DEFAULTS, **given} if isinstance(given, Mapping) else given
    return from_section(Local, words, section, convert, prefix="Local: ")


def local_to_dict(local: Local) -> dict[str, Any]:
    """The keys of a section that `local_from_dict` reads as this."""
    words = {name: _count_to_dict(value) for name, value in vars(local).items()}
    words |= {"batch": "all" if local.batch is None else local.batch}
    return words | {name: _named(name, words[name], known) for name, known in BY_NAME.items()}


def _named(what: str, value: Any, known: Mapping[str, Any]) -> Any:
    """What an experiment calls an optimiser or a schedule that is an object of the package's."""
    if isinstance(value, str | list):
        return value
    for name, kind in known.items():
        if type(value) is kind:
            return {"name": name, **{f.name: vars(value)[f.name] for f in fields(value)}}
    raise InvalidInput(f"an experiment names its {what}: functions can be given to ud.run")


def _count_from_dict(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"geometric"} and name == "steps":
        return Geometric(value["geometric"])
    if set(value) == {"low", "high"}:
        return value["low"], value["high"]
    raise InvalidInput(
        f"{name} is a number, {{low = 1, high = 5}} or (steps only) {{geometric = 0.1}} or a list; got {value}"
    )


def _count_to_dict(value: Any) -> Any:
    if isinstance(value, Geometric):
        return {"geometric": value.p}
    if isinstance(value, tuple):
        return {"low": value[0], "high": value[1]}
    return value


def engine_from_dict(given: Any) -> str | EngineChoice:
    """An engine by name, or with settings, as "auto" was resolved to in an earlier run.

    >>> engine_from_dict({"name": "auto", "workers": 2})
    EngineChoice(engine='sequential', chunk=1, workers=2, since=1, shards=None, inside=None, threads=None)
    """
    if isinstance(given, EngineChoice):
        return given
    words = {"name": given} if isinstance(given, str) else given
    if not isinstance(words, Mapping):
        raise InvalidInput(f"engine is a name or a section, got {given!r}")
    name = words.get("name", "auto")
    name = known_name("engine", str(name), ENGINES)
    if not set(words) - {"name"}:
        return name
    alone = {**words, "name": "sequential" if name == "auto" else name}
    choice = from_section(EngineChoice, alone, "engine", prefix="run: ", engine="name")
    if name == "auto" and set(words) - {"name"} != {"workers"}:
        raise InvalidInput(f"engine 'auto' chooses for itself: name another one to set {', '.join(words)}")
    return choice


def engine_to_dict(engine: str | EngineChoice) -> str | dict[str, Any]:
    """What `engine_from_dict` reads as this engine."""
    if isinstance(engine, str):
        return engine
    words = engine.json()
    return {"name": words.pop("engine"), **words}
