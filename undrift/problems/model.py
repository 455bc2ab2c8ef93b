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

from undrift.data.augment import CropFlip
from undrift.data.partition import Natural, Partition, Parts, Samples, as_parts
from undrift.errors import InvalidInput, unknown
from undrift.keyed import Key, Purpose, generator
from undrift.problems.flat import FlatModel
from undrift.problems.heterogeneity import Heterogeneity, measured, picture
from undrift.problems.weights import client_weights

EVALUATION_BATCH = 2048
FIGURES = ("test", "train", "clients", "gradient")

Loss = Callable[[Any, Tensor], Tensor]
Prepare = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Minibatches:
    """Sample numbers `[S, K, batch]`; where a minibatch is short, `counts` says how many of them are real."""

    samples: Tensor
    counts: Tensor
    ragged: bool
    seeds: Tensor | None  # of dropout, `[S, K]`
    augmentation: Tensor | None  # what was drawn for each sample, `[S, K, batch, ...]`


def federate(
    train: Any,
    test: Any = None,
    *,
    model: nn.Module,
    loss: Loss,
    clients: Partition | Sequence[Sequence[int]] | np.ndarray | Tensor,
    weights: str | Sequence[float] | Tensor = "uniform",
    prepare: Prepare | None = None,
    augment: CropFlip | None = None,
    figures: Sequence[str] = ("test",),
    seed: int = 0,
) -> "ModelProblem":
    """A federation from a model and data.

    train, test   (inputs, targets) as tensors or arrays, a Dataset of such pairs, or what ud.load gives (with its test)
    loss          loss(model(inputs), targets), a mean over samples, as F.cross_entropy
    clients       a partition such as ud.Dirichlet(100, alpha=0.2); or the sample numbers of each client; or a client
                  for every sample
    weights       of clients in the objective: "uniform" (Cheng, Sun, Karimireddy, Zaccone et al.), "samples", i.e.
                  n_i / n (Wang et al.), or numbers.  Every method averages with them.
    prepare       makes model inputs from a batch of stored ones, e.g. images kept as bytes
    augment       ud.CropFlip(): random crops and mirror images in training
    figures       what to record of a model: "test" loss and accuracy (of the training data if there are no others),
                  "train", "clients" (mean and worst tenth), "gradient" (norm of the global objective's)
    seed          of the partition

    >>> import undrift as ud, torch.nn.functional as F
    >>> data = torch.randn(20, 2), torch.arange(20) % 3
    >>> problem = ud.federate(data, model=nn.Linear(2, 3), loss=F.cross_entropy, clients=ud.IID(4))
    >>> problem.N, problem.x0.numel()
    (4, 9)
    """
    natural = test_natural = None
    if hasattr(train, "train") and hasattr(train, "clients"):  # a Data record
        test = train.test if test is None else test
        prepare = prepare or train.prepare
        natural, test_natural, train = train.clients, train.test_clients, train.train
    X, Y = _tensors(train, "train")
    held_out = None if test is None else _tensors(test, "test")
    labels = Y.cpu().numpy() if Y.dim() == 1 and not Y.is_floating_point() else None

    def column(number: int) -> np.ndarray:
        if X.dim() != 2 or not 0 <= number < X.shape[1]:
            raise InvalidInput(f"inputs of shape {list(X.shape)} have no column {number}")
        return X[:, number].numpy()

    samples = Samples(len(X), labels, column, None if natural is None else natural.numpy())
    parts = as_parts(clients, samples, seed)
    for figure in figures:
        if figure not in FIGURES:
            raise unknown("figure", figure, FIGURES)
    return ModelProblem(
        FlatModel(model),
        loss,
        X,
        Y,
        parts,
        held_out,
        _weights(weights, parts.sizes),
        prepare,
        augment,
        tuple(figures),
        test_natural if isinstance(clients, Natural) else None,
    )


