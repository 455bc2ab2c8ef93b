"""Codecs between nodes and a server: the simulation's trajectory, and its bytes are those of the arrays that are sent."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.deploy.test_handshake import refused
from tests.support.in_process_nodes import Nodes, deployed, experiment, simulated
from undrift.core.records import nbytes


@pytest.mark.parametrize("codec", ["top-k:0.05,feedback", "random-k:0.1", "quantised:3,stochastic", "bf16"])
def test_nodes_send_what_the_simulation_counts(codec: str, tmp_path: Path) -> None:
    made = experiment("scaffold", codec=codec)
    nodes, sent = Nodes(made, tmp_path), []

    def seen(who: str, reply: Any) -> Any:
        if reply.kind == "up":
            sent.append(nbytes(tuple(reply.arrays.values())))
        return reply

    nodes.spoil = seen
    here, there = simulated(made), deployed(nodes)
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a.x, b.x) and (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
    assert sum(sent) == sum(r.bytes_up for r in here) < sum(r.bytes_down for r in here)


def test_a_codec_on_one_side_only_is_refused(tmp_path: Path, caplog: Any) -> None:
    nodes = Nodes(experiment(codec="fp16"), tmp_path)
    nodes.own["birch"] = experiment(), nodes._read
    refused(nodes, caplog, "experiment.codec is {'name': 'fp16'} on the server and not set on the node")
