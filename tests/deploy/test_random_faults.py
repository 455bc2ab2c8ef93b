"""Whatever happens, in whatever order: the server's sum is that of the states on clients' disks, and runs come to an end."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import undrift as ud
from tests.support.in_process_nodes import (
    Nodes,
    deployed_rounds,
    experiment,
    invariant_gap,
)
from undrift.deploy.messages import Envelope

EVENTS = ("", "", "", "unheard", "unanswered", "twice", "wiped", "old", "NaN", "slow", "server")


class Killed(BaseException):
    """The server's process is gone."""


class Story:
    """What happens to each request in turn; when the story is over, all goes well."""

    def __init__(self, nodes: Nodes, events: list[str]):
        self.nodes, self.events, self.bad = nodes, iter(events), ""
        self.waits: dict[str, float] = {}
        # whose states are gone, since which message: the server has not heard of it
        self.lost: dict[str, int] = {}
        self.heard: set[str] = set()  # of which of these it has heard in this round
        self.copies = nodes.folder / "copies"
        nodes.fault, nodes.spoil, nodes.delay = self.fault, self.spoil, self.delay

    def fault(self, who: str, envelope: Envelope) -> str:
        if envelope.kind not in ("work", "state"):
            return ""
        event, disk = next(self.events, ""), self.nodes.folder / who
        self.bad, self.waits[who] = "", 0.0
        if event in ("wiped", "old"):
            self.lost[who] = len(self.nodes.log) - 1
        if event == "wiped":
            self.nodes.lose(who)
        elif event == "old":  # a copy of some time ago comes back; the first time it is made
            copy = self.copies / who
            if copy.exists():
                shutil.rmtree(disk, ignore_errors=True)
                shutil.copytree(copy, disk)
            elif disk.exists():
                shutil.copytree(disk, copy)
        elif event == "NaN":
            self.bad = who
        elif event == "slow":
            self.waits[who] = 45.0
        elif event == "server":
            self.nodes.node(who).answer(envelope)
            raise Killed
        return event if event in ("unheard", "unanswered", "twice") else ""

    def received(self, tickets: Iterable[str]) -> None:
        """A node that answers a request that came after its loss has told of it."""
        for ticket in tickets:
            who, kind = self.nodes.log[int(ticket)]
            late = int(ticket) >= self.lost.get(who, len(self.nodes.log))
            if late and kind in ("work", "state"):
                del self.lost[who]
                self.heard.add(who)

    def killed(self) -> None:
        """The server has forgotten what it heard since the last round."""
        self.nodes.answers.clear()
        self.lost |= dict.fromkeys(self.heard, len(self.nodes.log))
        self.heard.clear()

    def spoil(self, who: str, reply: Envelope) -> Envelope:
        if who != self.bad or not reply.arrays:
            return reply
        spoilt = {name: torch.full_like(t, torch.nan) for name, t in reply.arrays.items()}
        return Envelope(reply.kind, reply.header, spoilt)

    def delay(self, who: str) -> float:
        return self.waits.get(who, 0.0)


def lived_through(made: ud.Experiment, events: list[str], folder: Path) -> None:
    """Every round of a run, with the server started again as often as it is killed."""
    nodes, done = Nodes(made, folder), 0
    story = Story(nodes, events)
    nodes.told = story.received
    while done < made.rounds:
        try:
            for r in deployed_rounds(nodes, bad_replies=1000, lost_states=1000, again=20.0):
                story.heard.clear()
                if not story.lost:  # of which no server can know
                    assert invariant_gap(nodes, r) < 1e-6, r.round
                done = r.round
        except Killed:
            story.killed()
    assert done == made.rounds


SERVERS = (
    None,
    {"kind": "deadline", "seconds": 30.0, "minimum": 1},
    {"kind": "buffer", "size": 2, "concurrency": 3},
)


@pytest.mark.parametrize("server", SERVERS, ids=["synchronous", "deadline", "buffer"])
@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=25),
    name=st.sampled_from(("scaffold", "feddyn")),
)
# forgotten, and not told again
@example(["", "", "", "", "", "", "wiped", "server", "unheard"], "scaffold")
# a copy from before a round that was played again, which it holds another state of
@example(
    ["", "", "", "", "unheard", "wiped", "", "", "old", "", "wiped", "", "", "", "", "", "", "old"],
    "scaffold",
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_the_sum_is_that_of_the_states(server: Any, events: list[str], name: str) -> None:
    made = experiment(name, rounds=5, server=server, model={"name": "mlp", "hidden": [1]})
    with tempfile.TemporaryDirectory() as folder:
        lived_through(made, events, Path(folder))


def played(folder: Path, events: list[str]) -> bytes:
    """The model of a run to which this happens."""
    made = experiment("scaffold-m", rounds=4, model={"name": "mlp", "hidden": [1]})
    lived_through(made, events, folder)
    return (folder / "run" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return played(tmp_path_factory.mktemp("undisturbed"), [])


@given(events=st.lists(st.sampled_from(("", "unheard", "unanswered", "twice", "slow", "server")), max_size=25))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_without_loss_of_states_the_bits_are_the_same(undisturbed: bytes, events: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert played(Path(folder), events) == undisturbed
