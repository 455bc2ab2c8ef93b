"""Tables of the site made from recorded measurements: a page has `{{ measured: NAME }}` where one belongs."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from _text import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
WORKLOADS = {  # in the order of the tables
    "W1": "logistic regression",
    "W2": "MLP",
    "W5": "MLP, SCAFFOLD",
    "W3": "small CNN",
    "W4": "LeNet",
    "LSTM": "characters",
    "V1": "virtual time",
}
OURS, FLOORS = "undrift", ("plain loop", "bare step", "matrix products")
NAMES = {
    "plain loop": "plain PyTorch loop",
    "bare step": "forward and backward alone",
    "matrix products": "matrix products alone",
}


@cache
def _files(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Dates and contents of the results that have this part, the newest first."""
    found = [(path.name, json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))]
    dated = [(name[:10], content[kind]) for name, content in found if kind in content]
    return sorted(dated, key=lambda each: each[0], reverse=True)


@cache
def speeds() -> dict[str, dict[str, dict[str, Any]]]:
    """By system and workload: the newest median, its ratio to Undrift's in the same session, version and date."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for date, workloads in [*_files("peers"), *_files("speeds")]:
        for workload, rows in workloads.items():
            ours = rows[OURS]
            for name, row in rows.items():
                if name.startswith(OURS):  # a second row of ours was measured beside the systems that follow it
                    ours, name = row, OURS if name == OURS else ""
                if name and workload not in found.setdefault(name, {}):
                    ratio = row["median"] / ours["median"]
                    found[name][workload] = {**row, "ratio": ratio, "date": date}
    return found


def _milliseconds(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _ratio(value: float) -> str:
    return f"{value:,.0f} x" if value >= 10 else f"{value:.1f} x"


def _cells(name: str) -> Iterator[str]:
    for workload in WORKLOADS:
        row = speeds()[name].get(workload)
        ratio = "" if name == OURS or not row else f" ({_ratio(row['ratio'])})"
        yield f"{_milliseconds(row['median'])}{ratio}" if row else ""


def _headings() -> tuple[str, ...]:
    return tuple(f"{name}<br>{about}" for name, about in WORKLOADS.items())


def rounds() -> str:
    """Milliseconds a round, beside a plain loop and the floors of the machine."""
    lines = [(NAMES.get(name, "Undrift"), *_cells(name)) for name in (OURS, *FLOORS)]
    dates = sorted({row["date"] for name in (OURS, *FLOORS) for row in speeds()[name].values()})
    return table(("ms a round, median", *_headings()), lines) + f"\nMeasured {' to '.join(dates)}; {_machine()}.\n"


def systems() -> str:
    """The same for other systems, with version and date."""
    lines = []
    for name, by_workload in sorted(speeds().items()):
        if name in (OURS, *FLOORS):
            continue
        versions = " ".join(sorted({str(row["version"]) for row in by_workload.values()}))
        dates = " to ".join(sorted({row["date"] for row in by_workload.values()}))
        lines.append((f"{name} {versions}", *_cells(name), dates))
    ours = speeds()[OURS].values()
    dates = " to ".join(sorted({row["date"] for row in ours}))
    first = ("Undrift", *_cells(OURS), dates)
    return table(("ms a round, median", *_headings(), "measured"), [first, *lines]) + f"\n{_machine()}.\n".capitalize()


def _machine() -> str:
    files = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    machines = [content["machine"] for content in files if "peers" in content or "speeds" in content]
    words = {f"{m['processor']}, {m['threads']} threads, torch {m['torch']}" for m in machines}
    return "machine: " + "; ".join(sorted(words))


@cache
def costs() -> dict[str, dict[str, float]]:
    """By method and workload, the newest median time of a round in units of FedAvg's."""
    found: dict[str, dict[str, float]] = {}
    for _, workloads in _files("methods"):
        for workload, rows in workloads.items():
            for method, row in rows.items():
                found.setdefault(method, {}).setdefault(workload, row["median"] / rows["fedavg"]["median"])
    return found


def methods() -> str:
    """A round of some methods in units of FedAvg's."""
    workloads = [w for w in WORKLOADS if any(w in by for by in costs().values())]
    lines = [
        (f"[{method}](reference/methods/{method}.md)", *(f"{by[w]:.2f}" if w in by else "" for w in workloads))
        for method, by in costs().items()
    ]
    return table(("a round, FedAvg's = 1", *(f"{w}, {WORKLOADS[w]}" for w in workloads)), lines)


def scaling() -> str:
    """A round of SCAFFOLD as one size grows."""
    _, parts = _files("scaling")[0]
    lines = []
    for part, rows in parts.items():
        first = next(iter(rows.values()))["median"]
        lines += [
            (part if i == 0 else "", size, _milliseconds(row["median"]), f"{row['median'] / first:.2f}")
            for i, (size, row) in enumerate(rows.items())
        ]
    return table(("what grows", "to", "ms a round", "ratio"), lines)


def whole() -> str:
    """A whole experiment, from the command to the final table."""
    date, rows = _files("whole")[0]
    ours = rows[OURS]
    lines = [(name, f"{s:.0f}", _ratio(s / ours)) for name, s in rows.items() if not isinstance(s, str)]
    return table(("", "seconds", "Undrift's = 1"), lines) + f"\nMeasured {date}; {_machine()}.\n"


def busy() -> str:
    """A round beside a process that takes one core, for several settings of how threads wait."""
    settings = _files("busy")[0][1]
    lines = [
        (
            w,
            *(
                f"{rows[w]['alone']:.3g} to {rows[w]['busy']:.3g} ({rows[w]['ratio']:.1f} x)"
                for rows in settings.values()
            ),
        )
        for w in next(iter(settings.values()))
    ]
    return table(("ms a round, alone to one core busy", *(f"GOMP_SPINCOUNT {s}" for s in settings)), lines)


