"""The report as one page that needs nothing else: data, style and script are in it."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.experiments.report.federations import federations
from undrift.experiments.report.figures import Reach, curve
from undrift.experiments.report.load import ExperimentRecord, Method, Records, load_runs
from undrift.experiments.report.making import summarised
from undrift.experiments.report.picture import png, spans_much
from undrift.experiments.report.style import DASHES, looks
from undrift.experiments.report.summary import Row, Summary
from undrift.experiments.report.tables import rounds_csv, summary_csv
from undrift.experiments.report.virtual import virtual_time
from undrift.experiments.report.words import (
    NEVER,
    goal,
    in_bytes,
    in_percent,
    in_seconds,
    is_share,
    number,
    quality_of,
)
from undrift.experiments.runs.files import write_aside
from undrift.metrics.quality import higher_is_better

POINTS = 400  # of a curve; more cannot be seen


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    target: float | None = None,
    baseline: str | None = None,
    figure: str | None = None,
    last: int | None = None,
    claims: Sequence[Mapping[str, str]] = (),
) -> Path:
    """Write report.html, curves.png, summary.csv and rounds.csv into `out`; the path of the page.

    `paths` are runs or directories of runs.  `claims` are a recipe's, in words: claim, published, recorded, here, holds.
    The other words are those of `summary`.
    """
    records = load_runs(paths)
    s = summarised(records, target=target, baseline=baseline, figure=figure, last=last)
    picture = png(records, s)
    files = {
        "curves.png": picture,
        "summary.csv": summary_csv(s).encode(),
        "rounds.csv": rounds_csv(records).encode(),
        "report.html": page(records, s, picture, claims).encode(),
    }
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_aside(out / name, content)
    except OSError as error:
        raise InvalidInput(
            f"the report cannot be written to {out} ({error.strerror}): choose another place"
        ) from error
    return out / "report.html"


def page(
    records: Records, s: Summary, picture: bytes, claims: Sequence[Mapping[str, str]] = ()
) -> str:
    """The page's text."""
    script, style = _file("time.js") + _file("page.js"), _file("page.css")
    drawn, time = federations(records), virtual_time(records, s, _looks(s))
    return _template().render(
        s=s,
        answer=[_unbroken(sentence) for sentence in s.answer],
        notes=[_unbroken(note) for note in s.notes],
        title=_title(records),
        claims=claims,
        facts=_facts(records),
        figure=s.figure.replace("_", " "),
        quality=number(s.quality, s.figure),
        target=goal(s.target, s.figure),
        rows=[_row(s, row, look) for row, look in zip(s.rows, _looks(s), strict=True)],
        timed=any(row.reach and row.reach.virtual is not None for row in s.rows),
        compared=len(s.rows) > 1,
        time=time,
        federations=drawn,
        sources=[_repeat(source) for source in records.experiments],
        runs=[_run(run) for run in records.runs],
        picture=base64.b64encode(picture).decode(),
        style=style,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=_embedded({**_data(records, s, drawn), "time": _pictured(time)}),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined  # here, because only pages need it

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_file("page.html"))


@cache
def _file(name: str) -> str:
    return resources.files("undrift.experiments.report").joinpath(name).read_text(encoding="utf-8")


def _looks(s: Summary) -> list[tuple[int, int]]:
    return list(looks([row.label for row in s.rows], s.baseline).values())


