"""The nodes behind clients' numbers: who is who, who was asked what, who is shut out."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from undrift.errors import InvalidInput
from undrift.flower.facts import differences
from undrift.flower.messages import Parcel
from undrift.flower.settings import Deployment

log = logging.getLogger("undrift")


class Link(Protocol):
    """What carries parcels to nodes and back: Flower, or a test."""

    sent: int  # bytes, as the carrier counts them
    received: int

    def nodes(self) -> Mapping[int, str]:
        """Who is there, by number; with the name each was registered with, if it was."""
        ...

    def send(self, node: int, parcel: Parcel) -> str:
        """Send, and get a ticket for the answer."""
        ...

    def receive(self, tickets: Sequence[str]) -> Iterable[tuple[str, Parcel]]:
        """The answers that have come, with their tickets."""
        ...

    def now(self) -> float: ...
    def pause(self, seconds: float) -> None: ...


@dataclass
class _Asked:
    """A request that is not answered yet; after a while it is sent again."""

    parcel: Parcel
    again: float
    tickets: set[str] = field(default_factory=set)


@dataclass
class _Met:
    """A node that was greeted."""

    ticket: str | None  # while it has not answered
    again: float
    facts: Mapping[str, Any] | None = None
    waits: bool = False  # for another node of its name to be gone


class Fleet:
    """Clients by number, whatever nodes they are at the moment."""

    def __init__(self, link: Link, settings: Deployment, hello: Mapping[str, Any]):
        self.link, self.settings, self.hello = link, settings, hello
        self.names: tuple[str, ...] = ()  # once they are known
        self.samples: dict[str, int] = {}
        self._there: Mapping[int, str] = {}
        self._met: dict[int, _Met] = {}
        self._node: dict[str, int] = {}
        self._asked: dict[int, _Asked] = {}
        self._tickets: dict[str, int] = {}

    # who is who

    def first_contact(self, count: int, known: Mapping[str, int] | None = None) -> dict[str, int]:
        """Wait until all clients are there; their names and numbers of samples.

        `known` are those of a run that is gone on with.  One that must be there and cannot is an error that says why.
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
            met = self._met.get(node)
            if met is None or (now > met.again and (met.ticket is not None or met.waits)):
                ticket = self.link.send(node, Parcel("hello", self.hello))
                self._met[node] = _Met(ticket, now + self.settings.again)

    def _listen(self, expected: set[str]) -> None:
        waiting = {met.ticket: node for node, met in self._met.items() if met.ticket is not None}
        for ticket, reply in self.link.receive(list(waiting)) if waiting else ():
            node = waiting[ticket]
            if reply.kind == "absent":
                del self._met[node]
                continue
            self._met[node].ticket = None
            self._judge(node, reply, expected)

    def _judge(self, node: int, reply: Parcel, expected: set[str]) -> None:
        """Let a node in under its name, or refuse it and say why on both sides."""
        facts = reply.words
        self._met[node].facts = facts
        name = facts.get("name")
        if reply.kind != "hello" or not isinstance(name, str):
            return self._refuse(node, f"node {node}", [str(facts.get("reason", "it said no name"))])
        reasons = [str(reason) for reason in facts.get("reasons", ())]
        if not reasons:
            reasons = differences(self.hello, facts)
        samples, registered = facts.get("samples"), self._there.get(node, "")
        if not isinstance(samples, int) or samples < 1:
            reasons = reasons or ["it has no samples"]
        if registered and registered != name:
            reasons.append(
                f"it calls itself {name}, its key was registered with the name {registered}"
            )
        if expected and name not in expected:
            reasons.append(f"{name} is none of the clients: {', '.join(sorted(expected))}")
        before = self.samples.get(name, samples)
        if samples != before:
            reasons.append(f"it has {samples} samples and had {before} when the run began")
        other = self._node.get(name)
        if other is not None and other != node and other in self._there:
            reasons.append(f"two nodes are called {name}: give each a name of its own")
            self._met[node].waits = True
            if not self.names:  # nobody can tell which is the right one
                self._refuse(other, name, reasons)
                del self._node[name]
        if reasons:
            return self._refuse(node, name, reasons)
        if other != node:
            log.info("%s is here, with %d samples", name, samples)
        self._node[name], self.samples[name] = node, int(samples or 0)

    def _refuse(self, node: int, name: str, reasons: list[str]) -> None:
        for reason in reasons:
            log.error("%s is refused: %s", name, reason)
        self._met[node].facts = {"name": name, "reasons": reasons}
        self.link.send(node, Parcel("refused", {"reasons": reasons}))

    def _missing(self, expected: set[str], count: int) -> str:
        refused = [
            f"{met.facts['name']} is refused: {'; '.join(met.facts['reasons'])}"
            for met in self._met.values()
            if met.facts is not None and met.facts.get("reasons")
        ]
        here = self._here(expected)
        absent = ", ".join(sorted(expected - here)) or f"{count - len(here)} more"
        said = "; ".join(["", *refused])
        return (
            f"{len(here)} of {count} clients came in {self.settings.wait:g} s; missing: {absent}{said}"
        )

    # who was asked what

    def ask(self, client: int, parcel: Parcel) -> None:
        """Send a request to a client, in place of any that it has not answered."""
        self._asked[client] = _Asked(parcel, again=-1.0)
        self._send(client)

    def _send(self, client: int) -> None:
        asked, node = self._asked[client], self._node.get(self.names[client])
        asked.again = self.link.now() + self.settings.again
        if node is not None:
            ticket = self.link.send(node, asked.parcel)
            asked.tickets.add(ticket)
            self._tickets[ticket] = client

    def forget(self, clients: Iterable[int]) -> None:
        """What these answer now is too late."""
        for client in clients:
            self._asked.pop(client, None)

    def answers(self) -> list[tuple[int, Parcel]]:
        """What clients have answered since; those who seem not to have heard are asked again."""
        came: list[tuple[int, Parcel]] = []
        tickets = list(self._tickets)
        for ticket, reply in self.link.receive(tickets) if tickets else ():
            client = self._tickets.pop(ticket)
            asked = self._asked.get(client)
            if asked is None or ticket not in asked.tickets:
                log.info("%s answered too late", self.names[client])
            elif reply.kind == "absent":
                asked.tickets.discard(ticket)
                log.warning("%s: %s", self.names[client], reply.words.get("reason"))
            else:
                del self._asked[client]
                came.append((client, reply))
        self._greet()
        self._listen(set(self.names))
        for client in [c for c, asked in self._asked.items() if self.link.now() > asked.again]:
            log.warning("%s has not answered: asked again", self.names[client])
            self._send(client)
        return came
