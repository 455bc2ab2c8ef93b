"""The oracles' little federation as a problem of the library, which is also how small a problem can be."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import undrift as ud
from tests.support.oracles.world import World
from undrift.core.rng import Key


class WorldProblem:
    """Looks minibatches up by the formula that the oracles use, and remembers who was visited."""

    def __init__(self, w: World):
        self.w, self.N, self.weights = w, w.N, tuple(w.p.tolist())
        self.A, self.b, self.x0 = (torch.as_tensor(v) for v in (w.A, w.b, w.x0))
        self.visits: list[tuple[Key, tuple[int, ...]]] = []

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return self.A.shape[1]

    def draw(
        self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> tuple[Sequence[int], Tensor]:
        self.visits.append((key, tuple(clients)))
        rows = [[self.w.sample(i, key.round, k, key.exchange, key.loop) for k in range(max(steps))] for i in clients]
        return clients, torch.tensor(rows)

    def grad(self, y: Tensor, minibatches: tuple[Sequence[int], Tensor], k: int) -> Tensor:
        clients, samples = minibatches
        which = torch.tensor(clients), samples[:, k]
        return self._gradient(self.A[which], self.b[which], y)

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        which = torch.tensor(clients)
        return self._gradient(self.A[which].mean(1), self.b[which].mean(1), y)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        return {}

    @staticmethod
    def _gradient(A: Tensor, b: Tensor, y: Tensor) -> Tensor:
        g = (A @ y.unsqueeze(-1)).squeeze(-1) - b
        return g[0] if y.dim() == 1 else g


def path(algorithm: Any, problem: Any, **settings: Any) -> np.ndarray:
    """x^0, x^1, ... of a run."""
    settings = {"engine": "sequential", "evaluate_every": 10**6} | settings
    start = settings.get("x0", problem.x0)
    models = [r.x for r in ud.rounds(algorithm, problem, **settings)]
    return torch.stack([start, *models]).numpy()


def gap(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the size of what is compared."""
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))


def random_cohorts(N: int, S: int, T: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [sorted(rng.choice(N, S, replace=False).tolist()) for _ in range(T)]


class PlainFedAvg:
    """FedAvg without registration, for tests that break one thing of it."""

    server, client, send, update = (
        ud.FedAvg.server, ud.FedAvg.client, ud.FedAvg.send, ud.FedAvg.update
    )  # fmt: skip
    server_lr = 1.0

    def local(self, down: Any, client: Any, work: Any) -> Any:
        return ud.FedAvg().local(down, client, work)
