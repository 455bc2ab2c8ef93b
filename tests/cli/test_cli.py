"""The command line, as a person uses it."""

import re
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.real_data import real_data
from undrift.cli.about import HEADINGS, NUMBERS, cells
from undrift.cli.options import make_experiment
from undrift.core.hyper import METHODS
from undrift.experiments.report.tables import make_table
from undrift.simulation.catalogue import catalogue


def test_list_shows_every_method_with_its_traffic(undrift) -> None:
    shown = undrift("list")
    assert shown.code == 0
    rows = {line.split()[0]: line for line in shown.out.partition("\n\n")[0].splitlines() if line[0] != " "}
    assert rows.keys() - {"method"} == set(METHODS)
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
    assert shown.err.startswith("undrift: unknown name 'fedhb'; did you mean 'fedhbm'?")
    assert len(shown.err.splitlines()) == 1


def test_a_method_shows_its_hyper_parameters_and_what_it_sends(undrift) -> None:
    shown = undrift("list", "SCAFFOLD-M")
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["beta", "0.1", "(0,", "1]"] in rows and ["B", "0", "whole,", "[0,", "inf)"] in rows
    assert "1 kept by a client, 2 sent down, 1 up in a visit" in shown.out
    assert "c_i+  = mean_k grad F_i" in shown.out and "undrift compare scaffold-m:beta=0.1" in shown.out


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_can_be_read_about(undrift, name: str) -> None:
    shown = undrift("list", name.upper())
    assert shown.code == 0 and ">>>" not in shown.out and shown.out.startswith(f"{name} (")
    for key in signature(METHODS[name].make).parameters:
        assert f"\n{key} " in shown.out
    offered = re.search("Set them with a colon: undrift compare (.+)", shown.out)  # and it is a command that works
    if offered and "..." not in offered[1]:
        make_experiment(shlex.split(offered[1]), {"everyone": True}, "example")


def test_the_methods_fit_a_usual_terminal() -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(make_table(HEADINGS, map(cells, catalogue()), NUMBERS))
    printed = captured.get()
    assert "…" not in printed and {line.partition(" ")[0] for line in printed.splitlines()} >= set(METHODS)


@pytest.mark.parametrize(
    ("name", "said"),
    {
        "drift": "metric drift: How far local models walk",
        "auroc": "metric auroc: on test data",
        "momentum": "momentum(momentum)",
        "FedGM": "space fedgm: Sun et al. 2024",  # after the method of this name
    }.items(),
)
def test_whatever_has_a_name_can_be_read_about(undrift, name: str, said: str) -> None:
    assert said in undrift("list", name).out


def test_a_data_set_can_be_read_about(undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(real_data()))
    assert "model     logistic, unless another is named" in undrift("list", "heart").out


@pytest.mark.parametrize("words", [(), ("deploy",)])
def test_no_command_shows_the_help(undrift, words: tuple[str, ...]) -> None:
    shown = undrift(*words)
    assert "Usage: undrift" in shown.out and shown.err == ""


@pytest.mark.parametrize(
    ("typed", "meant"), {"fedagv": "fedavg", "scafold": "scaffold", "fedpro": "fedprox", "ghmb": "ghbm"}.items()
)
def test_slips_of_the_fingers_are_understood(undrift, typed: str, meant: str) -> None:
    said = undrift("compare", typed)
    assert said.code == 2 and f"did you mean {meant!r}?" in said.err and len(said.err) < 100


@pytest.mark.parametrize("typed", ["FedAvg", "FEDAVG", " fedavg"])
def test_names_in_any_case(undrift, typed: str, tmp_path: Path) -> None:
    words = ("--data", "Digits", "--model", "Logistic", "--engine", "Sequential", "--rounds", 1, "--out", "o")
    said = undrift("compare", typed, "scaffold_M", *words, "-q", "--jobs", 1, "--set", "threads=1")
    assert (said.code, said.err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "o").iterdir() if path.is_dir()) == ["fedavg", "scaffold-m"]


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


def test_something_is_said_before_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import undrift` alone loads no torch; the first public name that is asked for does."""
    code = (
        "import sys, undrift, undrift.cli\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules\n"
        "assert undrift.FedAvg.__name__ == 'FedAvg' and 'torch' in sys.modules\n"
        "from undrift import *\n"
        "assert set(undrift.__all__) <= set(dir(undrift)) and callable(run)\n"
        "assert 'sklearn' not in sys.modules and load('digits').classes == 10 and 'sklearn' not in sys.modules\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_the_first_line_is_on_the_terminal_at_once(undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    said = undrift("list", "fedavg")
    assert said.err.startswith("\r\x1b[2Kundrift 0.") and said.err.endswith("loading torch ...\r\x1b[2K")
    assert undrift("compare", "nope", "-q").err.startswith("undrift: unknown method")
