"""Client states larger than memory: in a file, and a disk too small for them."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import undrift as ud
from undrift.core.records import record
from undrift.simulation.client_states import ClientStates


@pytest.mark.slow
def test_a_mapped_table_takes_no_memory_of_the_process(tmp_path: Path) -> None:
    """A gigabyte of states under a limit of memory that could not hold it."""
    code = """
import resource, sys, torch
from pathlib import Path
from undrift.core.records import record
from undrift.experiments.runs import checkpoint
from undrift.simulation.client_states import ClientStates
@record
class C:
    c: torch.Tensor
states = ClientStates(C(torch.zeros(250_000)), budget=10**7, folder=Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_DATA, (600 * 2**20, 600 * 2**20))
for first in range(0, 1000, 10):
    rows = torch.full((10, 250_000), float(first))
    states.scatter(range(first, first + 10), C(rows))
assert states.mapped and float(states.gather([995]).c[0, 7]) == 990.0 and float(states.gather([2000]).c.sum()) == 0
"""
    told = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert not list(tmp_path.iterdir()), "the file has no name"


@record
class State:
    x: torch.Tensor


def test_a_disk_too_small_for_states_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    states = ClientStates(State(torch.zeros(4)), budget=1, folder=tmp_path)
    with pytest.raises(ud.InvalidInput, match="on disk in .*No space left"):
        states.scatter([0, 1], State(torch.zeros(2, 4)))
