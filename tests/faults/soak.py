"""The long form of all attacks: `make soak`.

python -m tests.faults.soak            attack for attack, each in a process of its own; figures in figures.json
python -m tests.faults.soak --write    docs/reliability.md from these figures
python -m tests.faults.soak flips      only this one, its figures put in place of the old ones
"""

import json
import subprocess
import sys
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
        27,
        "Runs of nine kinds of state are killed at a random change of a file (nine of ten by a simulated crash, which "
        "may leave half a write; one of ten by `kill -9` or Ctrl-C) and resumed, again and again: the same bytes at the end.",
    ),
    "kills_of_searches": Attack(
        50,
        0,
        "Sweeps and comparisons are ended by `kill -9` at random moments and resumed: the same trials, models and metrics.",
    ),
    "flips": Attack(
        2000,
        20,
        "One bit of one file of a finished or an interrupted run is flipped. The report has the same numbers or refuses; "
        "the run resumes to the same bytes, unless the bit is one of `experiment.toml`: then it is refused, with the name "
        "of the copy.",
    ),
    "flips_of_searches": Attack(
        500,
        12,
        "One bit of one file of a finished or an interrupted sweep, choice or comparison with references is flipped. It resumes "
        "to the same trials, answers, models and metrics; until then an answer refuses, and an experiment is said to be changed.",
    ),
    "data_files": Attack(
        2000,
        150,
        "Files in the layouts of eleven data sets and traces with bits flipped, cut, lines and numbers replaced, other "
        "JSON, decompression bombs: each is read or refused in one line. A number that has become another number is read: only "
        "a published checksum can detect it, where there is one.",
    ),
    "experiments": Attack(
        1000,
        40,
        "Experiments with random sections, absurd numbers, wrong types and broken TOML: each is refused in one line, or "
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
    "stories": Attack(
        2000,
        15,
        "Up to 40 requests of a deployed run in a row meet disks that are wiped, flipped or set back, messages that are lost, "
        "late, doubled or NaN, and kills of the server, in any order, with cohorts, deadlines and a buffer. Every round is whole, no update "
        "is used twice, the server's sum is that of the states by its book, what it is told of is mended, and the run ends.",
    ),
}


def soak(names: list[str]) -> bool:
    """Run attacks, one after another; whether all survived."""
    figures: dict[str, Any] = {}
    for name in names:
        command = [sys.executable, "-m", f"tests.faults.{name}", str(ATTACKS[name].tries), str(SEED)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}  # another process may have added some
        figures[name] = json.loads(done.stdout.splitlines()[-1])
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
    return "\n".join([HEAD, *rows, BETWEEN, *about, TAIL])


HEAD = """# Reliability

What we attack Undrift with, and the results. `make soak` runs all attacks at low priority and generates this page
(`python -m tests.faults.soak --write`). A short form with other random numbers is part of `make test`.

| attack | tries | survived | of these refused | silent | crashed |
|---|---:|---:|---:|---:|---:|"""
BETWEEN = """
Survived: it continued with the same bits, or was refused with one clear line. Silent: a wrong result without a message.
Crashed: a traceback, a hang, or a lost run.
"""
TAIL = """
The first long run found four faults: of 2,000 flipped bits two were silent (a report that followed a changed `experiment.toml`,
a `result.json` whose checksum had lost its name) and one a traceback; experiments with a file name too long were tracebacks. Of the
first 2,000 stories of nodes nine failed, through a node that deleted a state which a killed server could go back to, and through the
attack's own bookkeeping. Of the first 500 bits in searches three were tracebacks: a damaged copy of a database condemned the sound
one. All are fixed, and the results above are those of later runs.

An attack is a module of `tests/faults` with `main(tries, seed)`; as a script it prints its line:

    python -m tests.faults.flips 200 1

How files are protected is in [experiments](experiments.md#never-lost), how nodes and servers are protected from each other in
[deployment](deploy.md). `make audit` looks up known vulnerabilities of the pinned dependencies.
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
