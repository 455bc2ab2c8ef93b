"""GHBM's Fig. 1: how far the mean of the last tau rounds' pseudo-gradients is from that of all clients."""

import torch
import torch.nn.functional as F

import undrift as ud
from undrift.models import mlp

TAUS = (1, 2, 5, 10, 20, 40)
KINDS = {"one class": ud.Dirichlet(100, alpha=0.0), "iid": ud.Dirichlet(100, alpha=10000.0)}


def tau_errors(quick: bool) -> dict[str, list[float]]:
    """Relative squared errors, their mean over recorded rounds once tau rounds are there, of FedAvg on digits."""
    data = ud.load("digits")
    metrics = tuple(f"tau_error:{tau}" for tau in TAUS)
    numbers: dict[str, list[float]] = {}
    for kind, clients in KINDS.items():
        for seed in range(1 if quick else 3):
            torch.manual_seed(seed)
            problem = ud.federate(data, model=mlp(64, 32, 10), loss=F.cross_entropy, clients=clients, seed=seed)
            how = {"participation": ud.Uniform(10), "local": ud.Local(steps=10, batch=5, lr=0.1), "seed": seed}
            rounds = 50 if quick else 60
            result = ud.run(ud.FedAvg(), problem, rounds=rounds, metrics=metrics, evaluate_every=10, **how)
            for tau, metric in zip(TAUS, metrics, strict=True):
                found = [
                    r.metrics[metric] for r in result.history if r.metrics.get(metric) is not None and r.round >= 50
                ]
                numbers.setdefault(f"{kind}, tau {tau}", []).append(sum(found) / len(found))
    return numbers
