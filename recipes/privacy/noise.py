"""Where methods end under noise of the server's or of clients: on quadratics, whose optimum is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import undrift as ud

METHODS = {
    "FedAvg": ud.FedAvg(),
    "FedGM": ud.FedGM(),
    "FedAvg-M": ud.FedAvg_M(),
    "FedHBM": ud.FedHBM(),
    "FedHBM with beta 0.9": ud.FedHBM(beta=0.9),
    "SCAFFOLD": ud.Scaffold(),
    "SCAFFOLD-M": ud.ScaffoldM(),
    "FedDyn": ud.FedDyn(alpha=0.5),
}


def growth(quick: bool) -> Mapping[str, Sequence[float]]:
    """The mean squared distance to the optimum late in a run over that early in it, once the start is forgotten."""
    early, late = (20, 80) if quick else (60, 240)
    cases = [(f"{name}, server's noise", method, "server") for name, method in METHODS.items()]
    cases += [(f"{name}, clients' noise", METHODS[name], "clients") for name in ("SCAFFOLD", "SCAFFOLD-M")]
    return {label: [_ratio(method, where, seed, early, late) for seed in range(3)] for label, method, where in cases}


def _ratio(method: Any, where: Any, seed: int, early: int, late: int) -> float:
    clients, d = 10, 50
    e = torch.randn(clients, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    problem = ud.Quadratic(torch.eye(d, dtype=torch.float64).repeat(clients, 1, 1), e)
    result = ud.run(
        method, problem, rounds=late, local=ud.Local(steps=5, lr=0.05), seed=seed, engine="batched", evaluate_every=5,
        privacy=ud.Privacy(clip=20.0, noise=0.05, where=where), progress=False,
    )  # fmt: skip
    squares = {r.round: r.metrics["distance"] ** 2 for r in result.history if r.metrics}
    before, after = ([v for t, v in squares.items() if end / 2 < t <= end] for end in (early, late))
    return (sum(after) / len(after)) / (sum(before) / len(before))
