"""Flower, the whole experiment: its FedAvg on its simulation with Ray, evaluated by its server after every round."""
# pyright: reportMissingImports=false

import os
import sys
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import shared
from benchmarks.peers.whole import COHORT, federations, rounds
from benchmarks.peers.whole_flower_client import client

CORES = len(os.sched_getaffinity(0))


def server(f: Any, answered: list[int]) -> ServerApp:
    """Notes round by round how many clients have answered: Flower goes on without those that fail."""
    app, net = ServerApp(), shared.model("W2")
    test = torch.from_numpy(f.test_X), torch.from_numpy(f.test_Y)

    def count(replies: list[Any], weighted_by: str) -> MetricRecord:
        answered.append(len(replies))
        return MetricRecord({weighted_by: len(replies)})

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = shared.evaluate(net, *test)
        if round == rounds():
            print("seed", f.seed, "accuracy", accuracy, flush=True)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=COHORT / len(f.X),
            fraction_evaluate=0.0,
            min_train_nodes=COHORT,
            min_available_nodes=len(f.X),
            train_metrics_aggr_fn=count,
        )
        strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=rounds(), evaluate_fn=evaluate)

    return app


def main() -> None:
    for f in federations():
        answered: list[int] = []
        run_simulation(
            server(f, answered),
            client(f.seed),
            num_supernodes=len(f.X),
            backend_config={
                "init_args": {"address": "local", "num_cpus": CORES, "include_dashboard": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        if answered != [COHORT] * rounds():
            sys.exit(f"of {COHORT} clients a round there answered {answered}")


if __name__ == "__main__":
    main()
