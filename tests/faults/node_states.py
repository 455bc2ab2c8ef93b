"""One flipped bit in a state on a node's disk, in the middle of a run.

    python -m tests.faults.node_states TRIES SEED

The run must be that of nodes whose disk was honest, or say that a state was lost; the server's sum of states must be
that of the states on the disks.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.support.in_process_nodes import (
    NAMES,
    Nodes,
    deployed_rounds,
    experiment,
    invariant_gap,
    quietly,
    run_dir,
)
from undrift.experiments.runs.files import checked_lines

METHODS = ("scaffold", "feddyn", "scaffold-m")
ROUNDS = 5


def flip(path: Path, rng: random.Random) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def played(name: str, folder: Path, rng: random.Random | None) -> tuple[torch.Tensor, float]:
    """The model at the end of a run, and how far the sum ever was from the states; with a flip after some round."""
    made = experiment(
        name,
        rounds=ROUNDS,
        participation={"scheme": "everyone"},
        model={"name": "mlp", "hidden": [1]},
        local={"steps": 2, "batch": 8, "lr": 0.05},
        evaluation={"every": ROUNDS},
    )
    nodes, gap, x = Nodes(made, folder), 0.0, torch.zeros(0)
    when = rng.randrange(1, ROUNDS) if rng else 0
    for r in deployed_rounds(nodes):
        if rng is None or r.round > when + 1:  # until then the server has not heard of it
            gap = max(gap, invariant_gap(nodes, r))
        elif r.round == when:
            flip(max((folder / rng.choice(NAMES)).glob("*/*.safetensors")), rng)
        x = r.x
    return x, gap


@quietly()
def main(tries: int = 500, seed: int = 0) -> dict[str, Any]:
    """Flip so many bits, each in a run of its own; prints and returns what came of them."""
    rng, found = random.Random(seed), {"tries": 0, "survived": 0, "silent": 0, "crashed": 0}
    honest: dict[str, torch.Tensor] = {}
    for _ in range(tries):
        name = rng.choice(METHODS)
        with tempfile.TemporaryDirectory() as folder:
            if name not in honest:
                honest[name], _ = played(name, Path(folder) / "honest", None)
            found["tries"] += 1
            try:
                x, gap = played(name, Path(folder) / "flipped", rng)
            except Exception as error:
                print(f"crashed: {type(error).__name__}: {error}", file=sys.stderr)
                found["crashed"] += 1
                continue
            told = any(
                line["kind"] == "lost" for line in checked_lines(run_dir(Path(folder) / "flipped") / "faults.jsonl")[0]
            )
            sound = gap < 1e-6 and (told or torch.equal(x, honest[name]))
            found["survived" if sound else "silent"] += 1
    line = {"attack": "bit flips in nodes' states", **found}
    print(json.dumps(line))
    return line


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
