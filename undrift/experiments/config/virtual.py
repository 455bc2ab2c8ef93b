"""The sections of an experiment in virtual time: system heterogeneity, and when the server steps."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import build_method
from undrift.experiments.config.section import Named, from_section
from undrift.simulation.asynchronous.availability import Always, Chance, Daily, Trace
from undrift.simulation.asynchronous.policies import Buffer, Deadline, ServerPolicy, Synchronous
from undrift.simulation.asynchronous.population import Dropout, Link, LogNormal, Population, Table, Tiers

SERVERS = {"synchronous": Synchronous, "deadline": Deadline, "buffer": Buffer}
AVAILABILITIES = {"always": Always, "chance": Chance, "daily": Daily, "trace": Trace.read}


class PopulationSection(Named):
    """The fields of `ud.Population`, with those of `ud.Link` and `ud.Dropout` in sections of their own.

    A value is a number, a list with one per client, {median = 0.1, sigma = 1.0} (log-normal) or
    {tiers = [0.1, 1.0], shares = [0.8, 0.2]}.  `availability` has a `kind`: always, chance, daily or trace.
    """

    def make(self) -> Population:
        sections: dict[str, Callable[[Any], Any]] = {
            "pace": partial(_value, "pace"),
            "link": _link,
            "dropout": lambda given: from_section(Dropout, given, "population.dropout"),
            "availability": _availability,
        }
        return from_section(Population, self.parameters, "population", sections)


def _link(given: Any) -> Link:
    values = {name: partial(_value, name) for name in ("latency", "down", "up")}
    return from_section(Link, given, "population.link", values)


def _availability(given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"population.availability is a section, got {given!r}")
    kind = given.get("kind", "always")
    if kind not in AVAILABILITIES:
        raise unknown("availability", str(kind), AVAILABILITIES)
    parameters = {key: value for key, value in given.items() if key != "kind"}
    return build_method(kind, AVAILABILITIES[kind], parameters)


class ServerSection(Named):
    """When the server steps: `kind` is synchronous, deadline (seconds, minimum) or buffer (size, concurrency, max_staleness)."""

    kind: Literal["synchronous", "deadline", "buffer"] = Field(
        default="synchronous", description="When the server steps"
    )

    def make(self) -> ServerPolicy:
        return build_method(self.kind, SERVERS[self.kind], self.parameters)


def _value(name: str, given: Any) -> Any:
    if isinstance(given, list):
        return Table(given)
    if not isinstance(given, dict):
        return given
    if "median" in given:
        return build_method(f"{name}, log-normal,", LogNormal, given)
    if "tiers" in given:
        words = {"values" if key == "tiers" else key: value for key, value in given.items()}
        return build_method(f"{name} in tiers", Tiers, words)
    raise InvalidInput(
        f"{name} is a number, a list with one a client, {{median = 0.1, sigma = 1.0}} or "
        f"{{tiers = [0.1, 1.0], shares = [0.8, 0.2]}}; got {given}"
    )


def resolve_paths(words: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Words of an experiment file with the path of a trace taken from where the file is."""
    population = words.get("population")
    trace = population.get("availability") if isinstance(population, dict) else None
    if isinstance(trace, dict) and "path" in trace:
        trace["path"] = str((folder / str(trace["path"])).resolve())
    return words