def _embedded(content: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


# the curves


def _data(records: Records, s: Summary, drawn: list[dict[str, Any]]) -> dict[str, Any]:
    methods = [
        _method(method, look, records.metrics, s)
        for method, look in zip(records.methods, _looks(s), strict=True)
    ]
    known = [axis for axis in ("seconds", "virtual") if all(m[axis] is not None for m in methods)]
    return {
        "figure": s.figure,
        "baseline": s.baseline,
        "quality": s.quality,
        "target": s.target,
        "dashes": DASHES,
        "axes": ["rounds", "bytes", *known],
        "figures": [
            {
                "name": name,
                "share": is_share(name),
                "higher": higher_is_better(name),
                "log": spans_much([curve(method, name) for method in records.methods], name),
            }
            for name in records.metrics
        ],
        "methods": methods,
        "federations": [
            {key: each[key] for key in ("heat", "together", "sizes")} for each in drawn
        ],
    }


def _pictured(time: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if time is None else {key: time[key] for key in ("firsts", "histograms")}


def _method(
    method: Method, look: tuple[int, int], figures: Sequence[str], s: Summary
) -> dict[str, Any]:
    curves = {name: curve(method, name) for name in figures}
    c = curves[s.figure]
    some = np.unique(
        np.linspace(0, len(c.round) - 1, min(len(c.round), POINTS)).round().astype(int)
    )
    return {
        "label": method.label,
        "colour": look[0],
        "dash": look[1],
        "seeds": len(method.runs),
        "common": int((c.round[some] <= method.common).sum()),
        "rounds": c.round[some].tolist(),
        "bytes": _rounded(c.bytes[some], 7),
        "seconds": _rounded(c.seconds[some], 5) if c.seconds_known else None,
        "virtual": None if c.virtual is None else _rounded(c.virtual[some], 6),
        "figures": {
            name: {
                "mean": _rounded(each.mean[some], 5),
                "low": _rounded(each.low[some], 5),
                "high": _rounded(each.high[some], 5),
            }
            for name, each in curves.items()
        },
    }


def _rounded(values: np.ndarray, digits: int) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


# the words


def _unbroken(text: str) -> str:
    """Numbers stay on one line with their spread and unit."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _title(records: Records) -> str:
    names = [source.settings.get("name") for source in records.experiments]
    if all(names):
        return " and ".join(dict.fromkeys(str(name) for name in names))
    data = dict.fromkeys(
        str(source.settings.get("data", {}).get("name", "runs")) for source in records.experiments
    )
    labels = [method.label for method in records.methods]
    what = labels[0] if len(labels) == 1 else f"{len(labels)} methods"
    return f"{what} on {', '.join(data)}"


def _facts(records: Records) -> list[str]:
    """The setting in a few words, where it is one setting."""
    words = records.experiments[0].settings
    if any(
        source.settings.get("clients") != words.get("clients") for source in records.experiments
    ):
        return []
    clients, participation = words.get("clients", {}), words.get("participation", {})
    about = next((run.federation for run in records.runs if run.federation), {})
    number = clients.get("number") or about.get("clients")
    other = {
        k: v for k, v in clients.items() if k not in ("partition", "number", "weights", "seed")
    }
    partition = " ".join([str(clients.get("partition")), *(f"{k} {v}" for k, v in other.items())])
    per_round = participation.get("per_round")
    seeds, rounds = len({run.seed for run in records.runs}), {run.planned for run in records.runs}
    facts = [
        f"{number:,} clients" if number else "",
        partition,
        _served(words.get("server", {}))
        or (f"{per_round} a round" if per_round else str(participation.get("scheme", ""))),
        f"{rounds.pop():,} rounds" if len(rounds) == 1 else "",
        f"{seeds} seed{'s' if seeds > 1 else ''}",
        f"{about['parameters']:,} parameters" if about and about.get("parameters") else "",
    ]
    return [fact for fact in facts if fact]


def _served(server: Mapping[str, Any]) -> str:
    """When the server steps, if not at the end of a round."""
    if server.get("kind") == "buffer":
        at_work = f", {server['concurrency']} at work" if "concurrency" in server else ""
        return f"buffer of {server.get('size')}{at_work}"
    return (
        f"deadline {in_seconds(server.get('seconds'))}" if server.get("kind") == "deadline" else ""
    )


def _row(s: Summary, row: Row, look: tuple[int, int]) -> dict[str, Any]:
    """A line of the table: what is shown, and beside it what it is sorted by."""
    cost, reach = row.cost, row.reach or Reach()
    dearest = max((each.cost.bytes for each in s.rows if each.cost), default=0.0)
    return {
        "row": row,
        "look": look,
        "dash": DASHES[look[1]],
        "quality": (quality_of(s, row), _sortable(row.mean)),
        "seeds": len(row.seeds),
        "rounds": (f"{cost.rounds:,}" if cost else "–", cost.rounds if cost else ""),
        "by_seed": _by_seed(row),
        "bytes": (in_bytes(cost.bytes if cost else None), _sortable(cost and cost.bytes)),
        "part": f"{100 * cost.bytes / dearest:.1f}%" if cost and dearest else "0%",
        "bytes_change": (in_percent(row.bytes_change), _sortable(row.bytes_change)),
        "seconds": (in_seconds(cost.seconds if cost else None), _sortable(cost and cost.seconds)),
        "seconds_change": (in_percent(row.seconds_change), _sortable(row.seconds_change)),
        "to_target": None
        if s.target is None
        else {
            "rounds": (
                f"{reach.rounds:,}" if reach.rounds else "–" if row.lacking else NEVER,
                reach.rounds or "",
            ),
            "bytes": (in_bytes(reach.bytes), _sortable(reach.bytes)),
            "seconds": (in_seconds(reach.seconds), _sortable(reach.seconds)),
            "virtual": (in_seconds(reach.virtual), _sortable(reach.virtual)),
        },
        "total_bytes": (in_bytes(row.total_bytes), row.total_bytes),
        "total_seconds": (in_seconds(row.total_seconds), _sortable(row.total_seconds)),
        "visit": (
            f"{in_bytes(row.visit_down)} + {in_bytes(row.visit_up)}",
            _sortable((row.visit_down or 0.0) + (row.visit_up or 0.0)),
        ),
    }


def _sortable(value: float | None) -> float | str:
    return value if value is not None and math.isfinite(value) else ""


def _by_seed(row: Row) -> str:
    """When single seeds had the baseline's quality."""
    if len(row.by_seed) < 2:
        return ""
    there = [r for r in row.by_seed if r is not None]
    if len(there) < len(row.by_seed):
        return f"{len(there)} of {len(row.by_seed)} seeds"
    return f"seeds {min(there):,}–{max(there):,}"


def _repeat(source: ExperimentRecord) -> dict[str, Any]:
    manifest = source.manifest
    machine: Mapping[str, Any] = manifest.get("machine", {})
    return {
        "path": str(source.path),
        "command": manifest.get("command", ""),
        "text": source.text,
        "started": manifest.get("started", ""),
        "python": manifest.get("python", ""),
        "versions": manifest.get("versions", {}),
        "machine": ", ".join(f"{key} {value}" for key, value in machine.items()),
    }


def _run(run: Any) -> dict[str, Any]:
    if run.stopped is not None:
        ended = f"stopped: {run.stopped}"
    else:
        ended = "finished" if run.finished else "unfinished"
    return {
        "label": run.label,
        "seed": run.seed,
        "rounds": f"{run.recorded:,} of {run.planned:,}",
        "ended": ended,
        "path": str(run.path),
        "checksums": run.federation.get("checksums") or {},
    }
