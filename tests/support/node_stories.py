"""Stories of deployed runs: what befalls disks, messages and the server, one request after another, and what must hold.

At every round of a run, whatever happens:

    the server's sum is that of the states that clients have by the server's book, also of those whose loss nobody can know
    a state of the book that is not on its disk was lost there, and the server has not been told
    an update is used in one round, by a client that the round names
    rounds follow upon one another, and the run comes to an end
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import undrift as ud
from tests.support.in_process_nodes import Nodes, deployed_rounds, experiment, sum_gap
from undrift.deploy.messages import NOT_VISITED, Envelope, Stamp, mark_of, pack_tensors, stamps_of, unpack_tensors
from undrift.deploy.state_store import ClientStateStore

# What may befall a request: a word on the node's disk, one on the message, and whether the server is killed upon it.
DISK = ("wiped", "old", "flipped")
MESSAGE = ("unheard", "unanswered", "twice", "slow", "NaN")
EVENTS = (
    "",
    "",
    "",
    *DISK,
    *MESSAGE,
    "server",
    "unheard server",
    "wiped slow",
    "old unanswered",
    "wiped server",
    "old NaN",
)
LOSSES = ("", "", *DISK, *DISK, "server", "wiped slow", "old unanswered", "wiped server", "wiped unheard", "old twice")
QUIET = ("", "unheard", "unanswered", "twice", "slow", "server", "unheard server", "slow server")  # no state is lost

SERVERS: dict[str, Any] = {
    "synchronous": None,
    "deadline": {"kind": "deadline", "seconds": 30.0, "minimum": 1},
    "buffer": {"kind": "buffer", "size": 2, "concurrency": 3},
}
METHODS = ("scaffold", "feddyn", "scaffold-m", "fedhbm")  # the server adds up the states of all but the last
LONGEST, LATEST = 1000, 1e5  # messages and seconds of a run that comes to an end


class Killed(BaseException):
    """The server's process is gone."""


class Sent(NamedTuple):
    """A request, and in which round it was sent."""

    who: str
    envelope: Envelope
    round: int


@dataclass
class Disk:
    """All that a node has ever stored, by stamp, and what it has stored now."""

    folder: Path
    ever: dict[Stamp, dict[str, Tensor]] = field(default_factory=dict)
    lost: set[Stamp] = field(default_factory=set)  # by what befell it, not by what the node itself has forgotten
    _read: dict[tuple[str, int, int], Stamp | None] = field(default_factory=dict)

    def now(self) -> set[Stamp]:
        """The states that are there, as the node itself would find them."""
        found: set[Stamp] = set()
        for path in self.folder.glob("*/*.safetensors"):
            about = path.stat()
            key = str(path), about.st_mtime_ns, about.st_ino
            if key not in self._read:
                self._read[key] = self._look(path)
            stamp = self._read[key]
            found |= set() if stamp is None else {stamp}
        return found

    def _look(self, path: Path) -> Stamp | None:
        round, exchange = map(int, path.stem.split("-"))
        stamp = Stamp(round, exchange)
        stored = ClientStateStore(path.parent).get(stamp)
        if stored is None:
            return None
        up = {name: t for name, t in stored[0].items() if name.startswith("up.")}
        stamp = stamp._replace(mark=mark_of(stored[1]["request"], up))
        self.ever[stamp] = stored[0]
        return stamp


