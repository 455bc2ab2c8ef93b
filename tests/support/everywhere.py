"""One small federation, and a run of it in every engine of this process."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud

N = 5
ENGINES = ("sequential", "batched", "compiled", "events")
every_engine = pytest.mark.parametrize("engine", ENGINES)
other_engines = pytest.mark.parametrize("engine", ENGINES[1:])


def federation(dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """A small network on five clients of unequal size."""
    random = torch.Generator().manual_seed(1)
    X = torch.randn(40, 4, dtype=torch.float64, generator=random).to(dtype)
    edges = np.cumsum([0, 4, 9, 7, 12, 8])
    clients = [list(range(a, b)) for a, b in zip(edges, edges[1:], strict=False)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    given: dict[str, Any] = {"model": net, "loss": F.cross_entropy, "clients": clients}
    return ud.federate((X, torch.arange(40) % 3), **(given | more))


def played(algorithm: Any, engine: str, problem: Any = None, **more: Any) -> list[ud.Round]:
    """The rounds of a run, each with its model."""
    settings: dict[str, Any] = {
        "rounds": 4, "participation": ud.Uniform(3), "seed": 3,
        "local": ud.Local(steps=3, batch=4, lr=0.1),
    }  # fmt: skip
    problem = federation() if problem is None else problem
    return list(ud.rounds(algorithm, problem, engine=engine, **(settings | more)))


def models(rounds: list[ud.Round]) -> np.ndarray:
    return torch.stack([r.x for r in rounds]).numpy()
