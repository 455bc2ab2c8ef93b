"""The nodes behind clients' numbers: who is who, who was asked what, who is shut out."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from undrift.core.errors import InvalidInput
from undrift.deploy.checks import NAME, BadAnswer, printable, read_hello
from undrift.deploy.compatibility import differences
from undrift.deploy.messages import Envelope
from undrift.deploy.settings import Deployment

log = logging.getLogger("undrift")


class NodeLink(Protocol):
    """What carries parcels to nodes and back: Flower, or a test."""

    sent: int  # bytes, as the carrier counts them
    received: int

    def nodes(self) -> Mapping[int, str]:
        """Who is there, by number; with the name each was registered with, if it was."""
        ...

    def send(self, node: int, envelope: Envelope) -> str:
        """Send, and get a ticket for the answer."""
        ...

    def receive(self, tickets: Sequence[str]) -> Iterable[tuple[str, Envelope]]:
        """The answers that have come, with their tickets."""
        ...

    def now(self) -> float: ...
    def pause(self, seconds: float) -> None: ...


@dataclass
class _Asked:
    """A request that is not answered yet.  It is sent again after a while, and then after twice as long each time, since
    the node may only be slow; whichever answer comes first will do."""

    envelope: Envelope
    patience: float
    again: float = -1.0
    tickets: set[str] = field(default_factory=set)

    def sent(self, ticket: str, now: float) -> None:
        self.tickets.add(ticket)
        self.again, self.patience = now + self.patience, 2 * self.patience


@dataclass
class _Met:
    """A node that was greeted: what it answered, or the greeting that it has not answered yet."""

    hello: _Asked
    facts: Mapping[str, Any] | None = None
    waits: bool = False  # for another node of its name to be gone

    @property
    def open(self) -> bool:
        return self.facts is None or self.waits


class Fleet:
    """Clients by number, whatever nodes they are at the moment."""

    def __init__(self, link: NodeLink, settings: Deployment, hello: Mapping[str, Any]):
        self.link, self.settings, self.hello = link, settings, hello
        self.names: tuple[str, ...] = ()  # once they are known
        self.samples: dict[str, int] = {}
        self._there: Mapping[int, str] = {}
        self._met: dict[int, _Met] = {}
        self._node: dict[str, int] = {}
        self._asked: dict[int, _Asked] = {}
        self._tickets: dict[str, int] = {}

    # who is who

    def handshake(self, count: int, known: Mapping[str, int] | None = None) -> dict[str, int]:
        """Wait until all clients are there; their names and numbers of samples.

        `known` are those of a run that is resumed.  One that must be there and cannot is an error that says why.
        """
        self.samples = dict(known or {})
        expected = set(known or self.settings.names)
        end = self.link.now() + self.settings.wait
        while len(self._here(expected)) < count:
            self._greet()
            self._listen(expected)
            if self.link.now() > end:
                raise InvalidInput(self._missing(expected, count))
            self.link.pause(self.settings.poll)
        if not expected and len(self._node) > count:
            raise InvalidInput(
                f"there are {len(self._node)} nodes and {count} clients: {', '.join(sorted(self._node))}; "
                "name those that take part in clients"
            )
        self.names = tuple(sorted(self._here(expected)))
        return {name: self.samples[name] for name in self.names}

    def _here(self, expected: set[str]) -> set[str]:
        return set(self._node) & expected if expected else set(self._node)

    def _greet(self) -> None:
        """Say hello to nodes that are new, or have not answered for long, or may be let in by now."""
        self._there, now = self.link.nodes(), self.link.now()
        for node in [node for node in self._met if node not in self._there]:
            del self._met[node]  # it is greeted again when it is back
        for node in self._there:
            hello = Envelope("hello", self.hello)
            met = self._met.setdefault(node, _Met(_Asked(hello, self.settings.again)))
            if met.open and now > met.hello.again:
                met.hello.sent(self.link.send(node, hello), now)

    def _listen(self, expected: set[str]) -> None:
        waiting = {ticket: node for node, met in self._met.items() for ticket in met.hello.tickets}
        for ticket, reply in self.link.receive(list(waiting)) if waiting else ():
            met = self._met[waiting[ticket]]
            met.hello.tickets.discard(ticket)
            if reply.kind != "absent" and met.open:
                self._judge(waiting[ticket], reply, expected)

    def _judge(self, node: int, reply: Envelope, expected: set[str]) -> None:
        """Let a node in under its name, or refuse it and say why on both sides."""
        self._met[node].facts, self._met[node].waits = {}, False
        registered = self._there.get(node, "")
        try:
            hello = read_hello(reply, self.settings.most_samples)
        except BadAnswer as bad:
            claimed = reply.header.get("name")
            claims = claimed if isinstance(claimed, str) and NAME.fullmatch(claimed) else ""
            return self._refuse(node, claims or registered or f"node {node}", [str(bad)])
        name, samples = hello.name, hello.samples
        reasons = list(hello.reasons) or differences(self.hello, hello.facts)
        if registered and registered != name:
            reasons.append(f"it calls itself {name}, its key was registered with the name {registered}")
        if not registered and self.settings.named_keys:
            reasons.append(f"its key was registered without a name: flwr supernode register --name {name}")
        if not registered and name in self._there.values():
            reasons.append(f"it calls itself {name}, which is the name of another key")
        if expected and name not in expected:
            reasons.append(f"{name} is none of the clients: {printable(', '.join(sorted(expected)))}")
        before = self.samples.get(name, samples)
        if samples != before and not reasons:
            reasons.append(f"it has {samples} samples and had {before} when the run began")
        if reasons:
            return self._refuse(node, name, reasons)
        other = self._node.get(name)
        if other is not None and registered and self._there.get(other) == "":  # the name is this key's
            self._refuse(other, name, [f"it calls itself {name}, which is the name of another key"])
            other = None
        if other is not None and other != node and other in self._there:
            reasons.append(f"two nodes are called {name}: give each a name of its own")
            self._met[node].waits = bool(self.names)  # in a run it may be the same node, restarted
            if not self.names:  # nobody can tell which is the right one
                self._refuse(other, name, reasons)
                del self._node[name]
            return self._refuse(node, name, reasons)
        if other != node:
            log.info("%s is here, with %d samples", name, samples)
        self._node[name], self.samples[name] = node, samples
        asked = self._asked.get(self.names.index(name)) if name in self.names else None
        if asked is not None:
            asked.again = self.link.now()  # it is back, and has forgotten what it was asked

    def _refuse(self, node: int, name: str, reasons: list[str]) -> None:
        reasons = [printable(reason) for reason in reasons]  # some quote what the node said
        for reason in reasons:
            log.error("%s is refused: %s", name, reason)
        self._met[node].facts = {"name": name, "reasons": reasons}
        self.link.send(node, Envelope("refused", {"reasons": reasons}))

    def _missing(self, expected: set[str], count: int) -> str:
        refused = [
            f"{met.facts['name']} is refused: {'; '.join(met.facts['reasons'])}"
            for met in self._met.values()
            if met.facts is not None and met.facts.get("reasons")
        ]
        here = self._here(expected)
        absent = ", ".join(sorted(expected - here)) or f"{count - len(here)} more"
        said = "; ".join(["", *refused])
        return f"{len(here)} of {count} clients came in {self.settings.wait:g} s; missing: {absent}{said}"

    # who was asked what

    def ask(self, client: int, envelope: Envelope) -> None:
        """Send a request to a client, in place of any that it has not answered."""
        self._asked[client] = _Asked(envelope, self.settings.again)
        self._send(client)

    def _send(self, client: int) -> None:
        asked = self._asked[client]
        ticket = self.link.send(self._node[self.names[client]], asked.envelope)
        asked.sent(ticket, self.link.now())
        self._tickets[ticket] = client

    def forget(self, clients: Iterable[int]) -> None:
        """What these answer now is too late."""
        for client in clients:
            self._asked.pop(client, None)

    def answers(self) -> list[tuple[int, Envelope]]:
        """What clients have answered since; those who seem not to have heard are asked again."""
        came: list[tuple[int, Envelope]] = []
        tickets = list(self._tickets)
        for ticket, reply in self.link.receive(tickets) if tickets else ():
            client = self._tickets.pop(ticket)
            asked = self._asked.get(client)
            if asked is None or ticket not in asked.tickets:
                log.info("%s answered too late", self.names[client])
            elif reply.kind == "absent":
                asked.tickets.discard(ticket)
                log.warning("%s: %s", self.names[client], reply.header.get("reason"))
            else:
                del self._asked[client]
                came.append((client, reply))
        self._greet()
        self._listen(set(self.names))
        for client in [c for c, asked in self._asked.items() if self.link.now() >= asked.again]:
            log.warning("%s has not answered: asked again", self.names[client])
            self._send(client)
        return came
