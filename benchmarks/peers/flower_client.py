"""Flower's client: the message's model trained for one epoch.  Imported by Ray's actors, which keep data and model."""
# pyright: reportMissingImports=false

from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers import shared
from benchmarks.peers.turns import Work


@cache
def resident(w: Work) -> tuple[Any, Any, Any]:
    torch.set_num_threads(1)  # there are as many actors as threads
    return (*shared.data(w), shared.model(w.name))


def client(w: Work) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        X, Y, net = resident(w)
        i = int(context.node_config["partition-id"])
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        seen = shared.train(net, X[i], Y[i], w)
        reply = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": seen}),
        }
        return Message(RecordDict(reply), reply_to=message)

    return app
