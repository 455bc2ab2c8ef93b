"""FLGo: its FedAvg and SCAFFOLD, with the task that it makes from a file of the user's (`flgo_task.py`) and torch's DataLoader.

Its ready-made task for classification does not run on this torch (its data sets lack `__getitems__`).
Clients run one after another, its default; its pools of threads or processes are made anew in every round.  It counts
steps, so the last batch of W4's epoch has 52 samples in place of 64.
"""
# pyright: reportMissingImports=false
# ruff: noqa: E402

import os
import sys
from importlib import import_module
from typing import Any

import torch

from benchmarks.peers import flgo_task, shared
from benchmarks.peers.turns import Gate, work

shared.torchvision_without_operators()

import flgo
from flgo.algorithm import fedavg, scaffold
from flgo.benchmark.toolkits.partition import IIDPartitioner


def main() -> None:
    w = work()
    torch.set_num_threads(w.threads)
    sys.path.insert(0, os.getcwd())  # FLGo writes a module into the working directory, and imports it
    flgo.gen_benchmark_from_file("task", flgo_task.__file__, data_type="general")
    flgo.gen_task_by_(import_module("task"), IIDPartitioner(w.clients), "federation")
    runner: Any = flgo.init(
        "federation",
        scaffold if w.method == "scaffold" else fedavg,
        option={
            "num_rounds": 10**6,
            "torch_num_threads": w.threads,
            "num_steps": w.steps,
            "batch_size": w.batch,
            "learning_rate": w.lr,
            "proportion": w.cohort / w.clients,
            "sample": "uniform",
            "aggregate": "uniform",
            "train_holdout": 0.0,
            "eval_interval": -1,  # never
            "no_log_console": True,
            "log_level": "ERROR",
            "no_tqdm": True,
        },
    )
    gate = Gate("flgo", shared.counted())
    # asked before every round, the first one too
    runner.register_exit_condition(lambda server: server.current_round > 1 and not gate())
    runner.run()


if __name__ == "__main__":
    main()
