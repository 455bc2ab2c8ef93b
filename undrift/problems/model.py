"""A torch model on data that are spread over clients."""

import random as Random
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils.data import Dataset

from undrift.data.augment import CropFlip
from undrift.data.partition import Natural, Partition, Parts, Samples, as_parts, by_name
from undrift.data.sets import Data
from undrift.errors import InvalidInput, unknown
from undrift.hyper import check_value
from undrift.keyed import Key, Purpose, generator
from undrift.problems.flat import FlatModel
from undrift.problems.heterogeneity import Heterogeneity, measured, picture, summary
from undrift.problems.minibatches import Minibatches, Source, draw, sources
from undrift.problems.weights import client_weights

EVALUATION_BATCH = 2048
FIGURES = ("test", "train", "clients", "gradient")

Loss = Callable[[Any, Tensor], Tensor]
Prepare = Callable[[Tensor], Tensor]


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
    figures: str | Sequence[str] = ("test",),
    test_samples: int | None = None,
    seed: int = 0,
) -> "ModelProblem":
    """A federation from a model and data.

    train, test   (inputs, targets) as tensors or arrays, a Dataset of such pairs, or what ud.load gives (with its test)
    loss          loss(model(inputs), targets), a mean over samples, as F.cross_entropy
    clients       a partition such as ud.Dirichlet(100, alpha=0.2); or the sample numbers of each client; or a client
                  for every sample
    weights       of clients in the objective: "uniform" (Cheng, Sun, Karimireddy, Zaccone et al.), "samples", i.e.
                  n_i / n (Wang et al.), or numbers.  Every method averages with them.
    prepare       makes model inputs `[b, ...]` from a batch of stored ones, e.g. images kept as bytes
    augment       ud.CropFlip(): random crops and mirror images in training
    figures       what to record of a model: "test" loss and accuracy (of the training data if there are no others),
                  "train", "clients" (mean and worst tenth), "gradient" (norm of the global objective's)
    test_samples  evaluate on so many of the test samples, drawn once
    seed          of the partition

    >>> import undrift as ud, torch.nn.functional as F
    >>> data = torch.randn(20, 2), torch.arange(20) % 3
    >>> problem = ud.federate(data, model=nn.Linear(2, 3), loss=F.cross_entropy, clients=ud.IID(4))
    >>> problem.N, problem.x0.numel()
    (4, 9)
    """
    check_value("federate", "seed", seed, int, within=f"[0, {2**64})")
    check_value("federate", "test_samples", test_samples, int, None, within="[1, inf)")
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be an nn.Module object, got {model!r}")
    natural = test_natural = None
    if isinstance(train, Data):
        if test is None:  # a test set of one's own has nothing to do with the data's test clients
            test, test_natural = train.test, train.test_clients
        prepare = prepare or train.prepare
        natural, train = train.clients, train.train
    X, Y = _tensors(train, "train")
    held_out = (
        None if test is None else _tensors(test.train if isinstance(test, Data) else test, "test")
    )
    if held_out is not None and test_samples is not None and test_samples < len(held_out[0]):
        kept = torch.as_tensor(
            np.sort(
                generator(Purpose.DATA, Key(seed, 0)).permutation(len(held_out[0]))[:test_samples]
            )
        )
        held_out = held_out[0][kept], held_out[1][kept]
        test_natural = None if test_natural is None else test_natural[kept]

    def column(number: int) -> np.ndarray:
        if X.dim() != 2 or not 0 <= number < X.shape[1]:
            raise InvalidInput(f"inputs of shape {list(X.shape)} have no column {number}")
        return X[:, number].numpy()

    samples = Samples(len(X), _labels(Y), column, None if natural is None else natural.numpy())
    parts = as_parts(clients, samples, seed)
    for figure in (figures := [figures] if isinstance(figures, str) else figures):
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
        _renumbered(test_natural, parts) if isinstance(clients, Natural) else None,
    )


