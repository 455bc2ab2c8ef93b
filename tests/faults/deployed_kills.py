"""Servers of deployed runs killed at any message, and messages that are lost, late or come twice.

    python -m tests.faults.deployed_kills TRIES SEED

With cohorts the run must end with the bits of one that nothing happened to.  A buffered server takes updates in the
order in which they come, which a kill changes: there the run must end, with the server's sum that of nodes' states.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.in_process_nodes import Nodes, deployed_rounds, experiment, invariant_gap, quietly
from undrift.deploy.messages import Envelope

METHODS = ("scaffold-m", "scaffold", "feddyn", "fedhbm", "mime")
EVENTS = ("unheard", "unanswered", "twice")
ROUNDS = 4


class Killed(BaseException):
    """The server's process is gone."""


def played(made: Any, folder: Path, rng: random.Random | None, kills: int) -> tuple[bytes, float, int]:
    """The model at the end, the largest distance of the sum from the states, and how often the server was killed."""
    nodes, gap, done, killed = Nodes(made, folder), 0.0, 0, 0
    counts = made.labels[0] in ("scaffold", "scaffold-m", "feddyn")

    def fault(who: str, envelope: Envelope) -> str:
        nonlocal killed
        if rng is None or envelope.kind not in ("work", "state"):
            return ""
        if killed < kills and rng.random() < 0.25:
            if rng.random() < 0.5:  # before or after the node has heard of it
                nodes.node(who).answer(envelope)
            killed += 1
            raise Killed
        wait = 45.0 if rng.random() < 0.1 else 0.0
        nodes.delay = lambda name: wait
        return rng.choice(EVENTS) if rng.random() < 0.2 else ""

    nodes.fault = fault
    while done < made.rounds:
        try:
            for r in deployed_rounds(nodes):
                done = r.round
                gap = max(gap, invariant_gap(nodes, r) if counts else 0.0)
        except Killed:
            nodes.answers.clear()
    return (folder / "run" / "model.safetensors").read_bytes(), gap, killed


@quietly()
def main(tries: int = 500, seed: int = 0) -> dict[str, Any]:
    """Kill so often; prints and returns what came of it."""
    rng, found = random.Random(seed), {"tries": 0, "survived": 0, "silent": 0, "crashed": 0}
    while found["tries"] < tries:
        name, buffer = rng.choice(METHODS), rng.random() < 0.3
        server = {"kind": "buffer", "size": 2, "concurrency": 3} if buffer and name != "mime" else None
        made = experiment(
            name,
            rounds=ROUNDS,
            server=server,
            model={"name": "mlp", "hidden": [1]},
            local={"steps": 2, "batch": 8, "lr": 0.05},
            evaluation={"every": ROUNDS},
        )
        with tempfile.TemporaryDirectory() as folder:
            honest, _, _ = played(made, Path(folder) / "honest", None, 0)
            kills = min(10, tries - found["tries"])
            try:
                model, gap, killed = played(made, Path(folder) / "killed", rng, kills)
            except Exception as error:
                print(f"crashed: {type(error).__name__}: {error}", file=sys.stderr)
                found["tries"] += 1
                found["crashed"] += 1
                continue
            sound = gap < 1e-6 and (server is not None or model == honest)
            found["tries"] += killed
            found["survived" if sound else "silent"] += killed
    line = {"attack": "kills of deployed servers", **found}
    print(json.dumps(line))
    return line


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
