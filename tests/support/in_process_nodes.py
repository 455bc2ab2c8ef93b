"""Nodes in one process, for tests: messages are handed over, time is a number, and what goes wrong is told beforehand."""

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import undrift as ud
from undrift.data.registry import Data
from undrift.deploy.messages import NOT_VISITED, Envelope, pack_tensors, stamps_of, unpack_tensors
from undrift.deploy.node import Node
from undrift.deploy.problems import data_of_client
from undrift.deploy.serving import serve
from undrift.deploy.settings import Deployment
from undrift.deploy.state_store import ClientStateStore
from undrift.experiments.config.federation import federation
from undrift.experiments.runs.running import config_of
from undrift.simulation.api import prepare

NAMES = ("ash", "birch", "cedar")
Fault = Callable[[str, Envelope], str]  # what becomes of a request: "", "unheard", "unanswered", "twice"


def experiment(algorithm: Any = "scaffold-m", **words: Any) -> ud.Experiment:
    """Three clients with digits, two a round."""
    described: dict[str, Any] = {
        "algorithm": algorithm,
        "rounds": 4,
        "data": {"name": "digits"},
        "clients": {"partition": "dirichlet", "number": 3, "alpha": 0.5, "weights": "samples"},
        "model": {"name": "logistic"},
        "participation": {"scheme": "uniform", "per_round": 2},
        "local": {"steps": 3, "batch": 16, "lr": 0.1},
    }
    return ud.Experiment(**(described | words))


@cache
def part(number: int) -> Data:
    """A client's samples, which are the same in all experiments here."""
    return data_of_client(experiment(), number)


def simulated(made: ud.Experiment) -> list[ud.Round]:
    """The rounds of the same experiment without nodes."""
    one = made.single(*made.runs()[0]).model_copy(update={"engine": "sequential"})
    return list(prepare(config_of(one, federation(one, one.seeds[0]))).play())


class Nodes:
    """A link to nodes that live here; `fault` says what goes wrong with a request, `spoil` what with an answer."""

    def __init__(self, made: ud.Experiment, folder: Path, names: Sequence[str] = NAMES):
        self.experiment, self.folder = made, folder
        self.there: dict[int, str] = {100 + i: name for i, name in enumerate(names)}
        self.registered: dict[int, str] = {}
        self.time, self.sent, self.received = 0.0, 0, 0
        self.fault: Fault = lambda name, envelope: ""
        self.spoil: Callable[[str, Envelope], Envelope] = lambda name, reply: reply
        self.delay: Callable[[str], float] = lambda name: 0.0
        self.told: Callable[[Iterable[str]], None] = lambda tickets: None
        self.log: list[tuple[str, str]] = []
        self.answers: dict[str, tuple[float, Envelope]] = {}
        self.made: dict[str, Node] = {}
        self.own: dict[str, tuple[ud.Experiment, Any]] = {}  # who is made otherwise

    def node(self, name: str) -> Node:
        made, reader = self.own.get(name, (self.experiment, self._read))
        config = {"name": name, "state": str(self.folder)}
        return self.made.setdefault(name, Node(made, config, reader))

    def _read(self, config: Mapping[str, Any]) -> Data:
        return part(sorted(set(self.there.values())).index(config["name"]))

    def lose(self, name: str) -> None:
        """All that a node has on its disk."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    # the link

    def nodes(self) -> Mapping[int, str]:
        return {node: self.registered.get(node, "") for node in self.there}

    def send(self, node: int, envelope: Envelope) -> str:
        name, ticket = self.there[node], f"{len(self.log)}"
        self.log.append((name, envelope.kind))
        fault = self.fault(name, envelope)
        if fault == "unheard":
            return ticket
        reply = self.node(name).answer(envelope)
        if fault == "twice":
            reply = self.node(name).answer(envelope)
        if fault != "unanswered":
            self.answers[ticket] = self.time + self.delay(name), self.spoil(name, reply)
        return ticket

    def receive(self, tickets: Sequence[str]) -> Iterable[tuple[str, Envelope]]:
        due = [t for t in tickets if t in self.answers and self.answers[t][0] <= self.time]
        self.told(due)
        return [(ticket, self.answers.pop(ticket)[1]) for ticket in due]

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds


@contextmanager
def quietly() -> Iterator[None]:
    """Say nothing of what is done to nodes."""
    log = logging.getLogger("undrift")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def run_dir(folder: Path) -> Path:
    return folder / "run"


def deployed_rounds(nodes: Nodes, **settings: Any) -> Iterator[Any]:
    """The rounds of a deployed run, as they come."""
    words = {"run_dir": str(run_dir(nodes.folder)), "wait": 60.0, "again": 20.0} | settings
    return serve(nodes.experiment, nodes, Deployment(**words))


def deployed(nodes: Nodes, **settings: Any) -> list[Any]:
    """All of them."""
    return list(deployed_rounds(nodes, **settings))


def state_of(nodes: Nodes, client: int, r: Any) -> Any:
    """The state that a client has by the server's book, read from its disk."""
    (stamp,) = stamps_of(r.state.clients.gather([client]))
    method = nodes.experiment.methods[nodes.experiment.labels[0]].make()
    fresh = method.client(r.x)
    if stamp == NOT_VISITED:
        return fresh
    run = json.loads((run_dir(nodes.folder) / "deployment.json").read_text())["run"]
    stored = ClientStateStore(nodes.folder / sorted(nodes.there.values())[client] / run).get(stamp)
    assert stored is not None, f"client {client} has no state {stamp}"
    return unpack_tensors(pack_tensors("state", fresh)[0], stored[0], fresh)


def invariant_gap(nodes: Nodes, r: Any) -> float:
    """How far the server's sum of clients' states is from the sum of what they have on their disks."""
    return sum_gap(nodes, r, [state_of(nodes, i, r) for i in range(len(nodes.there))])


def sum_gap(nodes: Nodes, r: Any, states: Sequence[Any]) -> float:
    """How far the server's sum of clients' states is from the sum of these, in the order of clients."""
    about = json.loads((run_dir(nodes.folder) / "deployment.json").read_text())["clients"]
    total = sum(about.values())
    server = r.state.server
    kept = server.h if hasattr(server, "h") else server.c
    found = 0 * kept
    for name, state in zip(sorted(about), states, strict=True):
        found = found + about[name] / total * (state.g if hasattr(state, "g") else state.c)
    return float((kept - found).abs().max())
