"""undrift doctor: what there is to work with."""

import os
import platform
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F

import undrift as ud
from undrift.cli.terminal import make_console
from undrift.compiler import untested_torch
from undrift.data.store import DataMissing, folders
from undrift.experiments.report.tables import make_table
from undrift.experiments.runs.directory import processor
from undrift.problems import Problem
from undrift.simulation.engines.choice import cpp_compiler

REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:;.*extra == ['\"]([\w.-]+)['\"])?")
WARM_UP, TIMED = 3, 7  # rounds of the speed test


def diagnose() -> None:
    """What is installed, threads, compiler, GPU, data found, and a speed test of a few seconds.

    Example: undrift doctor
    """
    make_console().print(make_table(("", ""), findings()))


def findings() -> Iterator[tuple[str, str]]:
    """Subject and finding, one after another."""
    yield "undrift", f"{ud.__version__}, Python {platform.python_version()}, {platform.platform()}"
    needs = requirements(metadata.requires("undrift") or ())
    yield "installed", ", ".join(f"{name} {_version(name) or 'MISSING'}" for name in needs.pop(""))
    for extra, packages in needs.items():
        versions = {name: _version(name) for name in packages}
        present = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        absent = ", ".join(name for name, version in versions.items() if not version)
        missing = f'no {absent}: pip install "undrift[{extra}]"' if absent else ""
        yield f"extra {extra}", "; ".join(filter(None, (present, missing)))
    yield "processor", f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    yield "compiling", untested_torch() or f"tested with torch {torch.__version__}"
    yield ("C++ compiler", cpp_compiler() or "none: runs are not compiled (install g++ for more speed)")
    yield "CUDA", _cuda()
    yield "Ray", _ray()
    yield "data folders", ", ".join(_data_folders())
    yield "data found", ", ".join(_data_found()) or "none"
    yield "speed", ", ".join(_speed())


def requirements(lines: Iterable[str]) -> dict[str, list[str]]:
    """The packages that a distribution needs, by extra; those it always needs under "".

    >>> requirements(["torch>=2.12", 'ray>=2.40; extra == "ray"', 'undrift[ray]; extra == "dev"'])
    {'': ['torch'], 'ray': ['ray'], 'dev': []}
    """
    found: dict[str, list[str]] = {"": []}
    for line in lines:
        matched = REQUIREMENT.match(line)
        assert matched is not None
        packages = found.setdefault(matched[2] or "", [])
        packages += [matched[1]] if matched[1] != "undrift" else []
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cuda() -> str:
    if not torch.cuda.is_available():
        built = f"torch was built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build of torch"
        return f"none that torch can use ({built})"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _ray() -> str:
    """Where engine "ray" would run; nothing is started to find out."""
    if not _version("ray"):
        return "not installed: engine 'ray' needs undrift[ray]"
    address = os.environ.get("RAY_ADDRESS")
    return f"the cluster at {address} (RAY_ADDRESS)" if address else "this machine (no RAY_ADDRESS)"


def _data_folders() -> Iterator[str]:
    """Where data are looked for, and whether there is such a folder."""
    searched = (path.parent if path.name == "mnist" else path for path in folders("mnist"))
    for folder in dict.fromkeys(searched):
        yield f"{folder}" if folder.is_dir() else f"{folder} (not there)"
    if "UNDRIFT_DATA" not in os.environ:
        yield "and that of UNDRIFT_DATA, which is not set"


def _data_found() -> Iterator[str]:
    """Data sets that can be read on this machine as it is, with their samples."""
    os.environ["UNDRIFT_OFFLINE"] = "1"  # for the rest of this command
    for name in ud.DATASETS:
        try:
            data = ud.load(name)
        except DataMissing:
            continue
        except ud.InvalidInput as error:
            yield f"{name} (unusable: {error})"
        else:
            yield f"{name} ({len(data.train[0]):,})"


def _speed() -> Iterator[str]:
    """Rounds of FedAvg with a small perceptron, uncompiled and compiled, and of matrix products."""
    torch.manual_seed(0)
    X, Y = torch.randn(3200, 784), torch.randint(10, (3200,))
    problem = ud.federate((X, Y), model=ud.models.mlp(784, 200, 10), loss=F.cross_entropy, clients=ud.IID(100))
    yield "a round of 10 clients x 4 steps x 32 samples (MLP 784-200-10)"
    _, usual = time_rounds(problem, "batched")
    yield f"{1000 * usual:.1f} ms batched"
    if cpp_compiler() is not None and untested_torch() is None:
        first, usual = time_rounds(problem, "compiled")
        yield f"{1000 * usual:.1f} ms compiled (compiling took {first - usual:.1f} s)"
    A = torch.randn(1024, 1024)
    A.mm(A)
    seconds = []
    for _ in range(TIMED):
        began = perf_counter()
        A.mm(A)
        seconds.append(perf_counter() - began)
    yield f"matrix products {2 * 1024**3 / median(seconds) / 1e9:.0f} GFLOP/s"


def time_rounds(problem: Problem, engine: str) -> tuple[float, float]:
    """The seconds of the first round, in which programs are compiled, and the median of those after the warm-up."""
    rounds = ud.rounds(
        ud.FedAvg(),
        problem,
        rounds=WARM_UP + TIMED,
        participation=ud.Uniform(10),
        local=ud.Local(steps=4, batch=32),
        engine=engine,
        evaluate_every=WARM_UP + TIMED,
    )
    seconds = [r.seconds for r in rounds]
    return seconds[0], median(seconds[WARM_UP:])
