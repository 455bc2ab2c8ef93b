"""The federations of a report: words, and what their pictures are drawn from."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undrift.experiments.report.load import Records, RunRecord
from undrift.experiments.report.words import listed

CLASSES = 60  # columns of the heat map; more labels are drawn together
BARS = 24
PICTURES = 4


def federations(records: Records) -> list[dict[str, Any]]:
    """A picture for each way in which data were spread: that of the first seed."""
    firsts: dict[str, RunRecord] = {}
    for run in records.runs:
        if run.federation:
            spread = repr([run.experiment.settings.get(key) for key in ("data", "clients")])
            firsts.setdefault(spread, run)
    return [_picture(run, records) for run in list(firsts.values())[:PICTURES]]


def _picture(run: RunRecord, records: Records) -> dict[str, Any]:
    about = run.federation
    seeds = sorted({each.seed for each in records.runs if each.experiment is run.experiment})
    shares = about.get("label_shares")
    heat, together = _columns(shares) if shares else (None, 1)
    return {
        "source": str(run.experiment.path),
        "data": run.experiment.settings.get("data", {}).get("name", "data"),
        "seed": run.seed,
        "seeds": seeds,
        "sentences": _sentences(run, about),
        "clients": about.get("clients"),
        "heat": heat,
        "together": together,
        "sizes": _bars(about.get("sizes") or []),
    }


def _sentences(run: RunRecord, about: Mapping[str, Any]) -> list[str]:
    said = []
    words = run.experiment.settings
    clients, figures = about.get("clients"), about.get("heterogeneity") or {}
    if clients is not None:
        same = figures.get("smallest") == figures.get("largest")
        sizes = (
            f"{figures.get('smallest'):,} each"
            if same and figures
            else f"{figures['smallest']:,} to {figures['largest']:,}, median {figures['median']:,g}"
            if figures
            else "of unknown sizes"
        )
        said.append(f"{clients:,} clients hold {about.get('samples', 0):,} samples: {sizes}.")
    if figures.get("classes"):
        most = 1 - 1 / figures["classes"]
        said.append(
            f"A client has {figures['classes_held']:.1f} of {figures['classes']:,} labels on average; its labels are "
            f"{figures['divergence']:.2f} away from those of all clients together (total variation: 0 is IID, "
            f"{most:.2f} is one label each)."
        )
    if about.get("parameters"):
        model = words.get("model", {}).get("name", "model")
        said.append(f"The model ({model}) has {about['parameters']:,} parameters.")
    settings = [_section(words, name) for name in ("clients", "participation", "local")]
    said.append(f"Settings: {'; '.join(each for each in settings if each)}.")
    return said


def _section(words: Mapping[str, Any], name: str) -> str:
    section = words.get(name, {})
    quiet = ("decay", "momentum", "weight_decay")
    shown = {
        k: v for k, v in section.items() if not (k in quiet and v == {"decay": 1.0}.get(k, 0.0))
    }
    parts = [f"{key.replace('_', ' ')} {_value(value)}" for key, value in shown.items()]
    return f"{name}: {', '.join(parts)}" if parts else ""


def _value(value: Any) -> str:
    if isinstance(value, list):
        shown = [str(each) for each in value[:6]]
        return listed(shown) if len(value) <= 6 else f"{', '.join(shown)}, …"
    if isinstance(value, dict):
        return " ".join(f"{key} {each}" for key, each in value.items())
    return str(value)


def _columns(shares: Sequence[Sequence[float]]) -> tuple[list[list[int]], int]:
    """Shares in percent, neighbouring labels added up where there are too many for a picture."""
    table = np.array(shares, dtype=float)
    together = -(-table.shape[1] // CLASSES)
    starts = np.arange(0, table.shape[1], together)
    added = np.add.reduceat(table, starts, axis=1)
    return np.rint(100 * added).astype(int).tolist(), int(together)


def _bars(sizes: Sequence[int]) -> dict[str, list[float]] | None:
    """A histogram, none if all clients are the same size."""
    if len(set(sizes)) < 2:
        return None
    lowest, highest = min(sizes), max(sizes)
    bars = min(BARS, highest - lowest + 1)
    counts, edges = np.histogram(sizes, bins=bars, range=(lowest, highest))
    return {"counts": counts.tolist(), "edges": [float(f"{edge:.6g}") for edge in edges]}
