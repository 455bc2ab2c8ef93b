"""The commands of the hospitals' tutorial, one after another, as a user types them."""

import shlex
from pathlib import Path

import pytest

from tests.docs.test_examples import TEXTS, command_lines
from tests.support.real_data import real_data
from undrift.cli.app import app

PAGE = "docs/tutorial-hospitals.md"


@pytest.mark.slow
def test_the_hospitals_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(real_data()))
    monkeypatch.chdir(tmp_path)
    lines = list(command_lines(TEXTS[PAGE]))
    assert len(lines) == 4
    for line in lines:
        app(args=shlex.split(line)[1:], prog_name="undrift", standalone_mode=False)
    said = capsys.readouterr().out
    assert "switzerland (31)" in said and "local-only" in said
    page = (tmp_path / "runs" / "heart" / "report.html").read_text()
    assert "Final accuracy of every client" in page and "cleveland" in page and "every client alone" in page
    assert "Final auroc of every client" in (tmp_path / "runs" / "heart-auroc" / "report.html").read_text()
    assert (tmp_path / "heart-app" / "README.md").exists()
