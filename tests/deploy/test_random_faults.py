"""Whatever happens, in whatever order: the server's sum is that of clients' states, and runs come to an end.

Stories are other ones each time; `python -m tests.faults.stories 2000 0` plays many.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.node_stories import EVENTS, LOSSES, METHODS, QUIET, SERVERS, experiment_of, live_through
from undrift.deploy.async_transport import FlowerBuffer
from undrift.deploy.fleet import Fleet
from undrift.deploy.messages import Stamp
from undrift.deploy.state_store import ClientStateStore
from undrift.deploy.transport import FlowerTransport


@pytest.mark.parametrize("server", SERVERS)
@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=40) | st.lists(st.sampled_from(LOSSES), max_size=40),
    method=st.sampled_from(METHODS),
)
# forgotten, and not told again
@example(["", "", "", "", "", "", "wiped", "server", "unheard"], "scaffold")
# a copy from before a round that was played again, which it holds another state of
@example(
    ["", "", "", "", "unheard", "wiped", "", "", "old", "", "wiped", "", "", "", "", "", "", "old"],
    "scaffold",
)
# lost while its update waits in the buffer, and asked for the state before that one: nobody can know until it is used
@example(["", "", "", "wiped", "", "", "", "wiped"], "scaffold")
@example(["", "", "", "server", "", "", "wiped", "", "", "wiped"], "scaffold")
# it said that it had lost a state that was there again when it was asked once more, and is lost for good now
@example(
    ["", "", "", "server", "", "", "unanswered", "flipped", "flipped", "", "flipped", "", "", "wiped unheard"],
    "scaffold-m",
)
# two losses that come at once
@example(["", "", "", "wiped", "wiped"], "feddyn")
# it starts again alone, and is not heard for some rounds
@example(["", "", "", "flipped", "slow", "slow", "slow", "slow"], "fedhbm")
# it starts again after a bad answer, and the server is killed before it has said so in a checkpoint
@example(["unheard", "", "", "wiped", "", "", "", "NaN", "", "server"], "scaffold-m")
# an answer to a request that was answered before
@example(["", "", "", "", "flipped", "", "slow", "", "", "wiped slow", "slow"], "feddyn")
@settings(max_examples=8, deadline=None)
def test_what_holds_at_every_round(server: str, events: list[str], method: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        live_through(experiment_of(method, server), events, Path(folder))


# what a story would notice


def use_again(self: FlowerBuffer, t: int) -> Any:
    waiting = dict(self.buffer)
    found = take(self, t)
    self.buffer = waiting
    return found


def forget(self: ClientStateStore, stamps: Iterable[Stamp]) -> None:
    keep(self, [max(stamps)])


take, keep = FlowerBuffer.take, ClientStateStore.keep


@pytest.mark.parametrize(
    ("owner", "name", "broken", "story", "said"),
    [
        (
            FlowerTransport,
            "recount",
            lambda self, server, t: server,
            ("scaffold", "synchronous", ["", "", "wiped"]),
            "the server's sum",
        ),
        (ClientStateStore, "keep", forget, ("scaffold", "synchronous", ["", "", "", "", "wiped"]), "has forgotten"),
        (FlowerBuffer, "take", use_again, ("fedhbm", "buffer", []), "is used again"),
        (Fleet, "_send", lambda self, client: None, ("fedhbm", "synchronous", []), "does not come to an end"),
    ],
    ids=["no recount", "a node forgets", "an update counts twice", "no request is sent"],
)
def test_what_is_broken_is_noticed(
    owner: Any, name: str, broken: Any, story: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError, match=said):
        live_through(experiment_of(*story[:2]), story[2], tmp_path)


# without loss of states


def played(folder: Path, events: list[str]) -> bytes:
    """The model of a run to which this happens."""
    live_through(experiment_of("scaffold-m", "synchronous"), events, folder)
    return (folder / "run" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return played(tmp_path_factory.mktemp("undisturbed"), [])


@given(events=st.lists(st.sampled_from(QUIET), max_size=40))
@settings(max_examples=12, deadline=None)
def test_without_loss_of_states_the_bits_are_the_same(undisturbed: bytes, events: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert played(Path(folder), events) == undisturbed
