"""NVFlare's client script: it receives a model, trains it for one epoch, and sends it back."""
# pyright: reportMissingImports=false

from dataclasses import replace

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from benchmarks.peers import shared
from benchmarks.peers.nvflare_parts import Model
from benchmarks.peers.turns import work


def main() -> None:
    w = work()
    torch.set_num_threads(1)
    flare.init()
    X, Y = shared.data(replace(w, clients=1))
    net = Model(w.name)
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict(received.params)
        seen = shared.train(net, X[0], Y[0], w)
        flare.send(FLModel(params=net.state_dict(), metrics={"samples": float(seen)}))


if __name__ == "__main__":
    main()
