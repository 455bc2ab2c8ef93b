"""Calls that only Linux has are taken away: what used them goes on without."""

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from undrift.core.records import record
from undrift.experiments.runs.files import synced
from undrift.simulation.client_states import ClientStates, half_of_memory
from undrift.simulation.engines.memory import keep_freed_memory


@record
class State:
    x: torch.Tensor


def test_states_move_to_a_file_without_posix_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    states = ClientStates(State(torch.zeros(4)), budget=1, folder=tmp_path)
    states.scatter([0, 7], State(torch.arange(8.0).view(2, 4)))
    assert states.mapped and states.gather([7]).x.tolist() == [[4.0, 5.0, 6.0, 7.0]]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))  # pyright: ignore
    with pytest.raises(ud.InvalidInput, match="on disk in .*No space left"):
        states.scatter(list(range(100)), State(torch.zeros(100, 4)))


def test_what_is_synced_is_open_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(fd: int, real: Any = os.fsync) -> None:
        """As on Windows."""
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(fd)

    monkeypatch.setattr(os, "fsync", strict)
    (tmp_path / "lines").write_bytes(b"one\n")
    synced(tmp_path / "lines")
    assert (tmp_path / "lines").read_bytes() == b"one\n"


@pytest.mark.parametrize("platform", ["darwin", "win32", "linux"])
def test_a_c_library_without_mallopt_is_left_as_it_is(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(name))  # gives None, which has no mallopt
    keep_freed_memory.__wrapped__()
    assert opened == ([None] if platform == "linux" else [])


def test_memory_is_known_without_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert half_of_memory() == pytest.approx(expected, rel=0.01)
