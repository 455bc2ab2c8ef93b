"""The sections of an experiment in virtual time: what clients are like as machines, and when the server steps."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import build_method
from undrift.experiments.config.section import Named, Number, Section
from undrift.simulation.asynchronous.availability import Always, Chance, Daily, Trace
from undrift.simulation.asynchronous.policies import Buffer, Deadline, ServerPolicy, Synchronous
from undrift.simulation.asynchronous.population import (
    Dropout,
    Link,
    LogNormal,
    Population,
    Table,
    Tiers,
)

SERVERS = {"synchronous": Synchronous, "deadline": Deadline, "buffer": Buffer}
AVAILABILITIES = {"always": Always, "chance": Chance, "daily": Daily, "trace": Trace.read}

Value = Number | list[Number] | dict[str, Any]  # a number; one a client; or drawn


class LinkSection(Section):
    """Latency in seconds, bandwidths in bytes a second."""

    latency: Value = 0.0
    down: Value | None = None
    up: Value | None = None


class DropoutSection(Section):
    """How often a client vanishes before or after its work."""

    before: Number = 0.0
    after: Number = 0.0


class AvailabilitySection(Named):
    """When clients can be reached: always, chance, daily or trace, with their parameters."""

    kind: str = "always"

    def make(self) -> Any:
        if self.kind not in AVAILABILITIES:
            raise unknown("availability", self.kind, AVAILABILITIES)
        return build_method(self.kind, AVAILABILITIES[self.kind], self.parameters)


class PopulationSection(Section):
    """The words of `ud.Population`.

    A value is a number, a list with one a client, {median = 0.1, sigma = 1.0} (log-normal) or
    {tiers = [0.1, 1.0], shares = [0.8, 0.2]}.
    """

    pace: Value = 0.0
    jitter: Number = 0.0
    work: Number = 1.0
    budget: Number | None = None
    link: LinkSection = LinkSection()
    dropout: DropoutSection = DropoutSection()
    availability: AvailabilitySection = AvailabilitySection()

    @model_validator(mode="after")
    def _possible(self) -> "PopulationSection":
        self.make()
        return self

    def make(self) -> Population:
        link = self.link
        return Population(
            pace=_value("pace", self.pace),
            link=Link(
                latency=_value("latency", link.latency),
                down=None if link.down is None else _value("down", link.down),
                up=None if link.up is None else _value("up", link.up),
            ),
            availability=self.availability.make(),
            dropout=Dropout(self.dropout.before, self.dropout.after),
            jitter=self.jitter,
            work=self.work,
            budget=self.budget,
        )


class ServerSection(Named):
    """When the server steps: `kind` is synchronous, deadline (seconds, minimum) or buffer (size, concurrency)."""

    kind: Literal["synchronous", "deadline", "buffer"] = Field(default="synchronous")

    @model_validator(mode="after")
    def _possible(self) -> "ServerSection":
        self.make()
        return self

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


def resolved(words: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Words of an experiment file with the path of a trace taken from where the file is."""
    trace = words.get("population", {}).get("availability", {})
    if isinstance(trace, dict) and "path" in trace:
        trace["path"] = str((folder / str(trace["path"])).resolve())
    return words
