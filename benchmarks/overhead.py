"""What recording costs: a run that leaves everything behind against the bare rounds, interleaved in one process.

    python benchmarks/overhead.py

Recording is metrics.jsonl and times.jsonl line by line, a progress display, and a checkpoint every 10 rounds.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F

import undrift as ud
from undrift.cli.progress import show_updates
from undrift.experiments.config.toml import from_dict
from undrift.experiments.runs.directory import metrics_of
from undrift.experiments.runs.recorded import recorded
from undrift.experiments.runs.running import Update
from undrift.simulation.api import RunConfig, prepare

REPETITIONS, ROUNDS = 6, 40


def settings(method: str) -> RunConfig:
    """W2: an MLP of 159,010 parameters, 100 clients, 10 a round, 16 steps of 32; evaluated every round."""
    torch.manual_seed(0)
    train = torch.randn(6000, 784), torch.randint(10, (6000,))
    test = torch.randn(1000, 784), torch.randint(10, (1000,))
    problem = ud.federate(
        train,
        test,
        model=ud.models.mlp(784, 200, 10),
        loss=F.cross_entropy,
        clients=ud.IID(100),
    )
    return RunConfig(ud.method(method), problem, ROUNDS, ud.Uniform(10), ud.Local(steps=16, batch=32, lr=0.05))


def bare(run: RunConfig) -> None:
    for _ in prepare(run).play():
        pass


def kept(run: RunConfig) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        experiment = from_dict({"algorithm": {"name": "fedavg"}, "rounds": ROUNDS})

        def updates() -> Iterator[Update]:
            sent = 0
            for r in recorded(folder, run):
                sent += r.bytes_down + r.bytes_up
                yield Update(folder, r.round, ROUNDS, metrics_of(r), sent)

        show_updates(updates(), experiment, folder, runs=1, jobs=1, quiet=False)


def seconds(work: Callable[[RunConfig], None], run: RunConfig) -> float:
    began = perf_counter()
    work(run)
    return perf_counter() - began


def main() -> None:
    for method in ("fedavg", "scaffold", "ghbm"):
        run = settings(method)
        bare(run)  # what is slower the first time is not counted
        pairs = [(seconds(bare, run), seconds(kept, run)) for _ in range(REPETITIONS)]
        ratios = sorted(with_it / without for without, with_it in pairs)
        best = min(with_it for _, with_it in pairs) / min(without for without, _ in pairs)
        typical = statistics.median(ratios)
        print(
            f"{method}: {min(w for w, _ in pairs):.2f} s bare; recorded / bare: median {typical:.3f}, "
            f"from {ratios[0]:.3f} to {ratios[-1]:.3f}; fastest to fastest {best:.3f}"
        )


if __name__ == "__main__":
    main()
