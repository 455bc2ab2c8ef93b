"""A torch model on data that are spread over clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils.data import Dataset

from undrift.data.partition import Partition, as_parts
from undrift.errors import InvalidInput
from undrift.keyed import Key, Purpose, generator
from undrift.problems.flat import FlatModel
from undrift.problems.weights import client_weights

EVALUATION_BATCH = 2048

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Minibatches:
    """Sample numbers `[S, K, batch]`; where a minibatch is short, `counts` says how many of them are real."""

    samples: Tensor
    counts: Tensor
    ragged: bool
    dropout: list[np.ndarray] | None = None  # a seed a step


def federate(
    train: Any,
    test: Any = None,
    *,
    model: nn.Module,
    loss: Loss,
    clients: Partition | Sequence[Sequence[int]] | np.ndarray | Tensor,
    weights: str | Sequence[float] | Tensor = "uniform",
    seed: int = 0,
) -> "ModelProblem":
    """A federation from a model and data.

    train, test   (inputs, targets) as tensors or arrays, or a Dataset of such pairs
    loss          loss(model(inputs), targets), a mean over samples, as F.cross_entropy
    clients       a partition such as ud.Dirichlet(100, alpha=0.2); or the sample numbers of each client; or a client
                  for every sample
    weights       of clients in the objective: "uniform" (Cheng, Sun, Karimireddy, Zaccone et al.), "samples", i.e.
                  n_i / n (Wang et al.), or numbers.  Every method averages with them.

    >>> import undrift as ud, torch.nn.functional as F
    >>> data = torch.randn(20, 2), torch.arange(20) % 3
    >>> problem = ud.federate(data, model=nn.Linear(2, 3), loss=F.cross_entropy, clients=ud.IID(4))
    >>> problem.N, problem.x0.numel()
    (4, 9)
    """
    X, Y = _tensors(train, "train")
    labels = Y.cpu().numpy() if Y.dim() == 1 and not Y.is_floating_point() else None
    parts = as_parts(clients, len(X), labels, seed)  # pyright: ignore[reportArgumentType]
    held_out = None if test is None else _tensors(test, "test")
    if isinstance(weights, str):
        if weights not in ("uniform", "samples"):
            raise InvalidInput(f"weights are 'uniform', 'samples' or numbers, got {weights!r}")
        sizes = torch.tensor([len(part) for part in parts], dtype=torch.float64)
        weights = torch.ones_like(sizes) if weights == "uniform" else sizes
        weights = weights / weights.sum()
    return ModelProblem(model, loss, X, Y, parts, held_out, client_weights(weights, len(parts)))


class ModelProblem:
    """One copy of the data; a client is a range of an index into it.  Made by `federate`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        X: Tensor,
        Y: Tensor,
        parts: Sequence[np.ndarray],
        test: tuple[Tensor, Tensor] | None,
        weights: tuple[float, ...],
    ):
        self.flat, self.loss, self.X, self.Y, self.test = FlatModel(model), loss, X, Y, test
        self.weights = weights
        self.index = torch.as_tensor(np.concatenate(parts))
        self.ends = np.cumsum([0, *(len(part) for part in parts)])
        self.x0 = self.flat.x0
        self._check_fit()

    @property
    def N(self) -> int:
        return len(self.weights)

    def size(self, client: int) -> int:
        """How many samples a client has."""
        return int(self.ends[client + 1] - self.ends[client])

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1 if batch is None else -(-self.size(client) // batch)

    def draw(
        self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Minibatches:
        largest = max(self.size(i) for i in clients)
        width = largest if batch is None else min(batch, largest)
        samples = np.zeros((len(clients), max(steps), width), dtype=np.int64)
        counts = np.ones(
            (len(clients), max(steps)), dtype=np.int64
        )  # after its last step: anything
        for row, (i, K) in enumerate(zip(clients, steps, strict=True)):
            self._draw_one(key, i, K, batch, samples[row], counts[row])
        live = np.arange(max(steps)) < np.asarray(steps)[:, None]
        ragged = bool((counts[live] != width).any())
        dropout = [_seeds(key, i, K) for i, K in zip(clients, steps, strict=True)]
        return Minibatches(
            self.index[torch.as_tensor(samples)],
            torch.as_tensor(counts),
            ragged,
            dropout if self.flat.dropout else None,
        )

    def _draw_one(
        self, key: Key, i: int, K: int, batch: int | None, samples: np.ndarray, counts: np.ndarray
    ) -> None:
        """Fill in one client's minibatches: pass after pass over its data, each in a new order."""
        n, begin = self.size(i), int(self.ends[i])
        size = n if batch is None else min(batch, n)
        if size == n:  # the whole of it, whose order does not matter
            samples[:K, :n], counts[:K] = begin + np.arange(n), n
            return
        random = generator(Purpose.MINIBATCH, key, i)
        a_pass = self.steps_per_epoch(i, batch)
        for first in range(0, K, a_pass):
            order = begin + random.permutation(n)
            for k in range(first, min(first + a_pass, K)):
                part = order[(k - first) * size : (k - first + 1) * size]
                samples[k, : len(part)], counts[k] = part, len(part)

    def grad(self, y: Tensor, minibatches: Minibatches, k: int) -> Tensor:
        samples = minibatches.samples[:, k]
        if y.dim() == 1:
            mine = samples[0, : int(minibatches.counts[0, k])]
            if minibatches.dropout is None:
                return self._gradient(y, mine)
            with torch.random.fork_rng(devices=[]):  # the same minibatch drops the same units
                torch.manual_seed(int(minibatches.dropout[0][k]))
                return self._gradient(y, mine)
        X, Y = self.X[samples], self.Y[samples]
        if not minibatches.ragged:
            return vmap(grad(self._mean_loss))(y, X, Y)
        count = minibatches.counts[:, k, None]
        real = torch.arange(samples.shape[1]) < count
        return vmap(grad(self._weighted_loss))(y, X, Y, real.to(y.dtype) / count)

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        if y.dim() == 1:
            return self._gradient(y, self._samples(clients[0]))
        rows = [self._gradient(row, self._samples(i)) for row, i in zip(y, clients, strict=True)]
        return torch.stack(rows)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        X, Y = (self.X, self.Y) if self.test is None else self.test
        self.flat.template.eval()
        total, right, counted = 0.0, 0, 0
        with torch.no_grad():
            for first in range(0, len(X), EVALUATION_BATCH):
                target = Y[first : first + EVALUATION_BATCH]
                output = self.flat(x, X[first : first + EVALUATION_BATCH])
                total += float(self.loss(output, target)) * len(target)
                if _is_classification(output, target):
                    right += int((output.argmax(1) == target).sum())
                    counted += target.numel()
        figures = {"loss": total / len(X)}
        return figures | ({"accuracy": right / counted} if counted else {})

    def module(self, x: Tensor) -> nn.Module:
        """The model with these parameters."""
        return self.flat.module(x)

    @property
    def engine(self) -> str:
        """Which engine suits the model: over clients, convolutions are slower in a batch than one by one."""
        one_by_one = self.flat.has(nn.modules.conv._ConvNd, nn.RNNBase, nn.TransformerEncoderLayer)
        return "sequential" if one_by_one or self.not_batched else "batched"

    @cached_property
    def not_batched(self) -> str | None:
        """Why this model cannot be computed for several clients at once, if it cannot."""
        if self.flat.dropout:
            return "its dropout would draw other units than engine 'sequential' does"
        if not self._separable():
            return "its loss is not a mean over samples, so short minibatches cannot be padded"
        try:
            pair = torch.zeros(2, 2, dtype=torch.int64)
            vmap(grad(self._mean_loss))(self.x0.repeat(2, 1), self.X[pair], self.Y[pair])
        except Exception as error:  # torch raises many kinds for what it cannot batch
            return f"torch cannot batch it ({str(error).splitlines()[0]})"
        return None

    def _samples(self, client: int) -> Tensor:
        return self.index[self.ends[client] : self.ends[client + 1]]

    def _gradient(self, y: Tensor, samples: Tensor) -> Tensor:
        self.flat.template.train()
        y = y.detach().requires_grad_()
        return torch.autograd.grad(self._mean_loss(y, self.X[samples], self.Y[samples]), y)[0]

    def _mean_loss(self, y: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        return self.loss(self.flat(y, X), Y)

    def _weighted_loss(self, y: Tensor, X: Tensor, Y: Tensor, weight: Tensor) -> Tensor:
        return self._losses(self.flat(y, X), Y) @ weight

    def _losses(self, output: Tensor, Y: Tensor) -> Tensor:
        return vmap(lambda o, t: self.loss(o.unsqueeze(0), t.unsqueeze(0)))(output, Y)

    def _separable(self) -> bool:
        some = slice(0, min(8, len(self.X)))
        try:
            with torch.no_grad():
                output = self.flat(self.x0, self.X[some])
                whole = self.loss(output, self.Y[some])
                return torch.allclose(self._losses(output, self.Y[some]).mean(), whole, rtol=1e-3)
        except Exception:  # a loss that does not take single samples
            return False

    def _check_fit(self) -> None:
        if self.X.is_floating_point() and self.X.dtype != self.x0.dtype:
            raise InvalidInput(
                f"the data are {self.X.dtype} and the model {self.x0.dtype}: "
                "convert one, e.g. data.float() or model.double()"
            )
        some = slice(0, min(2, len(self.X)))
        try:
            with torch.no_grad():
                value = self.loss(self.flat(self.x0, self.X[some]), self.Y[some])
        except Exception as error:
            raise InvalidInput(
                f"model and loss do not fit data of shape {list(self.X.shape)} with targets of shape "
                f"{list(self.Y.shape)}, {self.Y.dtype}: {str(error).splitlines()[0]}"
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1 or not bool(value.isfinite()):
            raise InvalidInput(
                f"loss(model(inputs), targets) must be one finite number, got {value}"
            )


def _seeds(key: Key, client: int, K: int) -> np.ndarray:
    return generator(Purpose.DROPOUT, key, client).integers(2**63, size=K)


def _is_classification(output: Any, target: Tensor) -> bool:
    fits = isinstance(output, Tensor) and not target.is_floating_point()
    return fits and output.dim() == target.dim() + 1 and output.shape[0] == target.shape[0]


def _tensors(data: Any, name: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets as two tensors, checked."""
    if isinstance(data, Dataset):
        samples = [data[i] for i in range(len(data))]  # pyright: ignore[reportArgumentType]
        X = torch.stack([torch.as_tensor(x) for x, _ in samples])
        Y = torch.stack([torch.as_tensor(y) for _, y in samples])
    elif isinstance(data, (tuple, list)) and len(data) == 2:
        X, Y = (torch.as_tensor(part) for part in data)
    else:
        raise InvalidInput(
            f"{name} must be (inputs, targets) or a Dataset, got {type(data).__name__}"
        )
    if len(X) != len(Y) or len(X) == 0:
        raise InvalidInput(
            f"{name}: {len(X)} inputs and {len(Y)} targets: give one target an input"
        )
    for what, values in (("inputs", X), ("targets", Y)):
        if values.is_floating_point():
            bad = ~values.flatten(1).isfinite().all(1) if values.dim() > 1 else ~values.isfinite()
            if bad.any():
                first = int(bad.nonzero()[0])
                raise InvalidInput(
                    f"{name}: {int(bad.sum())} {what} have NaN or Inf, the first is sample {first}"
                )
    return X, Y
