"""Tests run side by side, so each keeps to one thread; fast ones first, so that most mistakes show early."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.compiled import interpreted, refusals  # noqa: F401 (fixtures)
from tests.support.ray_cluster import idle_ray_workers, ray_cluster, ray_workers  # noqa: F401 (fixtures)
from tests.support.real_data import cifar10  # noqa: F401 (a fixture)
from undrift import cli, public  # noqa: F401 (all names are registered)

torch.set_num_threads(1)
gc.set_threshold(20_000)  # else all that was imported is searched again and again for what can be freed
os.fsync = lambda file: None  # pyright: ignore[reportAttributeAccessIssue] (processes are killed here, not machines)


# with UNDRIFT_CI set, whatever else is missing is a failure
MAY_BE_MISSING = ("no CUDA", "no real data")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests, then slow ones; of these the groups first, which one worker must take as a whole."""

    def order(item: pytest.Item) -> tuple[bool, bool]:
        slow = item.get_closest_marker("slow") is not None
        return slow, slow and item.get_closest_marker("xdist_group") is None

    items.sort(key=order)


def pytest_runtest_setup() -> None:
    torch.set_num_threads(1)  # a command of the test before may have taken all


def _fail_if_skipped(report: Any) -> Any:
    if "UNDRIFT_CI" in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(words in reason for words in MAY_BE_MISSING):
            report.outcome, report.longrepr = "failed", f"{reason}: with UNDRIFT_CI it must run"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return _fail_if_skipped((yield))


class Said:
    """What a command said, and how it ended."""

    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def undrift(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The command line in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["undrift", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return Said(int(end.value.code or 0), out, err)

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def registries() -> Iterator[None]:
    """What a test registers by name is forgotten after it, and files of `use` run again."""
    from undrift.codecs.codec import CODECS
    from undrift.core.hyper import METHODS
    from undrift.data.assignment import PARTITIONS
    from undrift.data.registry import DATASETS
    from undrift.experiments.config import parts
    from undrift.metrics.registry import METRICS
    from undrift.models import MODELS

    known: list[dict[str, Any]] = [METHODS, PARTITIONS, DATASETS, MODELS, METRICS, CODECS]
    before = [dict(each) for each in known]
    yield
    for registry, content in zip(known, before, strict=True):
        registry.clear()
        registry.update(content)
    parts._run_file.cache_clear()
