"""Run directories written by hand, for the report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console

from undrift.experiments.report import Summary, terminal_table
from undrift.experiments.runs.files import whole_lines, with_checksum

DOWN, UP = 600, 400  # bytes a round, unless a test says otherwise
FEDERATION = {
    "clients": 4,
    "samples": 60,
    "parameters": 10,
    "heterogeneity": {
        "smallest": 10,
        "median": 15.0,
        "largest": 20,
        "classes": 3,
        "classes_held": 1.5,
        "divergence": 0.4,
    },
    "sizes": [10, 14, 16, 20],
    "label_shares": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]],
    "checksums": {"train": "ab" * 32},
}


def write_run(
    path: Path,
    accuracies: Sequence[float | None],
    *,
    name: str = "fedavg",
    seed: int = 0,
    planned: int | None = None,
    every: int = 1,
    ended: bool = True,
    stopped: str | None = None,
    down: Sequence[int] | None = None,
    seconds: float = 2.0,
    extra: Mapping[str, Any] | None = None,
    virtual: Sequence[float] | None = None,
    metric: str = "accuracy",
) -> Path:
    """A run directory with the given values of a metric, one every so many rounds."""
    rounds = len(accuracies) * every
    words = {
        "rounds": planned or rounds,
        "seeds": [seed],
        "data": {"name": "made"},
        "clients": {"partition": "iid", "number": 4},
        "evaluation": {"every": every},
        "algorithm": {"name": name},
        **(extra or {}),
    }
    (path / "checkpoints").mkdir(parents=True)
    (path / "experiment.toml").write_text(tomli_w.dumps(words))
    (path / "manifest.json").write_text(json.dumps({"command": "undrift run it", "python": "3"}))
    (path / "federation.json").write_text(json.dumps(FEDERATION))
    lines, times = [], []
    for r in range(1, rounds + 1):
        line: dict[str, Any] = {"round": r, "participants": 2, "left_out": []}
        line |= {"bytes_down": down[r - 1] if down else DOWN, "bytes_up": UP}
        if r % every == 0:
            line[metric] = accuracies[r // every - 1]
        if virtual is not None:
            line["virtual_seconds"] = virtual[r - 1]
        lines.append(json.dumps(line) + "\n")
        times.append(json.dumps(with_checksum({"round": r, "seconds": seconds})) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    (path / "times.jsonl").write_text("".join(times))
    if ended:
        (path / "result.json").write_text(json.dumps({"rounds": rounds, "stopped": stopped}))
    return path


def write_comparison(path: Path, methods: Mapping[str, Sequence[Sequence[float | None]]], **words: Any) -> Path:
    """A comparison: for each label the metric of each seed."""
    seeds = max(len(each) for each in methods.values())
    rounds = max(len(values) for each in methods.values() for values in each)
    path.mkdir(parents=True)
    experiment = {
        "rounds": rounds,
        "seeds": list(range(seeds)),
        "data": {"name": "made"},
        "clients": {"partition": "iid", "number": 4},
        **words,
        "algorithms": {label: {"name": "fedavg"} for label in methods},
    }
    (path / "experiment.toml").write_text(tomli_w.dumps(experiment))
    (path / "manifest.json").write_text(json.dumps({"command": "undrift compare", "python": "3"}))
    for label, curves in methods.items():
        for seed, values in enumerate(curves):
            write_run(path / label / f"seed-{seed}", values, seed=seed, planned=rounds)
    return path


SLOW = [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.6, 0.6, 0.6]
FAST = [0.2, 0.4, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
BAD = [0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.3, 0.3]


def page_data(page: Path) -> dict[str, Any]:
    """What the scripts of a report's page are given."""
    text = page.read_text()
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script>", start)])


ATTACK = "<img src=x onerror=\"document.title='taken'\">"
ENDING = "</script><script>document.title='taken'</script>"


METHODS = {
    "fedavg": [SLOW, [v + 0.02 for v in SLOW]],
    "fast": [FAST, [v - 0.02 for v in FAST]],
    "bad": [BAD, BAD],
}


def printed_table(s: Summary, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(terminal_table(s))
    return captured.get()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; one that is being written is left out."""
    return [json.loads(line) for line in whole_lines(path)]
