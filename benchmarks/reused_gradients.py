"""GHBM's Fig. 1: how far the mean of the last tau rounds' pseudo-gradients is from that of all clients, over tau.

`python -m benchmarks.reused_gradients digits mnist`: FedAvg, 100 clients, 10 a round, one class a client (alpha = 0) or
equal shares of all (IID); the mean over the evaluated rounds of the last half of a run.
"""

import argparse
from typing import Any

import torch
import torch.nn.functional as F

import undrift as ud
from benchmarks.tables import written

TAUS = range(1, 41)
SHOWN = (1, 2, 5, 10, 15, 20, 30, 40)


def errors(data: str, clients: Any, rounds: int) -> dict[int, float]:
    """The error of every tau."""
    torch.manual_seed(0)
    samples = ud.load(data)
    net = ud.models.mlp(samples.train[0][0].numel(), 64, 10)
    problem = ud.federate(samples, model=net, loss=F.cross_entropy, clients=clients)
    metrics = [f"tau_error:{tau}" for tau in TAUS]
    result = ud.run(
        ud.FedAvg(), problem, rounds=rounds, participation=ud.Uniform(10), metrics=metrics, evaluate_every=5,
        local=ud.Local(steps=8, batch=16, lr=0.05),
    )  # fmt: skip
    return {tau: result.final(f"tau_error:{tau}", last=rounds // 10) for tau in TAUS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--rounds", type=int, default=120)
    asked = parser.parse_args()
    print("tau".rjust(24), *(f"{tau:6}" for tau in SHOWN), "  least at")
    recorded: dict[str, dict[int, float]] = {}
    for data in asked.data:
        for name, clients in (("one class", ud.Dirichlet(100, alpha=0)), ("IID", ud.IID(100))):
            found = recorded[f"{data}, {name}"] = errors(data, clients, asked.rounds)
            print(
                f"{data}, {name}".rjust(24),
                *(f"{found[tau]:6.3f}" for tau in SHOWN),
                f"  {min(found, key=found.__getitem__)}",
            )
    print(written("reused-gradients", torch.get_num_threads(), {"reused gradients": recorded}))


if __name__ == "__main__":
    main()