def evaluated() -> str:
    """Rounds that are evaluated every time, beside those peers whose runners do so."""
    date, workloads = _files("evaluated")[0]
    names = list(dict.fromkeys(name for rows in workloads.values() for name in rows))
    lines = []
    for name in names:
        cells = []
        for rows in workloads.values():
            ratio = "" if name == OURS else f" ({_ratio(rows[name]['median'] / rows[OURS]['median'])})"
            cells.append(_milliseconds(rows[name]["median"]) + ratio)
        version = "" if name in (OURS, *FLOORS) else f" {next(iter(workloads.values()))[name]['version']}"
        lines.append(("Undrift" if name == OURS else NAMES.get(name, name + version), *cells))
    heads = (f"{w}<br>{WORKLOADS[w]}" for w in workloads)
    return table(("ms a round, median", *heads), lines) + f"\nMeasured {date}; {_machine()}.\n"


def deployed() -> str:
    """A deployed round on loopback, and the parts of its visits."""
    date, rows = _files("deployed")[0]
    lines = [(name, f"{row['median']:.2g}", f"{row['most']:.2g}") for name, row in rows.items()]
    return table(("seconds", "median", "most"), lines) + f"\nMeasured {date}; {_machine()}.\n"


def sweeps() -> str:
    """Whole runs together against one."""
    path = max(RESULTS.glob("*-sweeps-whole.json"))
    found = {key: rows for key, rows in json.loads(path.read_text()).items() if "whole runs" in key}
    lines = []
    for key, rows in found.items():
        one, many = (row["median"] / 1e3 for row in rows.values())
        lines.append((re.sub(r"\D*1, whole runs of ", "", key), f"{one:.1f}", f"{many:.1f}", f"{many / one:.1f}"))
    return table(("runs of", "one run, s", "20 together, s", "ratio"), lines)


def variants() -> str:
    """What metrics and client optimisers cost beside plain FedAvg, in CPU seconds on W2."""
    date, ratios = _files("ratios")[0]
    percent = {name: sorted(100 * (ratio - 1) for ratio in each) for name, each in ratios.items()}
    lines = [(name, f"{median(p):+.0f} %", f"{p[0]:+.0f} to {p[-1]:+.0f} %") for name, p in percent.items()]
    return table(("a round of W2 with", "CPU seconds, median", "from, to"), lines) + f"\nMeasured {date}.\n"


def privacy() -> str:
    """Accuracy of methods by epsilon, as the recipe recorded it."""
    methods = json.loads((ROOT / "recipes" / "privacy" / "results.json").read_text())["methods"]
    found: dict[str, dict[str, str]] = {}
    for label, method in methods.items():
        run, _, name = label.partition("/")
        mean, deviation = method["final"]["accuracy"]
        found.setdefault(run, {})[name] = f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
    names = list(next(iter(found.values())))
    return table(("", *names), [(run, *(row[name] for name in names)) for run, row in found.items()])


def kernels() -> str:
    """What a round takes with each kernel switched off, in units of one with all of them."""
    paths = sorted(RESULTS.glob("*-kernels*.json"))
    if not paths:
        return ""
    found = {key: rows for key, rows in json.loads(paths[-1].read_text()).items() if key != "machine"}
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    lines = []
    for title, rows in found.items():
        first = next(iter(rows.values()))["median"]
        lines.append((title, *(f"{rows[name]['median'] / first:.2f}" if name in rows else "" for name in names)))
    return table(("workload, method", *names), lines) + f"\nMeasured {paths[-1].name[:10]}.\n"


def features() -> str:
    """What other systems offer, each answer with a link to where it was read (docs/comparison.toml)."""
    known = tomllib.loads((ROOT / "docs" / "comparison.toml").read_text())
    systems = known["systems"]
    headings = [f"[{s['name']}](https://github.com/{s['repository']})<br>{s['date']}" for s in systems.values()]

    def cell(system: dict[str, str], answer: str) -> str:
        words, _, path = answer.partition(" @ ")
        return f"[{words}](https://github.com/{system['repository']}/tree/{system['commit']}/{path})" if path else words

    lines = [
        (row["name"], row["undrift"], *(cell(s, row.get(key, "not found")) for key, s in systems.items()))
        for row in known["feature"]
    ]
    return f":::{{table}}\n:class: wide\n\n{table(('', 'Undrift', *headings), lines)}:::\n"


def reused() -> str:
    """The error of reusing pseudo-gradients of the last tau rounds."""
    date, recorded = _files("reused gradients")[0]
    taus = [tau for tau in next(iter(recorded.values())) if int(tau) in (1, 2, 5, 10, 15, 20, 30, 40)]
    lines = [(name, *(f"{errors[tau]:.3f}" for tau in taus)) for name, errors in recorded.items()]
    return table(("tau", *taus), lines) + f"\nMeasured {date}.\n"


TABLES: dict[str, Callable[[], str]] = {
    "rounds": rounds,
    "systems": systems,
    "methods": methods,
    "scaling": scaling,
    "sweeps": sweeps,
    "whole": whole,
    "busy": busy,
    "deployed": deployed,
    "evaluated": evaluated,
    "kernels": kernels,
    "variants": variants,
    "privacy": privacy,
    "features": features,
    "reused": reused,
}


def filled(text: str) -> str:
    """A page with its measured tables in place."""
    return re.sub(r"\{\{ measured: (\w+) \}\}", lambda m: TABLES[m[1]](), text)