class ModelProblem:
    """One copy of the data; a client is a range of an index into it.  Made by `federate`."""

    reopen: "Callable[[], ModelProblem] | None" = None  # reads the same on another machine

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
        return self._draw(sources(self.parts, clients, repeat(key)), steps, batch)

    def draw_each(
        self,
        key: Key,
        rounds: Sequence[int],
        clients: Sequence[int],
        steps: Sequence[int],
        batch: int | None,
    ) -> Minibatches:
        """The same where every client has a round of its own."""
        keys = [replace(key, round=t) for t in rounds]
        return self._draw(sources(self.parts, clients, keys), steps, batch)

    def _draw(self, each: Sequence[Source], steps: Sequence[int], batch: int | None) -> Minibatches:
        return draw(each, steps, batch, self.seeded, self.augment, self.index.__getitem__)

    @property
    def seeded(self) -> bool:
        """Whether the model draws random numbers, for which every minibatch has a seed."""
        return bool(self.flat.dropouts) or self._hidden_randomness

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
        counts = minibatches.counts[:, k]
        found = torch.zeros_like(y)
        for count in counts.unique().tolist():  # short minibatches apart: nothing is padded
            if count == 0:  # these clients are done
                continue
            rows = (counts == count).nonzero().flatten()
            # As in the batched engine: a batch of one client takes other kernels, so a lone one is computed twice.
            here = rows.repeat(2) if len(rows) == 1 else rows
            which = samples[here, :count]
            X = self._inputs(self.X[which], None if drawn is None else drawn[here, :count])
            seeds_here = None if seed is None else seed[here]
            found[rows] = self._gradients(y[here], X, self.Y[which], seeds_here)[: len(rows)]
        return found

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        """Without dropout or augmentation: the gradient of the objective itself.

        Of a client with more than EVALUATION_BATCH samples it is put together from parts, which takes the loss to be a
        mean over samples.
        """
        rows = y.unsqueeze(0) if y.dim() == 1 else y
        found = []
        for row, i in zip(rows, clients, strict=True):
            mine, total = self.samples(i), torch.zeros_like(row)
            for some in self._in_batches(len(mine)):
                X, Y = self._inputs(self.X[mine[some]]), self.Y[mine[some]]
                part = self._gradient(row, X, Y, torch.tensor(0), training=False)
                total += part * (len(Y) / len(mine))
            found.append(total)
        return found[0] if y.dim() == 1 else torch.stack(found)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        found: dict[str, float] = {}
        for figure in self.figures:
            if figure == "test":
                found |= self._quality(x, *(self.test or self._held))
            elif figure == "train":
                quality = self._quality(x, *self._held)
                found |= {f"train_{name}": value for name, value in quality.items()}
            elif figure == "clients":
                found |= self._by_client(x)
            else:
                found |= {"grad_norm": self._gradient_norm(x)}
        return found

    @cached_property
    def _held(self) -> tuple[Tensor, Tensor]:
        """The training samples that some client holds."""
        held = np.zeros(len(self.X), dtype=bool)
        edges = np.zeros(len(self.parts.index) + 1, dtype=np.int64)
        np.add.at(edges, self.parts.starts, 1)
        np.add.at(edges, self.parts.starts + self.parts.sizes, -1)
        held[self.parts.index[np.cumsum(edges)[:-1] > 0]] = True
        if held.all():
            return self.X, self.Y
        which = torch.as_tensor(np.flatnonzero(held))
        return self.X[which], self.Y[which]

    @cached_property
    def _convolves(self) -> bool:
        return self.flat.has(nn.modules.conv._ConvNd)

    @property
    def engine(self) -> str:
        """Which engine suits the model: over clients, convolutions are slower in a batch than one by one."""
        return "sequential" if self._convolves or self.not_batched else "batched"

    def batch_bytes(self, batch: int | None) -> int:
        """What one client's minibatch takes while it is computed: inputs, and activations by rule of thumb."""
        return 4 * self._width(batch) * self._inputs(self.X[:1]).nbytes

    @cached_property
    def not_batched(self) -> str | None:
        """Why this model cannot be computed for several clients at once, if it cannot."""
        if self._hidden_randomness:
            return "it draws random numbers of its own, beside nn.Dropout layers"
        if self.flat.has(nn.RNNBase):
            return "torch has no batching rule for recurrent layers"
        try:
            pair = torch.zeros(2, 2, dtype=torch.int64)
            X, Y = self._inputs(self.X[pair]), self.Y[pair]
            self._gradients(self.x0.repeat(2, 1), X, Y, torch.zeros(2, dtype=torch.int64))
        except Exception as error:  # torch raises many kinds for what it cannot batch
            return f"torch cannot batch it ({str(error).splitlines()[0]})"
        return None

    # what the compiled engine asks

    @property
    def pieces(self) -> list[int]:
        """The sizes of the parameters, in the order in which they lie in a vector."""
        return self.flat.sizes

    def resident(self) -> tuple[Tensor, Tensor]:
        """What gradients read besides minibatches."""
        return self.X, self.Y

    def inputs(
        self, minibatches: Minibatches, K: int, batch: int | None
    ) -> list[tuple[Tensor | None, ...]]:
        """What `grad_of` is given, step by step: samples, their shares in the mean if some are short, seeds, crops."""
        minibatches = minibatches.widened(self._width(batch))
        shares = None
        if not minibatches.whole:
            counts = minibatches.counts.unsqueeze(2)
            numbers = torch.arange(minibatches.samples.shape[2], device=counts.device)
            shares = (numbers < counts) / counts.clamp(min=1).to(self.x0.dtype)
        each = (minibatches.samples, shares, minibatches.seeds, minibatches.augmentation)
        # contiguous, so that a step's tensors are laid out alike whatever the number of steps
        split = [[None] * K if x is None else x.transpose(0, 1).contiguous().unbind() for x in each]
        return list(zip(*split, strict=True))

    def _width(self, batch: int | None) -> int:
        """Samples in the widest minibatch of any client."""
        return self._largest if batch is None else min(batch, self._largest)

    @cached_property
    def _largest(self) -> int:
        """Samples of the largest client: looked up once, since it takes as long as there are clients."""
        return int(self.parts.sizes.max())

    def grad_of(
        self, y: Tensor, resident: Sequence[Tensor], minibatch: Sequence[Tensor | None]
    ) -> Tensor:
        """The gradient as a function of nothing but tensors: `[S, D]`, every client on its minibatch."""
        samples, shares, seeds, drawn = minibatch
        assert samples is not None
        X, Y = self._inputs(resident[0][samples], drawn), resident[1][samples]
        loss: Callable[..., Tensor] = self._mean_loss
        given: list[Any] = [X, Y, seeds]
        if shares is not None:
            loss, given = self._shared_loss, [*given, shares]
        self.flat.template.train()
        if len(y) > 1:
            each = (0, *(None if x is None else 0 for x in given))
            return vmap(grad(loss), in_dims=each)(y, *given)
        # alone, without vmap, which would have it laid out otherwise
        given = [None if x is None else x.squeeze(0) for x in given]
        given[0] = self._laid_out(given[0])
        return grad(loss)(y.view(-1), *given).view(1, -1)

    def _shared_loss(
        self, y: Tensor, X: Tensor, Y: Tensor, seed: Tensor | None, shares: Tensor
    ) -> Tensor:
        """The mean loss of those samples that have a share: a short minibatch filled up with others."""
        each = vmap(lambda out, target: self.loss(out.unsqueeze(0), target.unsqueeze(0)))
        return shares @ each(self.flat(y, X, seed), Y).to(shares.dtype)

    def not_compiled(self, minibatch: Sequence[Tensor | None]) -> str | None:
        """Why such minibatches cannot be computed by a compiled step, if they cannot."""
        return self.not_batched or (self._not_a_mean if minibatch[1] is not None else None)

    @cached_property
    def _not_a_mean(self) -> str | None:
        """Why the loss of a short minibatch cannot be found in a full one, if it cannot."""
        if not self.Y.is_floating_point() and bool((self.Y < 0).any()):
            return "some targets are negative, which a loss may ignore, and minibatches are of unequal size"
        some = torch.arange(4).remainder(len(self.X)).unsqueeze(0)
        seed = torch.zeros(1, dtype=torch.int64) if self.flat.dropouts else None
        shares = torch.tensor([[1, 1, 1, 0]], dtype=self.x0.dtype) / 3
        y, X, Y = self.x0.unsqueeze(0), self._inputs(self.X[some]), self.Y[some]
        padded = self.grad_of(y, self.resident(), (some, shares, seed, None))
        short = self._gradients(y, X[:, :3], Y[:, :3], seed)
        off = float((padded - short).norm() / short.norm().clamp(min=1e-12))
        if off > 1e3 * torch.finfo(self.x0.dtype).eps:
            return "the loss of a minibatch is no mean over its samples, and minibatches are of unequal size"
        return None

    # what people ask

    @property
    def not_shared(self) -> str | None:
        """Why threads cannot compute clients side by side, if they cannot."""
        return (
            "its random numbers are torch's, which threads share"
            if self._hidden_randomness
            else None
        )

    def twin(self) -> "ModelProblem":
        """The same problem with a model of its own, for another thread."""
        other = copy(self)
        other.flat = deepcopy(self.flat)
        return other

    def module(self, x: Tensor) -> nn.Module:
        """The model with these parameters."""
        return self.flat.module(x)

    def heterogeneity(self) -> Heterogeneity:
        """How much clients differ, in numbers."""
        return measured(self.parts, _labels(self.Y))

    def describe(self) -> None:
        """Print what the federation is made of."""
        samples = f"{len(self._held[0]):,} samples, inputs {list(self.X.shape[1:])}, {self.x0.numel():,} parameters"
        print(f"{self.N:,} clients, {samples}\n{self.heterogeneity()}")

    def summary(self) -> dict[str, Any]:
        """What the federation is made of, as JSON holds it."""
        about = {"clients": self.N, "samples": len(self._held[0]), "inputs": list(self.X.shape[1:])}
        return about | {"parameters": self.x0.numel()} | summary(self.parts, _labels(self.Y))

    def plot(self) -> Any:
        """A matplotlib figure: the labels of each client, and the sizes."""
        return picture(self.parts, _labels(self.Y))

    # how it is computed

    def _inputs(self, stored: Tensor, drawn: Tensor | None = None) -> Tensor:
        """Model inputs from stored ones: augmented, prepared, in the model's dtype."""
        lead = stored.shape[: stored.dim() - self.X.dim() + 1]
        batch = stored.reshape(-1, *self.X.shape[1:])  # one batch, whatever the engine
        flat = None if drawn is None else drawn.reshape(-1, drawn.shape[-1])
        images_are_stored = self.X.dim() == 4  # else they are what prepare makes
        if flat is not None and self.augment is not None and images_are_stored:
            batch = self.augment.apply(batch, flat)
        if self.prepare is not None:
            batch = self.prepare(batch)
            if batch.is_floating_point():
                batch = batch.to(self.x0.dtype)
        if flat is not None and self.augment is not None and not images_are_stored:
            batch = self.augment.apply(batch, flat)
        return batch.reshape(*lead, *batch.shape[1:])

    def _gradient(
        self, y: Tensor, X: Tensor, Y: Tensor, seed: Tensor | None, training: bool = True
    ) -> Tensor:
        """Of one client."""
        self.flat.template.train(training)
        X, y = self._laid_out(X), y.detach().requires_grad_()
        if seed is None or not self._hidden_randomness:
            with torch.enable_grad():
                return torch.autograd.grad(self._mean_loss(y, X, Y, seed), y)[0]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(int(seed))  # the same minibatch draws the same numbers
            return torch.autograd.grad(self._mean_loss(y, X, Y, seed), y)[0]

    def _laid_out(self, X: Tensor) -> Tensor:
        """A minibatch of one client, laid out as convolutions are fastest."""
        last = X.dim() == 4 and self._convolves
        return X.contiguous(memory_format=torch.channels_last) if last else X

    def _gradients(self, y: Tensor, X: Tensor, Y: Tensor, seed: Tensor | None) -> Tensor:
        """Of several clients with minibatches of one size."""
        self.flat.template.train()
        each = (0, 0, 0, None if seed is None else 0)
        return vmap(grad(self._mean_loss), in_dims=each)(y, X, Y, seed)

    def _mean_loss(self, y: Tensor, X: Tensor, Y: Tensor, seed: Tensor | None = None) -> Tensor:
        return self.loss(self.flat(y, X, seed), Y)

    def _in_batches(self, n: int) -> list[slice]:
        return [slice(i, min(i + EVALUATION_BATCH, n)) for i in range(0, n, EVALUATION_BATCH)]

    def _quality(self, x: Tensor, X: Tensor, Y: Tensor) -> dict[str, float]:
        self.flat.template.eval()
        total, weight, right, counted = 0.0, 0, 0, 0
        with torch.no_grad():
            for some in self._in_batches(len(X)):
                output, target = self.flat(x, self._inputs(X[some])), Y[some]
                # negative integers are targets to be ignored
                count = len(target) if target.is_floating_point() else int((target >= 0).sum())
                if count == 0:
                    continue
                total, weight = total + float(self.loss(output, target)) * count, weight + count
                if _is_classification(output, target):
                    right += int((output.argmax(1) == target).sum())
                    counted += count
        return {"loss": total / max(weight, 1)} | ({"accuracy": right / counted} if counted else {})

    def _by_client(self, x: Tensor) -> dict[str, float]:
        """Quality client by client: on its test samples where the data say whose they are, else on its own."""
        X, Y, parts = self.X, self.Y, self.parts
        if self.test is not None and self.test_clients is not None:
            known = self.test_clients >= 0
            if known.any():
                X, Y = self.test[0][known], self.test[1][known]
                parts = by_name(self.test_clients[known].numpy())
        found = [self._quality(x, X[part], Y[part]) for part in map(parts.of, range(parts.N))]
        figures = _mean_and_worst("client_loss", [f["loss"] for f in found], worst="high")
        if "accuracy" in found[0]:
            rates = [f["accuracy"] for f in found]
            figures |= _mean_and_worst("client_accuracy", rates, worst="low")
        return figures

    def _gradient_norm(self, x: Tensor) -> float:
        """Of the whole objective sum_i p_i f_i."""
        total = torch.zeros_like(x)
        for i, p in enumerate(self.weights):
            total += float(p) * self.full_grad(x, [i])
        return float(total.norm())

    def _check_fit(self) -> None:
        """Try model and loss on a few samples, and look what a training step does besides."""
        self._hidden_randomness = False
        self._check_inputs()
        before, random = self.flat.buffers(), torch.get_rng_state()
        others = _other_randomness()
        self._try(self.X, self.Y, "")
        self._hidden_randomness = not torch.equal(random, torch.get_rng_state())
        torch.set_rng_state(random)
        if others != _other_randomness() and self._draws_elsewhere():
            raise InvalidInput(
                "the model draws from numpy's or Python's random numbers, which cannot be keyed: use torch's"
            )
        if self.test is not None:
            self._try(*self.test, "test ")
        for name, buffer in self.flat.buffers().items():
            if not torch.equal(buffer, before[name]):
                raise InvalidInput(
                    f"the model changes its buffer {name!r} in training, which is not a parameter and would be lost "
                    "between clients: remove it or make it constant"
                )

    def _draws_elsewhere(self) -> bool:
        """Whether a training step draws numpy's or Python's numbers every time: once it may be another thread that did."""
        for _ in range(5):
            before, random = _other_randomness(), torch.get_rng_state()
            self._try(self.X, self.Y, "")
            torch.set_rng_state(random)
            if before == _other_randomness():
                return False
        return True

    def _check_inputs(self) -> None:
        """What makes inputs of stored samples must be repeatable, and augmentation must be given images."""
        some = self.X[[0, len(self.X) - 1]]
        once, again = self._inputs(some), self._inputs(some)
        if not torch.equal(once, again):
            raise InvalidInput(
                "prepare must make the same of the same sample: use augment for chance"
            )
        if self.augment is None:
            return
        if not isinstance(self.augment, CropFlip):
            raise InvalidInput(
                f"augment must be an object such as ud.CropFlip(), got {self.augment!r}"
            )
        if once.dim() != 4:
            raise InvalidInput(
                f"ud.CropFlip needs images [channels, height, width], inputs are {list(once.shape[1:])}"
            )

    def _try(self, X: Tensor, Y: Tensor, which: str) -> None:
        for what, values in (("data", X), ("targets", Y)):
            prepared = what == "data" and self.prepare is not None
            if values.is_floating_point() and values.dtype != self.x0.dtype and not prepared:
                raise InvalidInput(
                    f"the {which}{what} are {values.dtype} and the model {self.x0.dtype}: "
                    "convert one, e.g. data.float() or model.double()"
                )
        some = [0, len(X) - 1]
        if Y.dim() == 1:  # among them the extreme labels
            some += [int(Y.argmin()), int(Y.argmax())]
        try:
            inputs, targets = self._inputs(X[some]), Y[some]
            value = self._mean_loss(self.x0, inputs, targets)
            if not isinstance(value, Tensor) or value.numel() != 1 or not bool(value.isfinite()):
                raise InvalidInput(
                    f"loss(model(inputs), targets) must be one finite number, got {value}"
                )
            output = self.flat(self.x0, inputs)
            if targets.is_floating_point() and isinstance(output, Tensor):
                if output.shape != targets.shape and output.numel() == targets.numel():
                    raise InvalidInput(
                        f"the model gives {list(output.shape)} for {which}targets {list(targets.shape)}: "
                        "they would be broadcast against each other; use y[:, None] or output.squeeze(1)"
                    )
            self._gradient(self.x0, inputs, targets, torch.tensor(0))
        except InvalidInput:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidInput(
                f"model and loss do not fit {which}data of shape {list(X.shape)} with targets of shape "
                f"{list(Y.shape)}, {Y.dtype}: {reason}"
            ) from error


