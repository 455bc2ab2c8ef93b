"""Clients that the data name themselves are the default, and errors name the flag."""

from pathlib import Path

import pytest

import undrift as ud
from undrift.cli.about import list_all
from undrift.cli.options import as_flags, make_experiment
from undrift.core.errors import speaking
from undrift.experiments.config import Experiment
from undrift.experiments.runs.running import prepare_directory


def test_four_hospitals_are_four_clients_who_all_take_part() -> None:
    e = Experiment(algorithm="fedavg", data="heart")  # pyright: ignore[reportArgumentType]
    assert (e.clients.partition, e.clients.number, e.participation.scheme) == ("natural", None, "everyone")
    assert make_experiment(["fedavg"], {"data": "heart"}, "x").participation.scheme == "everyone"
    assert make_experiment(["fedavg"], {"data": "heart", "natural": True}, "x").clients.partition == "natural"


def test_of_many_natural_clients_ten_take_part() -> None:
    e = make_experiment(["fedavg"], {"data": "shakespeare"}, "x")
    assert (e.clients.partition, e.participation.per_round) == ("natural", 10)


def test_what_is_said_goes_before() -> None:
    e = make_experiment(["fedavg"], {"data": "heart", "dirichlet": 0.5, "clients": 20}, "x")
    assert (e.clients.partition, e.clients.number, e.participation.per_round) == ("dirichlet", 20, 10)
    e = make_experiment(["fedavg"], {"data": "heart", "per_round": 3, "weights": "samples"}, "x")
    assert (e.clients.partition, e.clients.weights, e.participation.per_round) == ("natural", "samples", 3)
    e = make_experiment(["fedavg"], {"data": "heart", "asynchronous": True}, "x")
    assert e.server is not None and e.server.parameters["size"] == e.server.parameters["concurrency"] == 4
    assert make_experiment(["fedavg"], {}, "x").clients.number == 100


def test_more_clients_per_round_than_there_are_names_the_flag(tmp_path: Path) -> None:
    e = make_experiment(["fedavg"], {"data": "synthetic", "per_round": 40}, "x")
    with speaking(as_flags), pytest.raises(ud.InvalidInput, match=r"--per-round 40 is more.*clients, 30.*--everyone"):
        prepare_directory(e, tmp_path / "run")
    with pytest.raises(ud.InvalidInput, match=r"per_round = 40 is more .*participation.scheme = \"everyone\""):
        prepare_directory(e, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    list_all("synthetic")
    said = capsys.readouterr().out
    assert "30 of its own, taken by default" in said and "one of 10 classes" in said and "features  [60]" in said
    list_all("digits")
    said = capsys.readouterr().out
    assert "1,500 to train, 297 to test" in said and "none of its own" in said
