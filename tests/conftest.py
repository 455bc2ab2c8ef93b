"""Tests run side by side, so each keeps to one thread."""

import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.support.compiled import interpreted, refusals  # noqa: F401 (fixtures)
from undrift import cli

torch.set_num_threads(1)


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
