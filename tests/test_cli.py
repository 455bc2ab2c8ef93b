"""The command line, as a person uses it."""

import subprocess
import sys

from undrift.hyper import METHODS


def undrift(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "undrift.cli", *arguments], capture_output=True, text=True
    )


def test_list_shows_every_method_with_its_traffic() -> None:
    shown = undrift("list")
    assert shown.returncode == 0
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()[1:] if line[0] != " "}
    assert set(rows) == set(METHODS)
    assert rows["fedavg"].split()[-4:] == ["0", "1", "1", "1"]
    assert rows["ghbm"].split()[-4:] == ["0", "2", "1", "1"]
    assert rows["scaffold"].split()[-4:] == ["1", "2", "2", "1"]


def test_list_explains_a_method() -> None:
    shown = undrift("list", "fedhbm")
    assert shown.returncode == 0
    assert "Zaccone" in shown.stdout and "beta multiplies the *momentum*" in shown.stdout


def test_a_wrong_name_is_one_line_on_stderr() -> None:
    shown = undrift("list", "fedhb")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert shown.stderr.startswith("undrift: unknown method 'fedhb'; did you mean 'fedhbm'?")
    assert len(shown.stderr.splitlines()) == 1


def test_version_and_help() -> None:
    assert undrift("--version").stdout.startswith("undrift 0.")
    assert "list" in undrift("--help").stdout
    assert "Example" in undrift("list", "--help").stdout
    assert undrift("walk").returncode == 2
