"""The long form of all attacks: `make soak`.

python -m tests.faults.soak            attack for attack, each in a process of its own; figures in figures.json
python -m tests.faults.soak --write    docs/reliability.md from these figures
python -m tests.faults.soak flips      only this one, its figures put in place of the old ones
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).with_name("figures.json")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
SEED = 21


@dataclass(frozen=True)
class Attack:
    """How often in `make soak` and in test_faults.py (deployed runs have their own), and what must come of it."""

    tries: int
    short: int
    about: str


ATTACKS = {
    "kills": Attack(
        1000,
        12,
        "Runs of eight kinds of state are killed at a random change of a file (nine of ten by a simulated crash, which "
        "may leave half a write; one of ten by `kill -9`) and go on, again and again: the same bytes at the end.",
    ),
    "kills_of_searches": Attack(
        50,
        0,
        "Sweeps and comparisons are ended by `kill -9` at random moments and go on: the same trials, models and metrics.",
    ),
    "flips": Attack(
        2000,
        20,
        "One bit of one file of a finished or an interrupted run is flipped. The report has the same numbers or refuses; "
        "the run goes on to the same bytes, unless the bit is one of `experiment.toml`: then it is refused, with the name "
        "of the copy.",
    ),
    "data_files": Attack(
        2000,
        150,
        "Files in the layouts of eleven data sets and traces with bits flipped, cut, lines and numbers replaced, other "
        "JSON, decompression bombs: each is read or refused in a line. A number that has become another number is read: only "
        "a published checksum can tell, where there is one.",
    ),
    "experiments": Attack(
        1000,
        40,
        "Experiments with random sections, absurd numbers, wrong types and broken TOML: each is refused in a line, or "
        "its first rounds run.",
    ),
    "messages": Attack(
        10_000,
        0,
        "What two nodes of three, and strangers beside them, send in place of honest answers: named, counted, survived, and "
        "the honest node is in every round.",
    ),
    "node_states": Attack(
        200,
        0,
        "One bit of a state on a node's disk is flipped in the middle of a run: the same run, or a state that is said to be "
        "lost; the server's sum is that of the nodes' states.",
    ),
    "deployed_kills": Attack(
        200,
        0,
        "The server of a deployed run is killed at any message, and messages are lost, late or come twice: the same bits "
        "with cohorts; with a buffer the run ends with the sum of the nodes' states.",
    ),
}


def soak(names: list[str]) -> bool:
    """Run attacks, one after another; whether all survived."""
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in names:
        begun = time.monotonic()
        command = [sys.executable, "-m", f"tests.faults.{name}", str(ATTACKS[name].tries), str(SEED)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures[name] = {**json.loads(done.stdout.splitlines()[-1]), "seconds": round(time.monotonic() - begun)}
        print(json.dumps(figures[name]), flush=True)
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    return all(not (figures[name]["silent"] or figures[name]["crashed"]) for name in names)


def page(figures: dict[str, Any]) -> str:
    """docs/reliability.md."""
    rows = [
        f"| {f['attack']} | {f['tries']:,} | {f['survived']:,} | {f.get('refused', 0):,} | {f['silent']:,} | {f['crashed']:,} |"
        for f in (figures[name] for name in ATTACKS if name in figures)
    ]
    about = [
        f"- **{figures[name]['attack']}** (`tests/faults/{name}.py`). {a.about}"
        for name, a in ATTACKS.items()
        if name in figures
    ]
    minutes = round(sum(f["seconds"] for f in figures.values()) / 60)
    return "\n".join([HEAD.replace("{minutes}", str(minutes)), *rows, BETWEEN, *about, TAIL])


HEAD = """# Reliability: what was tried

What Undrift is attacked with, and what came of it. `make soak` runs all of it (low priority, one process; these
figures took {minutes} minutes) and writes the figures; this page is generated from them (`python -m tests.faults.soak
--write`). A short form, with other random numbers, is part of `make test`.

| attack | tries | survived | of these refused | silent | crashed |
|---|---:|---:|---:|---:|---:|"""
BETWEEN = """
Survived: it went on with the same bits, or was refused with one clear line. Silent: a wrong result that nobody was told of.
Crashed: a traceback, a hang, or a run lost.
"""
TAIL = """
What the first long run found: of 2,000 flipped bits two were silent (a report that followed a changed `experiment.toml`, a
`result.json` whose checksum had lost its name) and one a traceback; of 1,000 experiments two with a file name too long were
tracebacks. They were mended and these two attacks, and that of data files, run again with the same seed; the other figures
are those of the first run.

An attack is a module of `tests/faults` with `main(tries, seed)`; as a script it prints its line:

    python -m tests.faults.flips 200 1

What keeps files safe is in [experiments.md](experiments.md#never-lost), what keeps nodes and servers apart in
[deploy.md](deploy.md). `make audit` asks the registry of known vulnerabilities about the pinned dependencies.
"""


def main() -> None:
    words = sys.argv[1:]
    if words == ["--write"]:
        PAGE.write_text(page(json.loads(FIGURES.read_text())))
        return
    survived = soak(words or list(ATTACKS))
    PAGE.write_text(page(json.loads(FIGURES.read_text())))
    sys.exit(0 if survived else 1)


if __name__ == "__main__":
    main()
