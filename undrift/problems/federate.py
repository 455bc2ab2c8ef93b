"""A federation from a model and data: whatever they come as, checked and laid out."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import check_value
from undrift.core.rng import Key, Purpose, generator
from undrift.data.assignment import ClientIndices, Partition, Samples, assign_clients
from undrift.data.augment import CropFlip
from undrift.data.partitions import Natural
from undrift.data.registry import Data
from undrift.problems.evaluation import MODEL_METRICS
from undrift.problems.flat import FlatModel
from undrift.problems.heterogeneity import labels_of
from undrift.problems.model import Loss, ModelProblem, Prepare
from undrift.problems.weights import client_weights


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
    metrics: str | Sequence[str] = ("test",),
    test_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    figures: str | Sequence[str] | None = None,
) -> ModelProblem:
    """A federation from a model and data.

    train, test   (inputs, targets) as tensors or arrays, a Dataset of such pairs, or what ud.load gives (with its test)
    loss          loss(model(inputs), targets), a mean over samples, as F.cross_entropy
    clients       a partition such as ud.Dirichlet(100, alpha=0.2); or the sample numbers of each client; or a client
                  for every sample
    weights       of clients in the objective: "uniform" (Cheng, Sun, Karimireddy, Zaccone et al.), "samples", i.e.
                  n_i / n (Wang et al.), or numbers.  Every method averages with them.
    prepare       makes model inputs `[b, ...]` from a batch of stored ones, e.g. images kept as bytes
    augment       ud.CropFlip(): random crops and mirror images in training
    metrics       what to record of a model: "test" loss and accuracy (of the training data if there are no others),
                  "train", "clients" (mean and worst tenth), "gradient" (norm of the global objective's);
                  `ud.run(metrics=...)` overrides it
    test_samples  evaluate on so many of the test samples, drawn once
    seed          of the partition
    device        where everything is computed, e.g. "cuda"; by default where the model is
    figures       the old name of `metrics`

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

    samples = Samples(len(X), labels_of(Y), column, None if natural is None else natural.numpy())
    parts = assign_clients(clients, samples, seed)
    if figures is not None:
        warnings.warn("federate: figures is now called metrics", DeprecationWarning, stacklevel=2)
        metrics = figures
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for name in names:
        if name not in MODEL_METRICS:
            raise unknown("metric", name, MODEL_METRICS)
    flat = FlatModel(model, _device(device))
    place = flat.x0.device
    X, Y = X.to(place), Y.to(place)
    held_out = None if held_out is None else (held_out[0].to(place), held_out[1].to(place))
    return ModelProblem(
        flat,
        loss,
        X,
        Y,
        parts,
        held_out,
        _weights(weights, parts.sizes),
        prepare,
        augment,
        names,
        _renumbered(test_natural, parts) if isinstance(clients, Natural) else None,
    )


def _device(device: str | torch.device | None) -> torch.device | None:
    """A device that is there."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(
            f"device must be 'cpu', 'cuda', 'cuda:1' or the like, got {device!r}"
        ) from error
    if found.type == "cuda":
        count = torch.cuda.device_count()
        if (found.index or 0) >= count:
            there = f"{count} CUDA devices are" if count else "no CUDA device is"
            raise InvalidInput(f"device {str(found)!r}: {there} available here: use device='cpu'")
    elif found.type not in ("cpu", "mps"):
        raise InvalidInput(f"device {str(found)!r} is not supported: use 'cpu' or 'cuda'")
    elif found.type == "mps" and not torch.backends.mps.is_available():
        raise InvalidInput("device 'mps' is not available here: use device='cpu'")
    return found


def _renumbered(test_clients: Tensor | None, parts: ClientIndices) -> Tensor | None:
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
