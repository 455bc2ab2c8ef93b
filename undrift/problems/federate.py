"""A federation from a model and data: whatever they come as, checked and laid out."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import check_value
from undrift.core.rng import Key, Purpose, generator
from undrift.data.assignment import ClientIndices, Partition, Samples, assign_clients
from undrift.data.gather import Collate, Columns, Gathered, gather, gather_test
from undrift.data.partitions import Natural
from undrift.data.registry import Data
from undrift.data.tables import is_table
from undrift.data.transforms import CropFlip
from undrift.data.trees import map_tree, sample_count, shapes
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
    clients: Partition | Sequence[Any] | np.ndarray | Tensor | str | None = None,
    weights: str | Sequence[float] | Tensor = "uniform",
    prepare: Prepare | None = None,
    augment: CropFlip | None = None,
    metrics: str | Sequence[str] = ("test",),
    test_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    task: str | None = None,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    collate: Collate | None = None,
    local_parameters: str | Sequence[str] | None = None,
    figures: str | Sequence[str] | None = None,
) -> ModelProblem:
    """A federation from a model and data.

    train, test   (inputs, targets), each a tensor, an array, or a dict or tuple of them; a Dataset or a list of samples;
                  a pandas or Hugging Face table; a list or dict of such data, client by client; or what ud.load gives
                  (with its test).  Inputs in a dict are given to the model by keywords where it takes them so, those in
                  a tuple by position.
    model         any nn.Module; its parameters are what is trained, and where it starts
    loss          loss(model(inputs), targets), a mean over samples, as F.cross_entropy
    clients       a partition such as ud.Dirichlet(100, alpha=0.2); the sample numbers of each client; a client for
                  every sample; or the column of a table that names it.  By default those that the data have: the
                  hospitals of ud.load("heart"), the entries of a list or dict.
    weights       of clients in the objective: "uniform" (Cheng, Sun, Karimireddy, Zaccone et al.), "samples", i.e.
                  n_i / n (Wang et al.), or numbers.  Every method averages with them.
    prepare       makes model inputs `[b, ...]` from a batch of stored ones, e.g. images kept as bytes
    augment       ud.CropFlip(): random crops and mirror images in training
    metrics       what to record of a model: "test" loss and the task's metrics (of the training data if there are no
                  others), "train", "clients" (mean, worst tenth, and a line a client where these have names),
                  "gradient" (norm of the global objective's), or one by name: "auroc", "f1", "top-5", ...;
                  `ud.run(metrics=...)` overrides it
    test_samples  evaluate on so many of the test samples, drawn once
    seed          of the partition
    device        where everything is computed, e.g. "cuda"; by default where the model is
    task          "multi-class", "binary" (one output a sample), "multi-label" or "regression", if it is not what
                  outputs, targets and loss look like
    inputs        the columns of a table that are inputs, by default all others
    target        the column of a table, or the part of a sample in a dict, that is the target: by default "labels",
                  "label", "target" or "y"
    collate       makes one batch of a list of samples, as of a DataLoader: called once with all of them, so that
                  texts of different lengths are padded to the longest
    local_parameters  parameters that clients keep to themselves, by name, layer or pattern, one or a list: "head" (FedPer),
                  "batch-norm" (FedBN), "*.lora_A.*".  They do not travel; docs/personalisation.md
    figures       the old name of `metrics`

    >>> import undrift as ud, torch.nn.functional as F
    >>> data = torch.randn(20, 2), torch.arange(20) % 3
    >>> problem = ud.federate(data, model=nn.Linear(2, 3), loss=F.cross_entropy, clients=ud.IID(4))
    >>> problem.N, problem.x0.numel()
    (4, 9)
    >>> hospitals = {"a": data, "b": data}
    >>> ud.federate(hospitals, model=nn.Linear(2, 3), loss=F.cross_entropy).client_names
    ('a', 'b')
    """
    check_value("federate", "seed", seed, int, within=f"[0, {2**64})")
    check_value("federate", "test_samples", test_samples, int, None, within="[1, inf)")
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be an nn.Module object, got {model!r}")
    column = clients if isinstance(clients, str) else None
    if column is not None and not is_table(train):
        raise InvalidInput(f"clients={column!r} names a column of a table, and train is a {type(train).__name__}")
    columns = Columns(inputs, target, column, collate)
    prepare = prepare or (train.prepare if isinstance(train, Data) else None)
    own, held_out = gather(train, "train", columns), gather_test(train, test, columns)
    if held_out is not None and test_samples is not None and test_samples < (n := sample_count(held_out.X)):
        kept = np.sort(generator(Purpose.DATA, Key(seed, 0)).permutation(n)[:test_samples])
        held_out = held_out.some(kept)
    parts = _assign(own, None if column is not None else clients, seed)
    if figures is not None:
        warnings.warn("federate: figures is now called metrics", DeprecationWarning, stacklevel=2)
        metrics = figures
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    for name in names:
        if name not in MODEL_METRICS:
            raise unknown("metric", name, MODEL_METRICS)
    flat = FlatModel(model, _device(device), local_parameters)
    to_device = lambda tree: map_tree(lambda t: t.to(flat.x0.device), tree)
    problem = ModelProblem(
        flat,
        loss,
        to_device(own.X),
        to_device(own.Y),
        parts,
        None if held_out is None else (to_device(held_out.X), to_device(held_out.Y)),
        _weights(weights, parts.sizes),
        prepare,
        augment,
        names,
        None if held_out is None else _clients_of_test(held_out, parts, own),
        task,
    )
    for name in names:
        if name not in (*problem.metric_names, "clients"):
            raise unknown(f"metric of a task that is {problem.task and problem.task.name}:", name, problem.metric_names)
    return problem


def _assign(own: Gathered, clients: Any, seed: int) -> ClientIndices:
    """The samples of each client, which have the names that the data give them."""
    if clients is None:
        if own.clients is None:
            raise InvalidInput(
                "clients: these data name none: give a partition such as ud.Dirichlet(100, alpha=0.2), "
                "or data client by client, in a list or dict"
            )
        clients = Natural()

    def column(number: int) -> np.ndarray:
        X = own.X
        if not isinstance(X, Tensor) or X.dim() != 2 or not 0 <= number < X.shape[1]:
            raise InvalidInput(f"inputs of shape {shapes(X)} have no column {number}")
        return X[:, number].numpy()

    samples = Samples(sample_count(own.X), labels_of(own.Y), column, own.clients)
    parts = assign_clients(clients, samples, seed)
    if not isinstance(clients, Natural) or parts.names is None or not own.names:
        return parts
    return replace(parts, names=np.array([own.names[int(number)] for number in parts.names]))


def _clients_of_test(held_out: Gathered, parts: ClientIndices, own: Gathered) -> Tensor | None:
    """Whose the test samples are, in the numbers that clients have here; -1: of nobody who takes part."""
    if held_out.clients is None or parts.names is None or own.clients is None or not held_out.names:
        return None
    here = {str(name): i for i, name in enumerate(parts.names)}
    each = np.array([here.get(name, -1) for name in held_out.names] + [-1])  # a client that is not in train is -1
    return torch.as_tensor(each[held_out.clients])


def _device(device: str | torch.device | None) -> torch.device | None:
    """A device that is there."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(f"device must be 'cpu', 'cuda', 'cuda:1' or the like, got {device!r}") from error
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


def _weights(weights: str | Sequence[float] | Tensor, sizes: np.ndarray) -> np.ndarray:
    if not isinstance(weights, str):
        return client_weights(weights, len(sizes))
    if weights == "uniform":
        return client_weights(None, len(sizes))
    if weights == "samples":
        return sizes / sizes.sum()
    raise InvalidInput(f"weights are 'uniform', 'samples' or numbers, got {weights!r}")
