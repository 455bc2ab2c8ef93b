"""What each method keeps, sends and computes, measured from its own records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.core.algorithm import Cohort, DependsOnRun, exchanges_of
from undrift.core.hyper import METHODS, Spec
from undrift.core.records import nbytes, tensors
from undrift.core.rng import Key
from undrift.core.work import Ones, Solver, Work
from undrift.problems import Problem

# Methods that cannot be made without hyper-parameters, for the table.
EXAMPLES: dict[str, dict[str, Any]] = {
    "snv": {"alpha": 0.5, "b1": 0.5, "b2": 0.2},
    "triple-momentum": {"L": 1.0, "mu": 0.3},
    "robust-momentum": {"L": 1.0, "kappa": 4.0, "rho": 0.6},
    "pid": {"k_P": -0.5, "k_I": 1.0, "k_D": 0.5},
    "pid-an": {"r": 0.5, "b": 0.5, "K_d": 0.1},
    "asgd": {"delta": 0.5, "kappa": 4.0, "xi": 2.0},
}


@dataclass(frozen=True)
class MethodCost:
    """Of one visit, in multiples of the model: a pair (down, up) for every exchange of a round."""

    spec: Spec
    keeps: float  # by a client between visits
    traffic: list[tuple[float, float]]
    initialisation: list[tuple[float, float]]
    gradients: float  # on minibatches, a local step
    full_gradients: int  # in the round that has most of them
    one_walks: bool  # the last exchange is with one client only
    restarts: bool  # some rounds begin with an exchange with all clients


class _Counting(Ones):
    """A problem of one client that counts the gradients asked of it."""

    gradients = full_gradients = 0

    def grad(self, y: Tensor, minibatches: None, k: int) -> Tensor:
        self.gradients += 1
        return super().grad(y, minibatches, k)

    def full_grad(self, x: Tensor, clients: Sequence[int]) -> Tensor:
        self.full_gradients += 1
        return super().full_grad(x, clients)


def measure_method(spec: Spec, algorithm: Any, D: int = 1000, K: int = 4) -> MethodCost:
    """Play an initialisation round and two rounds with one client and look at what crosses the wire.

    >>> import undrift as ud
    >>> measure_method(ud.GHBM.spec, ud.GHBM()).traffic
    [(2.0, 1.0)]
    """
    if isinstance(algorithm, DependsOnRun):
        algorithm = algorithm.for_run(N=1, S=1, rounds=1000)
    counting = _Counting(torch.zeros(D))
    problem: Problem = counting  # pyright: ignore[reportAssignmentType]
    model = nbytes(counting.x0)
    server, client = algorithm.server(counting.x0), algorithm.client(counting.x0)
    keeps = sum(t.numel() for t in tensors(client)) / D
    seen: dict[int, list[tuple[float, float]]] = {}
    gradients, full_gradients, to, restarts = 0.0, 0, "", False
    for t in (0, 1, 2):
        seen[t] = []
        counting.gradients = counting.full_gradients = 0
        for number, exchange in enumerate(exchanges_of(algorithm, t)):
            work = Work(problem, Solver(lr=0.1), [0], [K], Key(0, t, number), single=True)
            down = exchange.send(server)
            before = counting.gradients
            up, client = exchange.local(down, client, work)
            gradients = max(gradients, (counting.gradients - before) / K) if t else 0.0
            one = torch.ones(1, dtype=torch.float64)
            cohort = Cohort(t, 1, 1, 1.0, one, 0 * one, work.lr, K)
            server = exchange.update(server, up, cohort)
            seen[t].append((nbytes(down) / model, nbytes(up) / model))
            to = exchange.to
            restarts = restarts or (t > 0 and to == "everyone")
        full_gradients = max(full_gradients, counting.full_gradients)
    walks = to == "one"
    return MethodCost(spec, keeps, seen[2], seen[0], gradients, full_gradients, walks, restarts)


def catalogue() -> list[MethodCost]:
    """Every method with its default hyper-parameters, by name.

    >>> [cost.spec.name for cost in catalogue()][:2]
    ['adabest', 'asgd']
    """
    return [measure_by_name(name) for name in sorted(METHODS)]


def measure_by_name(name: str) -> MethodCost:
    """A method with its default hyper-parameters."""
    entry = METHODS[name]
    return measure_method(entry.spec, entry.make(**EXAMPLES.get(name, {})))