class ModelProblem:
    """One copy of the data; a client is a range of an index into it.  Made by `federate`."""

    def __init__(
        self,
        flat: FlatModel,
        loss: Loss,
        X: Tensor,
        Y: Tensor,
        parts: Parts,
        test: tuple[Tensor, Tensor] | None,
        weights: np.ndarray,
        prepare: Prepare | None,
        augment: CropFlip | None,
        figures: tuple[str, ...],
        test_clients: Tensor | None,
    ):
        self.flat, self.loss, self.X, self.Y, self.test = flat, loss, X, Y, test
        self.parts, self.weights, self.figures = parts, weights, figures
        self.prepare, self.augment, self.test_clients = prepare, augment, test_clients
        self.index = torch.as_tensor(parts.index)
        self.x0 = flat.x0
        self._check_fit()

    @property
    def N(self) -> int:
        return self.parts.N

    def size(self, client: int) -> int:
        """How many samples a client has."""
        return int(self.parts.sizes[client])

    def samples(self, client: int) -> Tensor:
        """The numbers of a client's samples."""
        return torch.as_tensor(self.parts.of(client))

    # what engines ask

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1 if batch is None else -(-self.size(client) // batch)

    def draw(
        self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None
    ) -> Minibatches:
        largest = max(self.size(i) for i in clients)
        width = largest if batch is None else min(batch, largest)
        shape = len(clients), max(steps), width
        positions = np.zeros(shape, dtype=np.int64)
        counts = np.ones(shape[:2], dtype=np.int64)  # after a client's last step: anything
        seeds = np.zeros(shape[:2], dtype=np.int64)
        augmentation = None if self.augment is None else np.zeros((*shape, 3), dtype=np.int64)
        for row, (i, K) in enumerate(zip(clients, steps, strict=True)):
            self._draw_one(key, i, K, batch, positions[row], counts[row])
            if self.flat.dropouts or self._hidden_randomness:
                seeds[row, :K] = generator(Purpose.DROPOUT, key, i).integers(2**62, size=K)
            if self.augment is not None and augmentation is not None:
                size = min(batch or self.size(i), self.size(i))
                random = generator(Purpose.AUGMENTATION, key, i)
                augmentation[row, :K, :size] = self.augment.draw(random, (K, size))
        live = np.arange(max(steps)) < np.asarray(steps)[:, None]
        return Minibatches(
            self.index[torch.as_tensor(positions)],
            torch.as_tensor(counts),
            bool((counts[live] != width).any()),
            torch.as_tensor(seeds) if self.flat.dropouts or self._hidden_randomness else None,
            None if augmentation is None else torch.as_tensor(augmentation),
        )

    def _draw_one(
        self, key: Key, i: int, K: int, batch: int | None, positions: np.ndarray, counts: np.ndarray
    ) -> None:
        """Fill in one client's minibatches: pass after pass over its data, each in a new order."""
        n, begin = self.size(i), int(self.parts.starts[i])
        size = n if batch is None else min(batch, n)
        if size == n:  # the whole of it, whose order does not matter
            positions[:K, :n], counts[:K] = begin + np.arange(n), n
            return
        random = generator(Purpose.MINIBATCH, key, i)
        a_pass = self.steps_per_epoch(i, batch)
        for first in range(0, K, a_pass):
            order = begin + random.permutation(n)
            for k in range(first, min(first + a_pass, K)):
                part = order[(k - first) * size : (k - first + 1) * size]
                positions[k, : len(part)], counts[k] = part, len(part)

    def grad(self, y: Tensor, minibatches: Minibatches, k: int) -> Tensor:
        samples, seeds = minibatches.samples[:, k], minibatches.seeds
        drawn = None if minibatches.augmentation is None else minibatches.augmentation[:, k]
        seed = None if seeds is None else seeds[:, k]
        if y.dim() == 1:
            count = int(minibatches.counts[0, k])
            mine = None if drawn is None else drawn[0, :count]
            X = self._inputs(self.X[samples[0, :count]], mine)
            return self._gradient(
                y, X, self.Y[samples[0, :count]], None if seed is None else seed[0]
            )
        self.flat.template.train()
        X, Y = self._inputs(self.X[samples], drawn), self.Y[samples]
        if not minibatches.ragged:
            gradient = vmap(grad(self._mean_loss), in_dims=(0, 0, 0, None if seed is None else 0))
            return gradient(y, X, Y, seed)
        count = minibatches.counts[:, k, None]
        real = (torch.arange(samples.shape[1]) < count).to(y.dtype) / count
        gradient = vmap(
            grad(self._weighted_loss), in_dims=(0, 0, 0, 0, None if seed is None else 0)
        )
        return gradient(y, X, Y, real, seed)

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        """Without dropout or augmentation: the gradient of the objective itself."""
        rows = y.unsqueeze(0) if y.dim() == 1 else y
        self.flat.template.eval()
        found = []
        for row, i in zip(rows, clients, strict=True):
            samples = self.samples(i)
            row = row.detach().requires_grad_()
            value = self._mean_loss(row, self._inputs(self.X[samples]), self.Y[samples])
            found.append(torch.autograd.grad(value, row)[0])
        return found[0] if y.dim() == 1 else torch.stack(found)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        found: dict[str, float] = {}
        for figure in self.figures:
            if figure == "test":
                found |= self._quality(x, *(self.test or (self.X, self.Y)))
            elif figure == "train":
                quality = self._quality(x, self.X, self.Y)
                found |= {f"train_{name}": value for name, value in quality.items()}
            elif figure == "clients":
                found |= self._by_client(x)
            else:
                found |= {"grad_norm": self._gradient_norm(x)}
        return found

    @property
    def engine(self) -> str:
        """Which engine suits the model: over clients, convolutions are slower in a batch than one by one."""
        one_by_one = self.flat.has(nn.modules.conv._ConvNd, nn.RNNBase, nn.TransformerEncoderLayer)
        return "sequential" if one_by_one or self.not_batched else "batched"

    @cached_property
    def not_batched(self) -> str | None:
        """Why this model cannot be computed for several clients at once, if it cannot."""
        if self._hidden_randomness:
            return "it draws random numbers of its own, beside nn.Dropout layers"
        if not self._separable():
            return "its loss is not a mean over samples, so short minibatches cannot be padded"
        try:
            pair = torch.zeros(2, 2, dtype=torch.int64)
            X, Y = self._inputs(self.X[pair]), self.Y[pair]
            self.flat.template.train()
            seed = torch.zeros(2, dtype=torch.int64)
            vmap(grad(self._mean_loss))(self.x0.repeat(2, 1), X, Y, seed)
        except Exception as error:  # torch raises many kinds for what it cannot batch
            return f"torch cannot batch it ({str(error).splitlines()[0]})"
        return None

    # what people ask

    def module(self, x: Tensor) -> nn.Module:
        """The model with these parameters."""
        return self.flat.module(x)

    def heterogeneity(self) -> Heterogeneity:
        """How much clients differ, in numbers."""
        labels = self.Y if self.Y.dim() == 1 and not self.Y.is_floating_point() else None
        return measured(self.parts, None if labels is None else labels.numpy())

    def describe(self) -> None:
        """Print what the federation is made of."""
        samples = f"{len(self.X):,} samples, inputs {list(self.X.shape[1:])}, {self.x0.numel():,} parameters"
        print(f"{self.N:,} clients, {samples}\n{self.heterogeneity()}")

    def plot(self) -> Any:
        """A matplotlib figure: the labels of each client, and the sizes."""
        labels = self.Y.numpy() if self.Y.dim() == 1 and not self.Y.is_floating_point() else None
        return picture(self.parts, labels)

    # how it is computed

    def _inputs(self, stored: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Model inputs from stored ones: augmented, prepared, in the model's dtype."""
        images_are_stored = self.X.dim() == 4
        if drawn is not None and self.augment is not None and images_are_stored:
            stored = self.augment.apply(stored, drawn)
        if self.prepare is not None:
            stored = self.prepare(stored)
            if stored.is_floating_point():
                stored = stored.to(self.x0.dtype)
        if drawn is not None and self.augment is not None and not images_are_stored:
            stored = self.augment.apply(stored, drawn)
        return stored

    def _gradient(self, y: Tensor, X: Tensor, Y: Tensor, seed: Tensor | None) -> Tensor:
        self.flat.template.train()
        y = y.detach().requires_grad_()
        if seed is None or not self._hidden_randomness:
            return torch.autograd.grad(self._mean_loss(y, X, Y, seed), y)[0]
        with torch.random.fork_rng(devices=[]):  # the same minibatch draws the same numbers
            torch.manual_seed(int(seed))
            return torch.autograd.grad(self._mean_loss(y, X, Y, seed), y)[0]

    def _mean_loss(self, y: Tensor, X: Tensor, Y: Tensor, seed: Tensor | None = None) -> Tensor:
        return self.loss(self.flat(y, X, seed), Y)

    def _weighted_loss(
        self, y: Tensor, X: Tensor, Y: Tensor, weight: Tensor, seed: Tensor | None = None
    ) -> Tensor:
        return self._losses(self.flat(y, X, seed), Y) @ weight

    def _losses(self, output: Any, Y: Tensor) -> Tensor:
        """The loss of every sample."""
        return vmap(lambda o, t: self.loss(o.unsqueeze(0), t.unsqueeze(0)))(output, Y)

    def _in_batches(self, n: int) -> list[slice]:
        return [slice(i, min(i + EVALUATION_BATCH, n)) for i in range(0, n, EVALUATION_BATCH)]

    def _quality(self, x: Tensor, X: Tensor, Y: Tensor) -> dict[str, float]:
        self.flat.template.eval()
        total, right, counted = 0.0, 0, 0
        with torch.no_grad():
            for some in self._in_batches(len(X)):
                output, target = self.flat(x, self._inputs(X[some])), Y[some]
                total += float(self.loss(output, target)) * len(target)
                if _is_classification(output, target):
                    right += int((output.argmax(1) == target).sum())
                    counted += target.numel()
        return {"loss": total / len(X)} | ({"accuracy": right / counted} if counted else {})

    def _by_client(self, x: Tensor) -> dict[str, float]:
        """Quality client by client: on its test samples where the data say whose they are, else on its own."""
        if self.test is not None and self.test_clients is not None:
            X, Y = self.test
            names = self.test_clients.numpy()
            order = np.argsort(names, kind="stable")
            found, counts = np.unique(names[order], return_counts=True)
            known = found >= 0
            parts = Parts(order, (np.cumsum(counts) - counts)[known], counts[known])
        else:
            X, Y, parts = self.X, self.Y, self.parts
        self.flat.template.eval()
        losses, rights = [], []
        with torch.no_grad():
            for some in self._in_batches(len(X)):
                output = self.flat(x, self._inputs(X[some]))
                losses.append(self._losses(output, Y[some]).double())
                if _is_classification(output, Y[some]):
                    right = (output.argmax(1) == Y[some]).double()
                    rights.append(right.flatten(1).mean(1) if right.dim() > 1 else right)
        figures = _mean_and_worst("client_loss", parts, torch.cat(losses).numpy(), worst="high")
        if rights:
            values = torch.cat(rights).numpy()
            figures |= _mean_and_worst("client_accuracy", parts, values, worst="low")
        return figures

    def _gradient_norm(self, x: Tensor) -> float:
        """Of the whole objective sum_i p_i f_i, each sample with the weight p_i / n_i."""
        weight = np.repeat(np.asarray(self.weights) / self.parts.sizes, self.parts.sizes)
        index = np.concatenate([self.parts.of(i) for i in range(self.N)])
        self.flat.template.eval()
        total = torch.zeros_like(x)
        for some in self._in_batches(len(index)):
            y, samples = x.detach().requires_grad_(), torch.as_tensor(index[some])
            w = torch.as_tensor(weight[some], dtype=x.dtype)
            X = self._inputs(self.X[samples])
            total += torch.autograd.grad(self._weighted_loss(y, X, self.Y[samples], w), y)[0]
        return float(total.norm())

    def _separable(self) -> bool:
        some = slice(0, min(8, len(self.X)))
        self.flat.template.eval()
        try:
            with torch.no_grad():
                output = self.flat(self.x0, self._inputs(self.X[some]))
                whole = self.loss(output, self.Y[some])
                return torch.allclose(self._losses(output, self.Y[some]).mean(), whole, rtol=1e-3)
        except Exception:  # a loss that does not take single samples
            return False

    def _check_fit(self) -> None:
        if self.prepare is None and self.X.is_floating_point() and self.X.dtype != self.x0.dtype:
            raise InvalidInput(
                f"the data are {self.X.dtype} and the model {self.x0.dtype}: "
                "convert one, e.g. data.float() or model.double()"
            )
        some = torch.arange(min(2, len(self.X)))
        self._hidden_randomness = False
        before = self.flat.buffers()
        try:
            X, Y = self._inputs(self.X[some]), self.Y[some]
            value = self._mean_loss(self.x0, X, Y)
            scalar = isinstance(value, Tensor) and value.numel() == 1 and bool(value.isfinite())
            if not scalar:
                raise InvalidInput(
                    f"loss(model(inputs), targets) must be one finite number, got {value}"
                )
            once, again = (self._gradient(self.x0, X, Y, torch.tensor(0)) for _ in range(2))
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(
                f"model and loss do not fit data of shape {list(self.X.shape)} with targets of shape "
                f"{list(self.Y.shape)}, {self.Y.dtype}: {str(error).splitlines()[0]}"
            ) from error
        self._hidden_randomness = not torch.equal(once, again)
        for name, buffer in self.flat.buffers().items():
            if not torch.equal(buffer, before[name]):
                raise InvalidInput(
                    f"the model changes its buffer {name!r} in training, which is not a parameter and would be lost "
                    "between clients: remove it or make it constant"
                )


def _weights(weights: str | Sequence[float] | Tensor, sizes: np.ndarray) -> np.ndarray:
    if not isinstance(weights, str):
        return client_weights(weights, len(sizes))
    if weights == "uniform":
        return client_weights(None, len(sizes))
    if weights == "samples":
        return sizes / sizes.sum()
    raise InvalidInput(f"weights are 'uniform', 'samples' or numbers, got {weights!r}")


def _mean_and_worst(name: str, parts: Parts, values: np.ndarray, worst: str) -> dict[str, float]:
    each = np.sort([values[parts.of(i)].mean() for i in range(parts.N)])
    tenth = max(1, parts.N // 10)
    of_worst = each[:tenth] if worst == "low" else each[-tenth:]
    return {name: float(each.mean()), f"{name}_worst_tenth": float(of_worst.mean())}


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
    if X.dim() == 0 or Y.dim() == 0 or len(X) != len(Y) or len(X) == 0:
        counts = [len(part) if part.dim() else 0 for part in (X, Y)]
        raise InvalidInput(
            f"{name}: {counts[0]} inputs and {counts[1]} targets: give one target an input"
        )
    for what, values in (("inputs", X), ("targets", Y)):
        if values.is_floating_point():
            bad = ~values.reshape(len(values), -1).isfinite().all(1)
            if bad.any():
                first = int(bad.nonzero()[0])
                raise InvalidInput(
                    f"{name}: {int(bad.sum())} {what} have NaN or Inf, the first is sample {first}"
                )
    return X, Y
