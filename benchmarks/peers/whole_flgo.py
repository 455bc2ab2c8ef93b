"""FLGo, the whole experiment: its FedAvg, with the task that it makes from a file of the user's (`whole_flgo_task.py`)."""
# pyright: reportMissingImports=false
# ruff: noqa: E402

import os
import sys
import tempfile
from importlib import import_module
from typing import Any

from benchmarks.peers import shared, whole_flgo_task
from benchmarks.peers.whole import BATCH, COHORT, LR, federations, rounds

shared.torchvision_without_operators()

import flgo
from flgo.algorithm import fedavg
from flgo.benchmark.toolkits.partition import BasicPartitioner
from flgo.experiment.logger import BasicLogger


class Logger(BasicLogger):
    """Evaluates the model of the server."""

    def log_once(self, *args: Any, **kwargs: Any) -> None:
        for name, value in self.server.test().items():
            self.output[f"test_{name}"].append(value)


class Given(BasicPartitioner):
    """Clients' samples, which lie one after another in the task's data."""

    def __init__(self, sizes: list[int]):
        self.sizes, self.num_clients = sizes, len(sizes)

    def __call__(self, data: Any) -> list[list[int]]:
        ends = [sum(self.sizes[:i]) for i in range(len(self.sizes) + 1)]
        return [list(range(a, b)) for a, b in zip(ends, ends[1:], strict=False)]


def main() -> None:
    os.chdir(tempfile.mkdtemp())
    sys.path.insert(0, os.getcwd())  # FLGo writes modules into the working directory, and imports them
    for f in federations():
        os.environ[whole_flgo_task.SEED] = str(f.seed)
        flgo.gen_benchmark_from_file(f"task{f.seed}", whole_flgo_task.__file__, data_type="general")
        sizes = [len(Y) for Y in f.Y]
        flgo.gen_task_by_(import_module(f"task{f.seed}"), Given(sizes), f"federation{f.seed}")
        runner: Any = flgo.init(
            f"federation{f.seed}",
            fedavg,
            option={
                "num_rounds": rounds(),
                "num_epochs": 1,
                "batch_size": BATCH,
                "learning_rate": LR,
                "proportion": COHORT / len(sizes),
                "sample": "uniform",
                "aggregate": "uniform",
                "train_holdout": 0.0,
                "test_batch_size": 2048,
                "eval_interval": 1,
                "no_log_console": True,
                "log_level": "ERROR",
                "no_tqdm": True,
            },
            Logger=Logger,
        )
        runner.run()
        print("seed", f.seed, {name: values[-1] for name, values in runner.gv.logger.output.items() if "test" in name})


if __name__ == "__main__":
    main()
