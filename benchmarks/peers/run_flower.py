"""Flower: its FedAvg on its simulation with Ray, an actor with one torch thread for every thread of the other rows.

Local training is the user's (`shared.train`): an epoch in random order; the last batch of W4 has 52 samples in place of
64.  `run_simulation` is the entry point for scripts.  Flower itself has no SCAFFOLD.
"""
# pyright: reportMissingImports=false

from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import shared
from benchmarks.peers.flower_client import client
from benchmarks.peers.turns import Gate, Work, work


class Over(Exception):
    """No more rounds are wanted: Flower has no other way to stop early."""


def server(w: Work) -> ServerApp:
    app = ServerApp()
    trained: list[int] = []

    def totals(replies: list[Any], weighted_by: str) -> MetricRecord:
        trained.append(sum(int(reply["metrics"][weighted_by]) for reply in replies))
        return MetricRecord({weighted_by: trained[-1]})

    gate = Gate("flwr", lambda: trained[-1])

    def after(round: int, arrays: ArrayRecord) -> None:
        """Called before the first round, too."""
        if round and not gate():
            raise Over

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=w.cohort / w.clients,
            fraction_evaluate=0.0,
            min_train_nodes=w.cohort,
            min_available_nodes=w.clients,
            train_metrics_aggr_fn=totals,
        )
        arrays = ArrayRecord(shared.model(w.name).state_dict())
        strategy.start(grid, arrays, num_rounds=10**6, evaluate_fn=after)

    return app


def main() -> None:
    w = work()
    torch.set_num_threads(w.threads)
    run_simulation(
        server(w),
        client(w),
        num_supernodes=w.clients,
        backend_config={
            # "local": never a cluster that happens to run on this machine
            "init_args": {"address": "local", "num_cpus": w.threads, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