class Story:
    """What happens to each request in turn; when the story is over, all goes well."""

    def __init__(self, nodes: Nodes, events: Sequence[str]):
        self.nodes, self.events, self.round = nodes, iter(events), 0
        self.disks = {who: Disk(nodes.folder / who) for who in nodes.there.values()}
        self.sent: dict[str, Sent] = {}  # by ticket
        self.last: dict[str, Envelope] = {}  # what each was asked last
        self.answered: dict[str, Envelope] = {}  # to which of its requests each has been heard
        self.told: set[tuple[str, Stamp]] = set()  # states of whose loss the server has heard
        self.bad, self.wait = False, 0.0
        nodes.fault, nodes.spoil, nodes.told = self.fault, self.spoil, self.received
        nodes.delay, nodes.pause = self.delay, self.pause

    def delay(self, who: str) -> float:
        return self.wait

    def pause(self, seconds: float) -> None:
        assert self.nodes.time < LATEST, "the run does not come to an end"
        self.nodes.time += seconds

    def fault(self, who: str, envelope: Envelope) -> str:
        assert len(self.nodes.log) < LONGEST, "the run does not come to an end"
        self.bad, self.wait = False, 0.0
        if envelope.kind not in ("work", "state"):
            return ""
        event = next(self.events, "").split()
        self.sent[str(len(self.nodes.log) - 1)], self.last[who] = Sent(who, envelope, self.round), envelope
        before = self.disks[who].now()
        for word in event:
            {"wiped": self.nodes.lose, "old": self.go_back, "flipped": self.flip}.get(word, lambda _: None)(who)
        now = self.disks[who].now()
        self.disks[who].lost |= before - now
        self.told -= {(who, stamp) for stamp in now}  # what was lost is there again
        self.bad, self.wait = "NaN" in event, 45.0 if "slow" in event else 0.0
        if "server" in event:
            if "unheard" not in event:
                self.nodes.node(who).answer(envelope)
            raise Killed
        return next((word for word in event if word in ("unheard", "unanswered", "twice")), "")

    def go_back(self, who: str) -> None:
        """A copy of some time ago comes back; the first time it is made."""
        disk, copy = self.nodes.folder / who, self.nodes.folder / "copies" / who
        if copy.exists():
            shutil.rmtree(disk, ignore_errors=True)
            shutil.copytree(copy, disk)
        elif disk.exists():
            shutil.copytree(disk, copy)

    def flip(self, who: str) -> None:
        """A bit of the newest state is another."""
        files = sorted((self.nodes.folder / who).glob("*/*.safetensors"))
        if files:
            content = bytearray(files[-1].read_bytes())
            content[len(content) // 2] ^= 1
            files[-1].unlink()
            files[-1].write_bytes(content)

    def spoil(self, who: str, reply: Envelope) -> Envelope:
        self.disks[who].now()  # what has been stored meanwhile is remembered
        if not self.bad or not reply.arrays:
            return reply
        spoilt = {name: torch.full_like(t, torch.nan) for name, t in reply.arrays.items()}
        return Envelope(reply.kind, reply.header, spoilt)

    def received(self, tickets: Iterable[str]) -> None:
        """What the server hears, unless it does not wait for that answer any more."""
        for ticket in tickets:
            sent, (_, reply) = self.sent.get(ticket), self.nodes.answers[ticket]
            if sent is None:
                continue
            first = sent.envelope is not self.answered.get(sent.who)
            self.answered[sent.who] = sent.envelope
            if reply.kind != "lost":
                continue
            stamp = Stamp(*sent.envelope.header["visit"]["base"])
            assert stamp in self.disks[sent.who].lost, f"{sent.who} has forgotten the state {stamp}"
            if first and sent.round == self.round and self.last[sent.who] is sent.envelope:
                self.told.add((sent.who, stamp))

    def killed(self) -> None:
        """The server has forgotten what it heard since the last round; what was under way is lost."""
        self.nodes.answers.clear()
        self.told.clear()

    def check(self, r: ud.Round) -> dict[str, Stamp]:
        """Look at the server's book after a round."""
        names, stored = sorted(self.disks), []
        book = dict(zip(names, stamps_of(r.state.clients.gather(range(len(names)))), strict=True))
        method = self.nodes.experiment.methods[self.nodes.experiment.labels[0]].make()
        fresh = method.client(r.x)
        for who, stamp in book.items():
            disk = self.disks[who]
            there = stamp == NOT_VISITED or stamp in disk.now()
            assert stamp == NOT_VISITED or stamp in disk.ever, f"{who} never had the state {stamp}"
            assert there or stamp in disk.lost, f"{who} has forgotten the state {stamp}"
            assert there or (who, stamp) not in self.told, f"{who} said that it has lost the state {stamp}"
            own = {} if stamp == NOT_VISITED else disk.ever[stamp]
            stored.append(fresh if not own else unpack_tensors(pack_tensors("state", fresh)[0], own, fresh))
        if hasattr(r.state.server, "c") or hasattr(r.state.server, "h"):
            gap = sum_gap(self.nodes, r, stored)
            assert gap < 1e-6, f"round {r.round}: the server's sum is {gap:.2g} from that of the states"
        self.told.clear()
        self.round = r.round
        return book


def live_through(made: ud.Experiment, events: Sequence[str], folder: Path) -> Nodes:
    """Every round of a run, with the server started again as often as it is killed."""
    nodes = Nodes(made, folder)
    story, done = Story(nodes, events), 0
    used: dict[tuple[str, Stamp], int] = {}  # in which round
    while done < made.rounds:
        first = True
        try:
            for r in deployed_rounds(nodes, bad_replies=1000, lost_states=1000):
                assert r.round <= done + 1 if first else r.round == done + 1, f"round {r.round} follows round {done}"
                first, done = False, r.round
                used = {update: t for update, t in used.items() if t < done}  # others are played again
                book = story.check(r)
                for who in (sorted(book)[i] for i in r.clients if i not in r.left_out):
                    assert used.setdefault((who, book[who]), done) == done, f"{who}'s update is used again"
        except Killed:
            story.killed()
    return nodes


def experiment_of(method: str, server: str, rounds: int = 5) -> ud.Experiment:
    """A run of few parameters, of which stories can be told by the thousand."""
    return experiment(
        method,
        rounds=rounds,
        server=SERVERS[server],
        model={"name": "mlp", "hidden": [1]},
        local={"steps": 2, "batch": 8, "lr": 0.1},
        evaluation={"every": rounds},
    )
