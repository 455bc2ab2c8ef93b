"""From the command to the final table: MNIST, Dirichlet 0.2, FedAvg, 10 of 100 clients a round, 200 rounds, 3 seeds, one
local epoch in minibatches of 32, evaluated on the test set after every round.

    python -m benchmarks.whole --seeds 3

Rows are processes: `undrift compare`, the bare arithmetic of the same training and evaluation, and peers, whose scripts are
in benchmarks/peers/whole_*.py.  Partitions are Undrift's, written to a file that the peers read; reading it is timed too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers.environments import PEERS, ROOT, Unavailable, one_line, python
from benchmarks.tables import written
from undrift.experiments.config.federation import federation
from undrift.experiments.config.toml import from_dict

COHORT, BATCH, LR = 10, 32, 0.05
ROWS = ("fedjax", "pfl", "fluke", "FLGo", "Flower")
FILE, ROUNDS = "UNDRIFT_WHOLE_FILE", "UNDRIFT_WHOLE_ROUNDS"


def describe(rounds: int, seeds: int) -> dict[str, Any]:
    """The experiment, as a TOML file would have it."""
    return {
        "rounds": rounds,
        "seeds": seeds,
        "algorithm": {"name": "fedavg"},
        "data": {"name": "mnist"},
        "clients": {"partition": "dirichlet", "number": 100, "alpha": 0.2, "weights": "uniform"},
        "participation": {"per_round": COHORT},
        "local": {"epochs": 1, "batch": BATCH, "lr": LR},
    }


def write_data(rounds: int, seeds: int, folder: Path) -> list[Path]:
    """What peers read, a file a seed: inputs as the model takes them, labels, who has which samples."""
    found = []
    for seed in range(seeds):
        problem = federation(from_dict(describe(rounds, seeds)), seed).problem
        assert problem.test is not None
        inputs = [problem.prepared(X).flatten(1).numpy() for X in (problem.X, problem.test[0])]
        arrays: dict[str, Any] = {"X": inputs[0], "Y": problem.Y, "test_X": inputs[1], "test_Y": problem.test[1]}
        arrays |= {"index": problem.parts.index, "starts": problem.parts.starts, "sizes": problem.parts.sizes}
        found.append(folder / f"seed-{seed}.npz")
        np.savez(found[-1], **arrays)
    return found


def bare(rounds: int, file: Path) -> float:
    """Seconds of the matrix products alone: those of a seed's training, a cohort's clients at once, and evaluation."""
    data = np.load(file)
    steps = int(np.ceil(data["sizes"] / BATCH).mean().round())
    x, W, V = torch.rand(COHORT, BATCH, 784), torch.rand(COHORT, 200, 784), torch.rand(COHORT, 10, 200)
    test = torch.from_numpy(data["test_X"])
    began = perf_counter()
    for _ in range(rounds):
        for _ in range(steps):
            hidden = x @ W.mT
            out = hidden @ V.mT
            _ = out.mT @ hidden, (out @ V).mT @ x
        F.linear(F.linear(test, W[0]), V[0])
    return perf_counter() - began


def undrift(rounds: int, seeds: int, folder: Path) -> float:
    words = ["fedavg", "--data", "mnist", "--dirichlet", "0.2", "--clients", "100", "--per-round", str(COHORT)]
    words += ["--epochs", "1", "--batch", str(BATCH), "--lr", str(LR), "--rounds", str(rounds), "--seeds", str(seeds)]
    words += ["--weights", "uniform", "--out", str(folder / "undrift")]
    return timed([sys.executable, "-m", "undrift.cli", "compare", *words, "--quiet"], {})


def peer(name: str, rounds: int, files: list[Path]) -> float:
    (known,) = (each for each in PEERS if each.name == name)
    command = [str(python(known)), "-m", f"benchmarks.peers.whole_{known.module}"]
    where = {FILE: os.pathsep.join(map(str, files)), ROUNDS: str(rounds), "PYTHONPATH": str(ROOT)}
    return timed(command, where)


def timed(command: list[str], environment: dict[str, str]) -> float:
    began = perf_counter()
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(one_line(done.stderr))
    print(done.stdout.strip().splitlines()[-1:] or "", flush=True)
    return perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="*", default=["undrift", "bare", *ROWS])
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        files = write_data(asked.rounds, asked.seeds, Path(place))
        for name in asked.rows:
            try:
                if name == "undrift":
                    found[name] = undrift(asked.rounds, asked.seeds, Path(place))
                elif name == "bare":
                    found[name] = sum(bare(asked.rounds, file) for file in files)
                else:
                    found[name] = peer(name, asked.rounds, files)
            except Unavailable as why:
                found[name] = str(why)
            print(name, found[name], flush=True)
    about = {"whole": found, "rounds": asked.rounds, "seeds": asked.seeds}
    print(written("whole", torch.get_num_threads(), about))


if __name__ == "__main__":
    main()
