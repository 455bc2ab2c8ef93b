"""The things an experiment names: data, partitions, models, participation, methods."""

import runpy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift import algorithms, codecs, metrics, models  # noqa: F401 (their names are registered by that)
from undrift.core.bounds import check_memory
from undrift.core.errors import InvalidInput, known_name, setting, shortened, unknown
from undrift.core.hyper import METHODS, build_method, method
from undrift.data import datasets, partitions  # noqa: F401
from undrift.data.assignment import PARTITIONS
from undrift.data.registry import DATASETS, Data, load
from undrift.data.trees import take
from undrift.models import MODELS
from undrift.simulation.participation import Bernoulli, Cyclic, Everyone, Fixed, Uniform, Weighted

FEW = 50  # clients of which all take part unless an experiment says otherwise

SCHEMES: dict[str, Callable[..., Any]] = {
    "everyone": Everyone,
    "uniform": Uniform,
    "cyclic": Cyclic,
    "weighted": Weighted,
    "bernoulli": Bernoulli,
    "fixed": Fixed,
}

LARGE = 10_000  # a width or a number of classes that asks for a look at the memory

# Of the data sets that come with the package; others get a perceptron.
DEFAULT_MODELS: dict[str, dict[str, Any]] = {
    "cifar10": {"name": "lenet"},
    "cifar100": {"name": "lenet"},
    "shakespeare": {"name": "char_lstm"},
    "tinyshakespeare": {"name": "char_lstm"},
    "stackoverflow": {"name": "stackoverflow_lstm"},
    "gldv2": {"name": "mobilenet_v2"},
    "inaturalist": {"name": "mobilenet_v2"},
    "digits": {"name": "mlp", "hidden": [64]},
    "synthetic": {"name": "logistic"},
    "heart": {"name": "logistic"},
    "adult": {"name": "logistic"},
    "a9a": {"name": "logistic"},
    "w8a": {"name": "logistic"},
    "mushrooms": {"name": "logistic"},
    "parkinsons": {"name": "mlp", "hidden": [64]},
}


# Local work of a comparison on data so small that an epoch of usual minibatches would be a single step.
DEFAULT_LOCAL: dict[str, dict[str, Any]] = {"digits": {"epochs": 5, "batch": 5}}


def default_model(data: str) -> dict[str, Any]:
    """The model of an experiment that names none."""
    with suppress(InvalidInput):  # said of [data], where it is wrong
        data = known_name("data set", data, DATASETS)
    return DEFAULT_MODELS.get(data, {"name": "mlp", "hidden": [200]})


def natural_federation(data: str) -> dict[str, Any]:
    """How data that have clients of their own are spread unless an experiment says otherwise; {} if they have none.

    Everyone takes part where there are few.
    """
    entry = DATASETS.get(data)
    if entry is None or entry.clients is None:
        return {}
    few = {"scheme": "everyone"} if entry.clients <= FEW else {"per_round": 10}
    return {"clients": {"partition": "natural"}, "participation": few}


def make_partition(name: str, number: int | None, parameters: Mapping[str, Any]) -> Any:
    """A partition; `number` is what the classes call N (your own may call it number too)."""
    name = known_name("partition", name, PARTITIONS)
    needs = f"{name}: say how many clients, e.g. {setting('number = 100', clients__number=100)}"
    has_none = f"{name}: the data say how many clients there are, leave out {setting('number', clients__number=...)}"
    return _make(name, PARTITIONS[name], ("N", "number"), number, parameters, needs, has_none)


def make_participation(name: str, per_round: int | None, parameters: Mapping[str, Any]) -> Any:
    """A participation; `per_round` is what the classes call S."""
    name = known_name("scheme", name, SCHEMES)
    count = setting("per_round", participation__per_round=...)
    needs = f"{name} participation needs {count}, the number of clients per round"
    has_none = f"{name} participation has no per_round, leave it out"
    return _make(name, SCHEMES[name], ("S", "per_round"), per_round, parameters, needs, has_none)


def _make(
    name: str,
    make: Callable[..., Any],
    count_names: tuple[str, str],
    count: int | None,
    parameters: Mapping[str, Any],
    needs: str,
    has_none: str,
) -> Any:
    """Call a class with its parameters and a count, whose name in the class is not the one in experiments."""
    in_class, in_experiment = count_names
    takes = [each for each in count_names if each in signature(make).parameters]
    if count is not None and not takes:
        raise InvalidInput(has_none)
    allowed = [in_experiment if each == in_class else each for each in signature(make).parameters]
    for key in parameters if allowed else ():
        if key not in allowed:
            raise unknown(f"parameter of {name}:", key, allowed)
    if count is None and takes:
        raise InvalidInput(needs)
    return build_method(name, make, {**dict.fromkeys(takes, count), **parameters})


