"""undrift doctor: what there is to work with."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import undrift as ud
from undrift.data.store import DataMissing, folders
from undrift.experiments.runs.directory import processor

NEEDED = (
    "torch",
    "numpy",
    "safetensors",
    "pydantic",
    "typer",
    "rich",
    "matplotlib",
    "scikit-learn",
)
EXTRAS = {
    "optuna": "sweep",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow-skinny": "mlflow",
    "h5py": "stackoverflow",
    "torchvision": "vision",
    "ray": "ray",
}


def doctor() -> None:
    """What is installed, threads, compiler, GPU, data found, and a two-second speed test.

    Example: undrift doctor
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for subject, finding in findings():
        table.add_row(subject, escape(finding))
    Console(width=None if os.isatty(1) else 120).print(table)


def findings() -> Iterator[tuple[str, str]]:
    """Subject and finding, one after another."""
    yield "undrift", f"{ud.__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield "installed", ", ".join(f"{name} {_version(name)}" for name in NEEDED)
    present = [name for name in EXTRAS if _version(name)]
    absent = [f"{name} (undrift[{extra}])" for name, extra in EXTRAS.items() if not _version(name)]
    yield "extras", ", ".join(f"{name} {_version(name)}" for name in present) or "none"
    if absent:
        yield "not installed", ", ".join(absent)
    yield "processor", f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    compiler = shutil.which("g++") or shutil.which("clang++")
    yield "compiler", compiler or "none: models run uncompiled (install g++ for more speed)"
    yield "GPU", _gpu()
    yield "Ray", _ray()
    yield "data folders", ", ".join(str(folder) for folder in _data_folders())
    yield "data found", ", ".join(_data_found())
    yield "speed", _speed()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none that torch can use"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _ray() -> str:
    """Where engine "ray" would run; nothing is started to find out."""
    if not _version("ray"):
        return "not installed: engine 'ray' needs undrift[ray]"
    address = os.environ.get("RAY_ADDRESS")
    return f"the cluster at {address} (RAY_ADDRESS)" if address else "this machine (no RAY_ADDRESS)"


def _data_folders() -> list[Path]:
    """Where data are looked for."""
    return list(dict.fromkeys(folder.parent for folder in folders("mnist")))


def _data_found() -> Iterator[str]:
    """Data sets that can be read on this machine as it is, with their samples."""
    os.environ["UNDRIFT_OFFLINE"] = "1"
    for name in ud.DATASETS:
        try:
            data = ud.load(name)
        except ud.InvalidInput as error:
            if not isinstance(error, DataMissing):
                yield f"{name} (unusable: {error})"
        else:
            yield f"{name} ({len(data.train[0]):,})"


def _speed(seconds: float = 1.0) -> str:
    """Rounds of FedAvg with a small perceptron, and of matrix products, for a second each."""
    torch.manual_seed(0)
    X, Y = torch.randn(3200, 784), torch.randint(10, (3200,))
    problem = ud.federate(
        (X, Y), model=ud.models.mlp(784, 200, 10), loss=F.cross_entropy, clients=ud.IID(100)
    )
    local = ud.Local(steps=4, batch=32)
    playing = ud.rounds(
        ud.FedAvg(),
        problem,
        rounds=10**6,
        participation=ud.Uniform(10),
        local=local,
        evaluate_every=10**6,
    )
    next(playing)  # the first is slower
    count, began = 0, perf_counter()
    while perf_counter() - began < seconds:
        next(playing)
        count += 1
    a_round = (perf_counter() - began) / count
    A, products, began = torch.randn(1024, 1024), 0, perf_counter()
    while perf_counter() - began < seconds:
        A.mm(A)
        products += 1
    flops = 2 * 1024**3 * products / (perf_counter() - began)
    return (
        f"{a_round * 1000:.0f} ms a round of 10 clients x 4 steps x 32 samples (MLP 784-200-10); "
        f"matrix products {flops / 1e9:.0f} GFLOP/s"
    )
