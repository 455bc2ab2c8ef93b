"""NVFlare's client script: it receives a model, trains it for one epoch, and sends it back."""
# pyright: reportMissingImports=false

import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel

from benchmarks.peers import shared
from benchmarks.peers.nvflare_parts import Model
from benchmarks.peers.turns import work


def main() -> None:
    w = work()
    torch.set_num_threads(1)  # there are as many processes of clients as threads
    flare.init()
    i = int(flare.get_site_name().removeprefix("site-")) - 1
    X, Y = (every[i].clone() for every in shared.data(w))
    net = Model(w.name)
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict(received.params)
        seen = shared.train(net, X, Y, w)
        flare.send(FLModel(params=net.state_dict(), metrics={"samples": float(seen)}))


if __name__ == "__main__":
    main()