def make_method(name: str, parameters: Mapping[str, Any]) -> Any:
    """A method; lists are tuples to it, and a parameter that names a method is one (autonomous-fedgm's schedule)."""

    def value(given: Any) -> Any:
        if isinstance(given, dict) and given.get("name") in METHODS:
            return make_method(given["name"], {k: v for k, v in given.items() if k != "name"})
        return tuple(value(each) for each in given) if isinstance(given, list) else given

    return method(name, **{key: value(given) for key, given in parameters.items()})


# models


def model_maker(name: str, parameters: Mapping[str, Any]) -> Callable[[Mapping[str, int]], nn.Module]:
    """A function that makes the model from what is inferred from the data."""
    name = known_name("model", name, MODELS)
    make = list_models()[name]
    allowed = signature(make).parameters
    if any(p.kind is Parameter.VAR_POSITIONAL for p in allowed.values()):
        raise InvalidInput(f"model {name}: its parameters must have names, not *{list(allowed)[0]}")
    for key in parameters:
        if key not in allowed:
            raise unknown(f"parameter of {name}:", key, allowed)

    def make_model(inferred: Mapping[str, int]) -> nn.Module:
        needed = {key: value for key, value in inferred.items() if key in allowed}
        try:
            _check_size(name, make, {**needed, **parameters})
            return build_method(name, make, {**needed, **parameters})
        except (TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, InvalidInput):
                raise
            words = ", ".join(f"{key} = {value}" for key, value in parameters.items())
            raise InvalidInput(f"model {name} cannot be made with {words or 'these data'}: {error}") from error

    return make_model


def _check_size(name: str, make: Callable[..., nn.Module], parameters: Mapping[str, Any]) -> None:
    """Refuse a model that memory cannot hold: one with large numbers is first made without memory."""
    numbers = [n for value in parameters.values() for n in (value if isinstance(value, list) else [value])]
    if not any(isinstance(n, int) and n > LARGE for n in numbers):
        return
    size = 0
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.device("meta"):
        size = sum(p.numel() * p.element_size() for p in make(**parameters).parameters())
    words = ", ".join(f"{key} = {value}" for key, value in parameters.items())
    check_memory(f"model {name} with {words}", 4 * size, "take a smaller one")  # its gradient, a message, a copy


def list_models() -> dict[str, Callable[..., nn.Module]]:
    """The models that experiments know, by name."""
    return MODELS | {"mlp": perceptron}


def perceptron(inputs: int, classes: int, hidden: Sequence[int] = (200,)) -> nn.Module:
    """Linear layers of these hidden widths with ReLU in between, on flattened inputs."""
    if not isinstance(hidden, list | tuple):
        raise InvalidInput(f"model mlp: hidden is a list of widths, such as [64], got {hidden!r}")
    return models.mlp(inputs, *hidden, classes)


def infer_model_kwargs(data: Data) -> dict[str, int]:
    """What a model can know from the data: inputs, classes; channels and size of images."""
    sample = take(data.train[0], slice(1))
    prepared = sample if data.prepare is None else data.prepare(sample)
    targets = data.train[1]
    outputs = data.classes or (targets.shape[1] if targets.dim() > 1 else 1)
    inferred = {"classes": outputs}
    if not isinstance(prepared, Tensor):
        return inferred
    inferred |= {"inputs": prepared[0].numel()}
    if prepared.dim() == 4:
        inferred |= {"channels": prepared.shape[1], "size": prepared.shape[2]}
    return inferred


def default_loss(data: Data) -> Callable[[Any, Tensor], Tensor]:
    """Cross entropy for classes, squared error for numbers."""
    if data.classes is not None:
        return F.cross_entropy
    return lambda output, target: F.mse_loss(output.reshape(target.shape), target)


# custom methods, data sets and models


_run_file = cache(runpy.run_path)  # once, for its decorators register what is in it


def register_files(files: Sequence[str]) -> None:
    """Run Python files that register methods, data sets, partitions and models."""
    for file in files:
        path = None
        with suppress(OSError, TypeError, ValueError):  # a name that no file can have
            path = Path(file).resolve() if Path(file).is_file() else None
        if path is None:
            raise InvalidInput(f"{setting('use', use=...)}: {shortened(str(file), 200)} is not a file")
        try:
            _run_file(str(path))
        except InvalidInput as error:
            raise InvalidInput(f"{setting('use', use=...)}: {file}: {error}") from error
        except Exception as error:
            raise InvalidInput(f"{setting('use', use=...)}: {file} failed: {type(error).__name__}: {error}") from error


@cache
def load_cached(name: str, options: tuple[tuple[str, Any], ...]) -> Data:
    """A data set, read once for all runs of an experiment."""
    return load(name, **dict(options))
