"""A torch model on data that are spread over clients."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property, partialmethod
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from undrift.compiler.capture import Captured
from undrift.compiler.constants import plain_values, values_held
from undrift.compiler.kernels.dense import OWN_PRODUCTS, fast_layers
from undrift.compiler.verify import random_like, scale_of
from undrift.core.errors import first_line
from undrift.core.rng import Key
from undrift.data.assignment import ClientIndices
from undrift.data.transforms import CropFlip
from undrift.data.trees import Tree, leaves, map_tree, sample_count, shapes, take, tree_flatten, tree_unflatten
from undrift.problems.evaluation import (
    EVALUATION_BATCH,
    OF_MODEL,
    PREPARED_BYTES,
    batch_of_width,
    evaluate,
    in_batches,
)
from undrift.problems.fitting import check_model_fits_data, find_task
from undrift.problems.flat import FlatModel
from undrift.problems.heterogeneity import (
    Heterogeneity,
    labels_of,
    measure_heterogeneity,
    plot_heterogeneity,
    summarise_heterogeneity,
)
from undrift.problems.minibatches import Minibatches, Source, draw_minibatches, sources

Loss = Callable[[Any, Any], Tensor]
MOST_TARGETS, LOOKED_AT = 256, 2**22  # that a loss is tried on; numbers among which they are looked for
Prepare = Callable[[Any], Any]


class ModelProblem:
    """One copy of the data; a client is a range of an index into it.  Made by `federate`."""

    reopen: "Callable[[], ModelProblem] | None" = None  # reads the same on another machine
    hidden_randomness = False  # whether the model draws torch's random numbers, beside nn.Dropout layers

    def __init__(
        self,
        flat: FlatModel,
        loss: Loss,
        X: Tree,
        Y: Tree,
        parts: ClientIndices,
        test: tuple[Tree, Tree] | None,
        weights: np.ndarray,
        prepare: Prepare | None = None,
        augment: CropFlip | None = None,
        metrics: tuple[str, ...] = ("test",),
        test_clients: Tensor | None = None,
        task: str | None = None,
    ):
        self.flat, self.loss, self.X, self.Y, self.test = flat, loss, X, Y, test
        self.parts, self.weights, self.default_metrics = parts, weights, metrics
        self.prepare, self.augment, self.test_clients = prepare, augment, test_clients
        self.index = torch.as_tensor(parts.index)
        self.x0, self.local_x0 = flat.x0, flat.local_x0
        self._capture()
        self.hidden_randomness = check_model_fits_data(self)
        self.task, self.gives_tensors = find_task(self, task)

    def with_parts(
        self, parts: ClientIndices, test: tuple[Tree, Tree] | None, weights: np.ndarray, metrics: tuple[str, ...]
    ) -> "ModelProblem":
        """The same model and samples with other clients and other test samples, of which nobody knows whose they are."""
        made, task = (self.flat, self.loss, self.X, self.Y), self.task and self.task.name
        return ModelProblem(*made, parts, test, weights, self.prepare, self.augment, metrics, task=task)

    def __repr__(self) -> str:
        how, test = self.parts.partition, 0 if self.test is None else sample_count(self.test[0])
        held = f"{self.N:,} clients{' by ' if how else ''}{how}, {sample_count(self.X):,} samples, {test:,} to test"
        return f"{type(self).__name__}({held}, {self.x0.numel():,} parameters)"

    @property
    def N(self) -> int:
        return self.parts.N

    @property
    def client_names(self) -> tuple[str, ...]:
        """What the data call client 0, 1, ...; empty if they do not."""
        return () if self.parts.names is None else tuple(map(str, self.parts.names))

    def size(self, client: int) -> int:
        """How many samples a client has."""
        return int(self.parts.sizes[client])

    def samples(self, client: int) -> Tensor:
        """The numbers of a client's samples."""
        return torch.as_tensor(self.parts.of(client))

    # what engines ask

    def steps_per_epoch(self, client: int, batch: int | None) -> int:
        return 1 if batch is None else -(-self.size(client) // batch)

    def draw(self, key: Key, clients: Sequence[int], steps: Sequence[int], batch: int | None) -> Minibatches:
        return self._draw(sources(self.parts, clients, repeat(key)), steps, batch)

    def draw_each(
        self,
        key: Key,
        rounds: Sequence[int],
        clients: Sequence[int],
        steps: Sequence[int],
        batch: int | None,
        replacement: bool = False,
    ) -> Minibatches:
        """The same where every client has a round of its own; with `replacement` every sample is drawn on its own."""
        keys = [replace(key, round=t) for t in rounds]
        return self._draw(sources(self.parts, clients, keys), steps, batch, replacement)

    draw_with_replacement = partialmethod(draw_each, replacement=True)

    def _draw(
        self, each: Sequence[Source], steps: Sequence[int], batch: int | None, replacement: bool = False
    ) -> Minibatches:
        return draw_minibatches(each, steps, batch, self.seeded, self.augment, self._numbers, replacement)

    def _numbers(self, positions: Tensor) -> Tensor:
        """The numbers of the samples at these positions of the index, where the data are."""
        return self.index[positions].to(self.x0.device)

    @property
    def seeded(self) -> bool:
        """Whether the model draws random numbers, for which every minibatch has a seed."""
        return bool(self.flat.dropouts) or self.hidden_randomness

    def grad(self, y: Tensor, minibatches: Minibatches, k: int) -> Tensor:
        if y.dim() == 1:
            samples, drawn, seed = minibatches.of_step(k, 0, int(minibatches.counts[0, k]))
            return self.gradient(y, *self.batch(samples, drawn), seed)
        counts = minibatches.counts[:, k].tolist()
        sizes = sorted({*counts} - {0})  # clients with none are done
        if len(sizes) == 1 and 0 not in counts and len(y) > 1:
            samples, drawn, seed = minibatches.of_step(k, slice(None), sizes[0])
            own = y.contiguous()  # also where all rows are one: a form for both
            return self.captured(own, *self.batch(samples, drawn), seed)
        found = torch.zeros_like(y)
        for count in sizes:  # short minibatches apart: nothing is padded
            rows = torch.tensor([row for row, n in enumerate(counts) if n == count], device=y.device)
            # As in the batched engine: a batch of one client takes other kernels, so a lone one is computed twice.
            here = rows.repeat(2) if len(rows) == 1 else rows
            samples, drawn, seed = minibatches.of_step(k, here, count)
            found[rows] = self.captured(y[here], *self.batch(samples, drawn), seed)[: len(rows)]
        return found

    def full_grad(self, y: Tensor, clients: Sequence[int]) -> Tensor:
        """Without dropout or augmentation: the gradient of the objective itself.

        Of a client with more than EVALUATION_BATCH samples it is put together from parts, if the loss is a mean over samples.
        """
        rows = y.unsqueeze(0) if y.dim() == 1 else y
        found = []
        for row, i in zip(rows, clients, strict=True):
            mine, total = self.samples(i), torch.zeros_like(row)
            for some in self.gradient_parts(len(mine)):
                part = self.gradient(row, *self.batch(mine[some]), torch.tensor(0), training=False)
                total += part * (len(mine[some]) / len(mine))
            found.append(total)
        return found[0] if y.dim() == 1 else torch.stack(found)

    def gradient_parts(self, n: int) -> list[slice]:
        """How the full gradient of n samples is put together: all at once if few, or if the loss is no mean over them."""
        at_once = n <= EVALUATION_BATCH or self._not_a_mean is not None
        return [slice(0, n)] if at_once else in_batches(n)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of a model that make sense here."""
        # with parameters of their own, clients' quality is a metric of their states, too
        own = OF_MODEL if self.local_x0 is None else tuple(name for name in OF_MODEL if name != "clients")
        return own + (self.task.allowed if self.task else ())

    def evaluate(self, x: Tensor) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in self.default_metrics:
            found |= evaluate(self, name, x)
        return found

    def evaluate_metric(self, name: str, x: Tensor) -> dict[str, float]:
        return evaluate(self, name, x)

    @cached_property
    def held(self) -> tuple[Tree, Tree]:
        """The training samples that some client holds."""
        held = self.parts.held(sample_count(self.X))
        if held.all():
            return self.X, self.Y
        which = torch.as_tensor(np.flatnonzero(held))
        return take(self.X, which), take(self.Y, which)

    @cached_property
    def evaluation_batch(self) -> int:
        """How many samples are evaluated at once."""
        return batch_of_width(self.flat.dense_width)

    @cached_property
    def prepared_test(self) -> list[Tree]:
        """Model inputs of the test set, in batches; empty if they are as they are stored, or would take much memory."""
        if self.test is None or self.prepare is None:
            return []
        parts = in_batches(sample_count(self.test[0]), self.evaluation_batch)
        one = sum(t.nbytes for t in leaves(self.prepared(take(self.test[0], slice(1)))))
        fit = one * sample_count(self.test[0]) <= PREPARED_BYTES
        return [self.prepared(take(self.test[0], some)) for some in parts] if fit else []

    @cached_property
    def _convolves(self) -> bool:
        return self.flat.has(nn.modules.conv._ConvNd)

    @property
    def engine(self) -> str:
        """Which engine suits the model: over clients, convolutions are slower in a batch than one by one."""
        return "sequential" if self._convolves or self.not_batched else "batched"

    def batch_bytes(self, batch: int | None) -> int:
        """What one client's minibatch takes while it is computed: inputs, and activations by rule of thumb."""
        return 4 * self.widest(batch) * sum(t.nbytes for t in leaves(self.prepared(take(self.X, slice(1)))))

    def step_flops(self, batch: int | None) -> float:
        """Floating-point operations of one client's gradient: forward, and twice as many backward."""
        return 3 * self.widest(batch) * self._forward_flops

    @cached_property
    def _forward_flops(self) -> float:
        """Of one sample: counted once, on two, since some layers need several; at least those of a dense model of this size."""
        self.flat.template.eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.flat(self.x0, self.prepared(take(self.X, torch.zeros(2, dtype=torch.int64))))
        return float(max(counter.get_total_flops() / 2, 2 * self.x0.numel()))

    @cached_property
    def not_batched(self) -> str | None:
        """Why this model cannot be computed for several clients at once, if it cannot."""
        if self.hidden_randomness:
            return "it draws random numbers of its own, beside nn.Dropout layers"
        if self.flat.has(nn.RNNBase):
            return "torch has no batching rule for recurrent layers"
        try:
            pair = torch.zeros(2, 2, dtype=torch.int64)
            self._gradients(self.x0.repeat(2, 1), *self.batch(pair), torch.zeros(2, dtype=torch.int64))
        except Exception as error:  # torch raises many kinds for what it cannot batch
            return f"torch cannot batch it ({str(error).splitlines()[0]})"
        return None

    # what the compiled engine asks

    def values_held(self) -> Hashable:
        """What loss, model and `prepare` read besides their arguments, which may be set between rounds."""
        return values_held(self.loss), values_held(self.prepare), plain_values(self.flat.own_modules)

    @property
    def pieces(self) -> list[int]:
        return self.flat.sizes

    def resident(self) -> list[Tensor]:
        """What gradients read besides minibatches."""
        return [*leaves(self.X), *leaves(self.Y)]

    def inputs(self, minibatches: Minibatches, K: int, batch: int | None) -> list[tuple[Tensor | None, ...]]:
        """What `grad_of` is given, step by step: samples, their shares in the mean if some are short, seeds, crops."""
        minibatches = minibatches.widened(self.widest(batch))
        shares = None if minibatches.whole else minibatches.shares(self.x0.dtype)
        each = (minibatches.samples, shares, minibatches.seeds, minibatches.augmentation)
        # contiguous, so that a step's tensors are laid out alike whatever the number of steps
        split = [[None] * K if x is None else x.transpose(0, 1).contiguous().unbind() for x in each]
        return list(zip(*split, strict=True))

    def widest(self, batch: int | None) -> int:
        """Samples in the widest minibatch of any client."""
        return self._largest if batch is None else min(batch, self._largest)

    @cached_property
    def _largest(self) -> int:
        """Samples of the largest client: looked up once, since it takes as long as there are clients."""
        return int(self.parts.sizes.max())

    def grad_of(self, y: Tensor, resident: Sequence[Tensor], minibatch: Sequence[Tensor | None]) -> Tensor:
        """The gradient as a function of nothing but tensors: `[S, D]`, every client on its minibatch."""
        samples, shares, seeds, drawn = minibatch
        assert samples is not None
        loss: Callable[..., Tensor] = self.mean_loss
        given: list[Any] = [*self.batch(samples, drawn, resident), seeds]
        if shares is not None:
            loss, given = self.shared_loss, [*given, shares]
        self.flat.template.train()
        if len(y) > 1:
            each = (0, *(None if x is None else 0 for x in given))
            return vmap(grad(loss), in_dims=each)(y, *given)
        # alone, without vmap, which would have it laid out otherwise
        given = [None if x is None else map_tree(lambda t: t.squeeze(0), x) for x in given]
        given[0] = self._laid_out(given[0])
        return grad(loss)(y.view(-1), *given).view(1, -1)

    def shared_loss(self, y: Tensor, X: Tree, Y: Tree, seed: Tensor | None, shares: Tensor) -> Tensor:
        """The mean loss of those samples that have a share: a short minibatch filled up with others."""
        alone = lambda tree: map_tree(lambda t: t.unsqueeze(0), tree)
        each = vmap(lambda out, target: self.loss(alone(out), alone(target)))
        return shares @ each(self.flat(y, X, seed), Y).to(shares.dtype)

    def not_compiled(self, minibatch: Sequence[Tensor | None]) -> str | None:
        """Why such minibatches cannot be computed by a compiled step, if they cannot."""
        if self.local_x0 is not None:
            return "clients have parameters of their own"
        return self.not_batched or (self._not_a_mean if minibatch[1] is not None else None)

    @cached_property
    def _not_a_mean(self) -> str | None:
        """Why the loss of a short minibatch cannot be found in a full one, if it cannot."""
        if any(not Y.is_floating_point() and bool((Y < 0).any()) for Y in leaves(self.Y)):
            return "some targets are negative, which a loss may ignore, and minibatches are of unequal size"
        some = _of_every_target(leaves(self.Y)[0]).unsqueeze(0)  # a loss may weigh targets
        n = some.shape[1] - 1
        seed = torch.zeros(1, dtype=torch.int64) if self.flat.dropouts else None
        shares = torch.cat([torch.ones(1, n), torch.zeros(1, 1)], 1).to(self.x0) / n
        y = random_like(self.x0, scale_of(self.x0), torch.Generator().manual_seed(0)).unsqueeze(0)
        try:
            padded = self.grad_of(y, self.resident(), (some, shares, seed, None))
        except Exception as error:  # outputs that are no tensors of a row a sample, and what else torch cannot batch
            return (
                f"the loss of single samples cannot be found ({first_line(error)}), and minibatches are of unequal size"
            )
        short = self._gradients(y, *self.batch(some[:, :n]), seed)
        off = float((padded - short).norm() / short.norm().clamp(min=1e-12))
        if not off <= 1e3 * torch.finfo(self.x0.dtype).eps:  # nor if it is not a number
            return "the loss of a minibatch is no mean over its samples, and minibatches are of unequal size"
        return None

    # what people ask

    @property
    def not_shared(self) -> str | None:
        return "its random numbers are torch's, which threads share" if self.hidden_randomness else None

    def twin(self) -> "ModelProblem":
        """The same problem with a model of its own, for another thread."""
        other = copy(self)
        other.flat = deepcopy(self.flat)
        other._capture()
        return other

    def _capture(self) -> None:
        self.captured = Captured(self._gradients, self.values_held)
        self.scored = Captured(self.score, self._values_and_products, "record a metric of your own in place of 'test'")

    def _values_and_products(self) -> Hashable:
        return self.values_held(), OWN_PRODUCTS.get()

    def module(self, x: Tensor, client: int | None = None) -> nn.Module:
        """The model with these parameters, BatchNorm layers with the statistics of a client's or everyone's samples."""
        with torch.no_grad(), self.statistics(x, client):
            return self.flat.module(x)

    def statistics(self, x: Tensor, client: int | None) -> AbstractContextManager[None]:
        """Evaluate BatchNorm layers, if there are any, with the statistics of training samples: a client's, or of all."""
        if not self.flat.norms:
            return nullcontext()
        held = torch.as_tensor(self.parts.index) if client is None else self.samples(client)
        if client is None:  # some of everyone's
            held = held[:: max(1, len(held) // EVALUATION_BATCH)]
        self.flat.template.eval()
        return self.flat.statistics_of(x, (self.batch(held[some])[0] for some in in_batches(len(held))))

    def named_parameters(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters in a vector, by their names in the model."""
        return self.flat.parameters(x)

    def heterogeneity(self) -> Heterogeneity:
        """How much clients differ, in numbers."""
        return measure_heterogeneity(self.parts, labels_of(self.Y))

    def describe(self, batch: int | None = None) -> None:
        """Print what the federation is made of; with a batch, also how many local steps an epoch has."""
        samples = f"{sample_count(self.held[0]):,} samples, inputs {shapes(self.X)}, {self.x0.numel():,} parameters"
        how = f" by {self.parts.partition}" if self.parts.partition else ""
        print(f"{self.N:,} clients{how}, {samples}\n{self.heterogeneity()}")
        if self.local_x0 is not None:
            names = ", ".join(self.flat.local_names)
            print(f"{self.local_x0.numel():,} more are clients' own ({names}); 'test' has them as they were initially")
        if batch is not None:
            steps = np.maximum(-(-self.parts.sizes // batch), 1)
            ends = f"{steps.min()} to {steps.max()}, mean {steps.mean():.4g}"
            print(f"local steps an epoch with batch {batch}: {ends}")

    def summary(self) -> dict[str, Any]:
        """What the federation is made of, as JSON holds it."""
        about: dict[str, Any] = {"clients": self.N, "partition": self.parts.partition}
        about |= {"samples": sample_count(self.held[0]), "inputs": shapes(self.X)}
        return about | {"parameters": self.x0.numel()} | summarise_heterogeneity(self.parts, labels_of(self.Y))

    def plot(self) -> Any:
        """A matplotlib figure: the labels of each client, and the sizes."""
        return plot_heterogeneity(self.parts, labels_of(self.Y))

    # how it is computed

    def batch(
        self, samples: Tensor, drawn: Tensor | None = None, resident: Sequence[Tensor] | None = None
    ) -> tuple[Tree, Tree]:
        """Model inputs and targets of these samples, of the data or of what stands for them in a trace."""
        data = self.X, self.Y
        if resident is not None:
            data = tree_unflatten(list(resident), tree_flatten(data)[1])
        return self.prepared(take(data[0], samples), drawn), take(data[1], samples)

    def prepared(self, stored: Tree, drawn: Tensor | None = None) -> Tree:
        """Model inputs from stored ones: augmented, prepared, in the model's dtype."""
        one, whole = leaves(stored)[0], leaves(self.X)[0]
        lead = one.shape[: one.dim() - whole.dim() + 1]
        batch = map_tree(lambda t: t.reshape(-1, *t.shape[len(lead) :]), stored)  # one batch, whatever the engine
        flat = None if drawn is None else drawn.reshape(-1, drawn.shape[-1])
        images_are_stored = whole.dim() == 4  # else they are what prepare makes
        if flat is not None and self.augment is not None and images_are_stored:
            batch = self.augment.apply(batch, flat)
        if self.prepare is not None:
            in_dtype = lambda t: t.to(self.x0.dtype) if t.is_floating_point() else t
            batch = map_tree(in_dtype, self.prepare(batch))
        if flat is not None and self.augment is not None and not images_are_stored:
            batch = self.augment.apply(batch, flat)
        return map_tree(lambda t: t.reshape(*lead, *t.shape[1:]), batch)

    def gradient(self, y: Tensor, X: Tree, Y: Tree, seed: Tensor | None, training: bool = True) -> Tensor:
        """Of one client."""
        self.flat.template.train(training)
        for layer in self.flat.norms:
            layer.train()
        X, y = self._laid_out(X), y.detach().requires_grad_()
        if seed is None or not self.hidden_randomness:
            with torch.enable_grad():
                return torch.autograd.grad(self.mean_loss(y, X, Y, seed), y)[0]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(int(seed))  # the same minibatch draws the same numbers
            return torch.autograd.grad(self.mean_loss(y, X, Y, seed), y)[0]

    def score(self, x: Tensor, X: Tree, Y: Tree) -> tuple[Any, Tensor]:
        """What one model gives for samples, and its loss; no derivative is taken."""
        self.flat.template.eval()
        with fast_layers(several=False):
            output = self.flat(x, X)
            return output, self.loss(output, Y)

    def _laid_out(self, X: Tree) -> Tree:
        """A minibatch of one client, laid out as convolutions are fastest."""
        last = isinstance(X, Tensor) and X.dim() == 4 and self._convolves
        return X.contiguous(memory_format=torch.channels_last) if last else X

    def _gradients(self, y: Tensor, X: Tree, Y: Tree, seed: Tensor | None) -> Tensor:
        """Of several clients with minibatches of one size."""
        self.flat.template.train()
        each = (0, 0, 0, None if seed is None else 0)
        return vmap(grad(self.mean_loss), in_dims=each)(y, X, Y, seed)

    def mean_loss(self, y: Tensor, X: Tree, Y: Tree, seed: Tensor | None = None) -> Tensor:
        return self.loss(self.flat(y, X, seed), Y)


def _of_every_target(Y: Tensor) -> Tensor:
    """Numbers of samples that have all the targets there are, or many from the lowest to the highest; the last comes twice."""
    looked_at = torch.arange(0, len(Y), 1 + Y.numel() // LOOKED_AT)
    targets = Y[looked_at].flatten(1).double().cpu() if Y.dim() > 1 else Y[looked_at].unsqueeze(1).double().cpu()
    values, places = targets.flatten().unique(return_inverse=True)
    whose = looked_at.repeat_interleave(targets.shape[1])
    first = torch.full((len(values),), len(Y)).scatter_reduce(0, places, whose, "amin")
    spread = torch.linspace(0, len(values) - 1, min(len(values), MOST_TARGETS)).long()
    found = torch.cat([torch.arange(min(3, len(Y))), first[spread].unique()])
    return torch.cat([found, found[-1:]])
