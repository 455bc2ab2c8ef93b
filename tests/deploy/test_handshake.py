"""Nodes that do not fit are refused, on both sides, with the reason."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.in_process_nodes import (
    Nodes,
    deployed,
    experiment,
)
from undrift.data.registry import Data
from undrift.deploy.messages import Envelope
from undrift.deploy.node import Answering

# first contact


def refused(nodes: Nodes, caplog: Any, *reasons: str, **settings: Any) -> str:
    """The error that ends the run; it and the logs of both sides have these reasons in them."""
    caplog.clear()
    with caplog.at_level(logging.INFO), pytest.raises(ud.InvalidInput) as error:
        deployed(nodes, **settings)
    for reason in reasons:
        assert reason in str(error.value)
        sides = {r.module for r in caplog.records if reason in r.getMessage()}
        assert sides == {"fleet", "node"}, f"{reason!r} was said by {sides or 'nobody'}"
    return str(error.value)


def test_a_node_of_another_experiment_is_refused_on_both_sides(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.own["birch"] = experiment({"name": "scaffold-m", "beta": 0.7}), nodes._read
    reason = "experiment.algorithm.beta is not set on the server and 0.7 on the node"
    assert "2 of 3 clients came" in refused(nodes, caplog, f"birch is refused: {reason}")
    assert "missing: birch" in refused(nodes, caplog, reason, clients="ash,birch,cedar")


def test_a_node_with_another_model_is_refused(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.own["birch"] = experiment(model={"name": "mlp", "hidden": [5]}), nodes._read
    refused(
        nodes,
        caplog,
        "experiment.model.name is 'logistic' on the server and 'mlp' on the node",
        "model.parameters is",
    )


def test_a_node_of_another_version_is_refused(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.spoil = lambda who, reply: Envelope("hello", {**reply.header, "undrift": "9.9"}) if who == "ash" else reply
    refused(nodes, caplog, f"undrift is '{ud.__version__}' on the server and '9.9' on the node")


def raising(config: Any) -> Any:
    raise FileNotFoundError("/data/a.npz is not there")


def test_nodes_without_data_or_with_others_are_refused(tmp_path: Path, caplog: Any) -> None:
    made = experiment()
    X, Y = torch.zeros(4, 64), torch.zeros(4, dtype=torch.int64)
    cases = {
        "ash has no samples": lambda config: (X[:0], Y[:0]),
        "ash has no data": None,
        "a sample has 63 numbers on the node and 64": lambda config: (X[:, 1:], Y),
        "the data have 7 classes on the node and 10": lambda config: Data("own", (X, Y), None, classes=7),
        "12": lambda config: (X, Y + 12),
        "ash is refused: FileNotFoundError: /data/a.npz is not there": raising,
    }
    for i, (reason, reader) in enumerate(cases.items()):
        nodes = Nodes(made, tmp_path / str(i))
        nodes.own["ash"] = made, reader
        refused(nodes, caplog, reason, wait=5.0)


def test_a_node_without_a_name_is_refused(tmp_path: Path, caplog: Any) -> None:
    made = experiment()
    nodes = Nodes(made, tmp_path)
    nodes.spoil = lambda who, reply: (
        Answering(made, None)({"part": 0}, Envelope("hello", {})) if who == "ash" else reply
    )
    refused(nodes, caplog, "a node needs a name of its own that stays the same", wait=5.0)


def test_two_nodes_with_one_name_are_refused(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.there[200] = "ash"
    refused(nodes, caplog, "two nodes are called ash")
    assert nodes.log.count(("ash", "refused")) == 2  # both have been told


def test_a_node_under_a_name_that_its_key_does_not_have_is_refused(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.registered = {100: "oak"}
    refused(nodes, caplog, "calls itself ash, its key was registered with the name oak")


def test_an_impostor_is_refused_and_the_run_goes_on(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.there[200] = "ash"
    nodes.registered = {100: "ash", 200: "oak"}
    assert len(deployed(nodes)) == 4
    assert "calls itself ash, its key was registered with the name oak" in caplog.text


def test_a_stranger_is_refused_and_the_run_goes_on(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(), tmp_path)
    nodes.there[300] = "zelkova"
    nodes.own["zelkova"] = nodes.experiment, lambda c: (torch.zeros(1, 64), torch.tensor([0]))
    assert len(deployed(nodes, clients="ash,birch,cedar")) == 4
    assert "zelkova is refused: zelkova is none of the clients" in caplog.text


def test_other_data_than_when_the_run_began_are_refused(tmp_path: Path, caplog: Any) -> None:
    deployed(Nodes(experiment(rounds=2), tmp_path))
    nodes = Nodes(experiment(rounds=3), tmp_path)
    few = torch.zeros(4, 64), torch.zeros(4, dtype=torch.int64)
    nodes.own["ash"] = nodes.experiment, lambda config: few
    assert "it has 4 samples and had" in refused(nodes, caplog)


def test_what_cannot_be_deployed_is_refused(tmp_path: Path, caplog: Any) -> None:
    for words, reason in (
        ({"seeds": [0, 1]}, "one method and one seed"),
        ({"evaluation": {"metrics": ["train"]}}, "no client's samples"),
        ({"evaluation": {"metrics": ["test", "drift"]}}, "cannot record 'drift'"),
        ({"algorithm": "vrl-sgd"}, "full participation"),
        ({"algorithm": "mime", "server": {"kind": "buffer", "size": 2}}, "several times a round"),
    ):
        with pytest.raises(ud.InvalidInput, match=reason):
            deployed(Nodes(experiment(**words), tmp_path / reason))
    with pytest.raises(ud.InvalidInput, match="3 clients, the deployment names 2"):
        deployed(Nodes(experiment(), tmp_path / "names"), clients="a,b")
