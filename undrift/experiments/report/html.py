"""The report as one page that needs nothing else: data, style and script are in it."""

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

import numpy as np

from undrift.experiments.report.format import UNKNOWN, format_metric, format_settings, keep_units, plural
from undrift.experiments.report.load import Records
from undrift.experiments.report.plots import DASHES, assign_styles, chart_data, list_federations
from undrift.experiments.report.references import client_table, list_references
from undrift.experiments.report.stats import Summary, local_steps
from undrift.experiments.report.tables import SECONDS, Column, list_columns
from undrift.experiments.report.text import spell, write_last, write_remarks, write_span
from undrift.local import Local

DEFAULTS = {f.name: f.default for f in fields(Local) if f.name != "lr"}  # settings not worth mentioning


def render_report(s: Summary, picture: bytes, claims: Sequence[Mapping[str, str]] = ()) -> str:
    """The text of report.html."""
    script = _read("time.js") + _read("page.js")
    data, records = chart_data(s), s.records
    columns = [column for column in list_columns(s) if column.heading and column.on_page and _says_something(column, s)]
    return _load_template().render(
        s=s,
        title=_write_title(records),
        facts=_list_facts(records),
        claims=claims,
        metric=spell(s.metric),
        quality=format_metric(s.quality, s.metric),
        columns=[column for column in columns if column.table == "results"],
        time_columns=[column for column in columns if column.table == "time"],
        time_rows=[row for row in s.rows if row.timing],
        styles=assign_styles([row.label for row in s.rows], s.baseline),
        dashes=DASHES,
        references=list_references(s),
        client_table=client_table(s),
        federations=list_federations(records),
        charts=data["charts"],
        picture=base64.b64encode(picture).decode(),
        style=_read("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=_embed_json(data),
        now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _says_something(column: Column, s: Summary) -> bool:
    """Whether any cell is known, as percentages of very short times are not."""
    return any(column.text(row) != UNKNOWN for row in s.rows)


@cache
def _load_template() -> Any:
    from jinja2 import Environment, StrictUndefined  # here, because only pages need it

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"count": "{:,}".format, "keep_units": keep_units, "settings_line": _write_settings}
    largest = lambda column, rows: max(column.number(row) or 0.0 for row in rows)
    environment.globals |= {"spell": spell, "write_remarks": write_remarks, "write_last": write_last}
    environment.globals |= {"spans": _group_spans, "largest": largest, "seconds_shown": f"{SECONDS:g}"}
    return environment.from_string(_read("page.html"))


@cache
def _read(name: str) -> str:
    return resources.files("undrift.experiments.report").joinpath(name).read_text(encoding="utf-8")


def _group_spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The headings above the columns, and how many each of them spans."""
    groups = groupby(columns, key=lambda column: column.group)
    return [(heading, len(list(members))) for heading, members in groups]


def _write_settings(section: Mapping[str, Any]) -> str:
    return format_settings({k: v for k, v in section.items() if v != DEFAULTS.get(k)})


def _embed_json(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(_shorten(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _shorten(value: Any) -> Any:
    """Numbers as short as a plot needs them; what is not finite is null."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _shorten(each) for key, each in value.items()}
    return [_shorten(each) for each in value] if isinstance(value, list | tuple) else value


def _write_title(records: Records) -> str:
    settings = [experiment.settings for experiment in records.experiments]
    if all("name" in each for each in settings):
        return " and ".join(dict.fromkeys(str(each["name"]) for each in settings))
    data = dict.fromkeys(str(each.get("data", {}).get("name", "runs")) for each in settings)
    labels = [method.label for method in records.methods]
    methods = labels[0] if len(labels) == 1 else f"{len(labels)} methods"
    return f"{methods} on {', '.join(data)}"


def _local_work(records: Records) -> Iterator[str]:
    """The local steps of a client in a round, if all methods make as many."""
    spans = {local_steps(run) for run in records.runs}
    if len(spans) == 1 and (steps := spans.pop()) is not None:
        yield f"{write_span(steps)} local step{'s' * (steps != (1, 1, 1))} per round"


def _engines(records: Records) -> Iterator[str]:
    """What computed the rounds."""
    named = dict.fromkeys(run.engine["name"] if isinstance(run.engine, dict) else run.engine for run in records.runs)
    if any(named):
        yield f"engine {', '.join(filter(None, named))}"


def _wire(records: Records) -> Iterator[str]:
    """What happens to clients' messages, if it is the same in all experiments."""
    for key in ("codec", "privacy"):
        first, *others = (each.settings.get(key) for each in records.experiments)
        if first and all(each == first for each in others):
            yield f"{key} {format_settings(first).removeprefix('name ')}"


def _list_facts(records: Records) -> list[str]:
    """The setting in a few words, where all experiments share it."""
    settings = records.experiments[0].settings
    if any(each.settings.get("clients") != settings.get("clients") for each in records.experiments):
        return []
    clients = {k: v for k, v in settings.get("clients", {}).items() if k not in ("weights", "seed")}
    about = next((run.federation for run in records.runs if run.federation), {})
    number = clients.pop("number", about.get("clients"))
    cohort = settings.get("server") or settings.get("participation", {})
    rounds, seeds = {run.planned for run in records.runs}, {run.seed for run in records.runs}
    facts = [
        plural(number, "client") if number else "",
        format_settings(clients).removeprefix("partition "),
        format_settings(cohort).removeprefix("scheme ").removeprefix("kind "),
        plural(rounds.pop(), "round") if len(rounds) == 1 else "",
        plural(len(seeds), "seed"),
        plural(about["parameters"], "parameter") if about else "",
        *_local_work(records),
        *_wire(records),
        *_engines(records),
    ]
    return [fact for fact in facts if fact]
