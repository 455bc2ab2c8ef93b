"""Heterogeneous quadratics in float64 that many tests run on."""

from typing import Any

import numpy as np
import torch

import undrift as ud

N, D = 6, 4
STEPS = [1, 4, 2, 6, 3, 5]
P = [0.1, 0.2, 0.3, 0.1, 0.2, 0.1]


def quadratic(weights: list[float] | None = None, N: int = N, d: int = D, spread: float = 3.0) -> Any:
    rng = np.random.default_rng(1)
    Q, _ = np.linalg.qr(rng.normal(size=(N, d, d)))
    H = np.einsum("nij,nj,nkj->nik", Q, rng.uniform(0.3, 1.0, (N, d)), Q)
    e = np.einsum("nij,nj->ni", H, spread * rng.normal(size=(N, d)))
    H = (H + H.transpose(0, 2, 1)) / 2
    return ud.Quadratic(torch.as_tensor(H), torch.as_tensor(e), weights)


def distance(algorithm: Any, problem: Any, rounds: int, who: Any, **local: Any) -> float:
    result = ud.run(
        algorithm,
        problem,
        rounds=rounds,
        participation=who,
        local=ud.Local(**{"steps": 4, "lr": 0.1} | local),
        engine="batched",
        evaluate_every=rounds,
    )
    return result.history[-1].metrics["distance"]
