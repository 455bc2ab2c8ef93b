"""The command line, as a person uses it."""

import subprocess
import sys

from undrift.core.hyper import METHODS


def test_list_shows_every_method_with_its_traffic(undrift) -> None:
    shown = undrift("list")
    assert shown.code == 0
    rows = {line.split()[0]: line for line in shown.out.splitlines()[1:] if line[0] != " "}
    assert set(rows) == set(METHODS)
    assert rows["fedavg"].split()[-4:] == ["0", "1", "1", "1"]
    assert rows["ghbm"].split()[-4:] == ["0", "2", "1", "1"]
    assert rows["scaffold"].split()[-4:] == ["1", "2", "2", "1"]


def test_list_explains_a_method(undrift) -> None:
    shown = undrift("list", "fedhbm")
    assert shown.code == 0
    assert "Zaccone" in shown.out and "beta multiplies the *momentum*" in shown.out


def test_a_wrong_name_is_one_line_on_stderr(undrift) -> None:
    shown = undrift("list", "fedhb")
    assert shown.code == 2
    assert shown.out == ""
    assert shown.err.startswith("undrift: unknown method 'fedhb'; did you mean 'fedhbm'?")
    assert len(shown.err.splitlines()) == 1


def test_version_and_help(undrift) -> None:
    version = [sys.executable, "-m", "undrift.cli", "--version"]
    assert subprocess.run(version, capture_output=True, text=True).stdout.startswith("undrift 0.")
    assert "list" in undrift("--help").out
    assert "Example" in undrift("list", "--help").out
    assert undrift("walk").code == 2


def test_a_sweep_says_how_it_is_computed(undrift, caplog):
    said = undrift("sweep", "fedavg", "--rounds", 2, "--trials", 2, "-v", "--out", "out")
    assert said.code == 0
    assert "engine: 2 runs as one computation, batched" in caplog.text
