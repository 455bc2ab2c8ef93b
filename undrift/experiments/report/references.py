"""What methods are compared with besides each other: training without a federation; and every client's own metrics."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from undrift.experiments.report.format import format_metric
from undrift.experiments.report.load import Method, RunRecord
from undrift.experiments.report.stats import Summary, final_quality
from undrift.metrics.quality import spread

WHAT = {
    "centralised": "all data in one place",
    "local-only": "every client alone, on its own data",
    "fine-tuned": "the model of {of}, trained further by every client",
}


@dataclass(frozen=True)
class ReferenceRow:
    """A reference beside the methods: its quality and its gradients; it sends nothing."""

    label: str
    about: str
    mean: float
    std: float | None
    gradients: float

    def text(self, metric: str) -> str:
        return format_metric(self.mean, metric, self.std)


@dataclass(frozen=True)
class ClientTable:
    """A metric of every client under every method and reference."""

    metric: str
    columns: tuple[str, ...]
    rows: tuple[
        tuple[str, tuple[tuple[str, bool], ...]], ...
    ]  # client, and cells: what it says, whether it is the best


def list_references(s: Summary) -> list[ReferenceRow]:
    """The references that have the report's metric."""
    rows = []
    for method in sorted(s.records.references, key=lambda method: list(WHAT).index(method.runs[0].method)):
        finals = [final_quality(run, s.metric, s.last) for run in method.runs if s.metric in run.metrics]
        if not finals:
            continue
        abouts = [run.reference or {} for run in method.runs]
        of = ", ".join(dict.fromkeys(str(about["of"]) for about in abouts if "of" in about))
        gradients = float(np.mean([about.get("gradients", math.nan) for about in abouts]))
        about = WHAT[method.runs[0].method].format(of=of)
        rows.append(ReferenceRow(method.label, about, float(np.mean(finals)), spread(finals), gradients))
    return rows


def client_table(s: Summary) -> ClientTable | None:
    """The report's metric, client by client, where clients have names; mean over seeds."""
    methods: Sequence[Method] = [*s.records.methods, *s.records.references]
    names = dict.fromkeys(name for method in methods for run in method.runs for name in _clients(run, s.metric))
    if not names:
        return None
    better = max if s.higher else min
    rows = []
    for name in names:
        each = [_client_mean(method, f"client: {name} {s.metric}", s.last) for method in methods]
        known = {value for value in each if math.isfinite(value)}
        best = better(known) if len(known) > 1 and s.higher is not None else None
        texts = [format_metric(value if math.isfinite(value) else None, s.metric) for value in each]
        rows.append((name, tuple((text, value == best) for text, value in zip(texts, each, strict=True))))
    return ClientTable(s.metric, tuple(method.label for method in methods), tuple(rows))


def _clients(run: RunRecord, metric: str) -> list[str]:
    """The names of clients that have this metric; a name may have spaces."""
    begin, end = "client: ", f" {metric}"
    return [key[len(begin) : -len(end)] for key in run.metrics if key.startswith(begin) and key.endswith(end)]


def _client_mean(method: Method, key: str, last: int | None) -> float:
    finals = [final_quality(run, key, last) for run in method.runs if key in run.metrics]
    return float(np.mean(finals)) if finals else math.nan


def write_references(s: Summary) -> Iterator[str]:
    """Is it better than training alone?"""
    best = s.best or s.base
    rows = list_references(s)
    if not rows or s.higher is None or not math.isfinite(best.mean):
        return
    for row in rows:
        gap = best.mean - row.mean
        ahead = gap > 0 if s.higher else gap < 0
        near = best.std is not None and row.std is not None and abs(gap) <= best.std + row.std
        verdict = "as good as" if gap == 0 or near else "better than" if ahead else "worse than"
        count = "" if math.isnan(row.gradients) else f", {row.gradients:,.0f} gradients"
        yield f"{best.label} is {verdict} {row.label} ({row.about}{count}), which ends at {row.text(s.metric)}."
