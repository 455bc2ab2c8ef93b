"""Flower's client of the whole experiment.  Imported by Ray's actors, which keep data and model."""
# pyright: reportMissingImports=false

from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers import shared
from benchmarks.peers.turns import Work
from benchmarks.peers.whole import BATCH, COHORT, LR, federation

EPOCH = Work(
    "W2", clients=0, samples=0, cohort=COHORT, steps=0, batch=BATCH, method="fedavg", lr=LR, evaluated=0, threads=1
)


@cache
def resident(seed: int) -> tuple[Any, Any]:
    """What an actor keeps: data and model."""
    torch.set_num_threads(1)  # there are as many actors as cores
    return federation(seed), shared.model("W2")


def client(seed: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        f, net = resident(seed)
        i = int(context.node_config["partition-id"])
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        shared.train(net, torch.from_numpy(f.X[i]), torch.from_numpy(f.Y[i]), EPOCH)
        # as many for every client: weights are uniform
        reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(reply), reply_to=message)

    return app
