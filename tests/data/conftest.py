"""Fixtures for readers: no network, an empty folder of data, and the real data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from tests.support.real_data import real_data
from undrift.data import store
from undrift.data.datasets import cifar, mnist
from undrift.data.registry import Data, load

READ: dict[str, Data] = {}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, **_: Any) -> Any:
        raise URLError("no network in tests")

    monkeypatch.setattr(store, "open_url", refuse)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $UNDRIFT_DATA and an empty cache; published checksums are not asked for."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("UNDRIFT_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for reader in (mnist, cifar):
        monkeypatch.setattr(reader, "_CHECKSUMS", {})
    return folder


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Data]:
    """load() from the real data, each set once; skips if a file is not there."""
    monkeypatch.setenv("UNDRIFT_DATA", str(real_data()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def read(name: str) -> Data:
        try:
            return READ.get(name) or READ.setdefault(name, load(name))
        except store.DataMissing as error:
            pytest.skip(str(error))

    return read