def _other_randomness() -> Any:
    """Where numpy's and Python's own random numbers are."""
    _, numbers, *rest = np.random.get_state()
    return np.asarray(numbers).tobytes(), rest, Random.getstate()


def _labels(Y: Tensor) -> np.ndarray | None:
    """One integer a sample, if that is what targets are."""
    return Y.cpu().numpy() if Y.dim() == 1 and not Y.is_floating_point() else None


def _renumbered(test_clients: Tensor | None, parts: Parts) -> Tensor | None:
    """Whose the test samples are, in the numbers that clients have here; -1: of nobody who takes part."""
    if test_clients is None or parts.names is None:
        return test_clients
    here = {int(name): i for i, name in enumerate(parts.names)}
    return torch.tensor([here.get(int(name), -1) for name in test_clients.tolist()])


def _weights(weights: str | Sequence[float] | Tensor, sizes: np.ndarray) -> np.ndarray:
    if not isinstance(weights, str):
        return client_weights(weights, len(sizes))
    if weights == "uniform":
        return client_weights(None, len(sizes))
    if weights == "samples":
        return sizes / sizes.sum()
    raise InvalidInput(f"weights are 'uniform', 'samples' or numbers, got {weights!r}")


def _mean_and_worst(name: str, values: Sequence[float], worst: str) -> dict[str, float]:
    each = np.sort(values)
    tenth = max(1, len(each) // 10)
    of_worst = each[:tenth] if worst == "low" else each[-tenth:]
    return {name: float(each.mean()), f"{name}_worst_tenth": float(of_worst.mean())}


def _is_classification(output: Any, target: Tensor) -> bool:
    """Whether output is scores [n, classes, ...] for integer targets [n, ...], beyond doubt."""
    if not isinstance(output, Tensor) or target.is_floating_point() or output.dim() < 2:
        return False
    fits = output.shape[:1] + output.shape[2:] == target.shape
    return fits and output.shape[1] > 1 and output.shape[1] not in target.shape[1:]


def _tensors(data: Any, name: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets as two tensors, checked."""
    try:
        if isinstance(data, Dataset):
            samples = [data[i] for i in range(len(data))]  # pyright: ignore[reportArgumentType]
            X = torch.stack([torch.as_tensor(x) for x, _ in samples])
            Y = torch.stack([torch.as_tensor(y) for _, y in samples])
        elif isinstance(data, (tuple, list)) and len(data) == 2:
            X, Y = (torch.as_tensor(part) for part in data)
        else:
            raise TypeError(f"got {type(data).__name__}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"{name} must be (inputs, targets), two tensors or arrays, or a Dataset of such pairs: {error}"
        ) from error
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
