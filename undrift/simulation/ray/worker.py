"""One worker: a process on one core that visits the clients of some shards and keeps what they remember."""

import logging
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch

import undrift
from undrift.core.algorithm import Algorithm, exchanges_of
from undrift.core.rng import Key
from undrift.core.work import Solver
from undrift.simulation.aggregation import Part, Party, Setting, visited
from undrift.simulation.client_states import ClientStates, Pending, half_of_memory
from undrift.simulation.engines import Choice, engine_of
from undrift.simulation.ray.serialisation import Packed, packed, packed_problem, unpacked


@dataclass(frozen=True)
class Job:
    """What a worker is for, the same for all of them."""

    algorithm: Algorithm
    choice: Choice
    initial: Any  # the state of a client that has not been seen
    workers: int


@dataclass(frozen=True)
class Visit:
    """One exchange with the clients of a worker, shard by shard.  Down travels apart, once for all workers."""

    key: Key
    solver: Solver
    parties: dict[int, Party]


@dataclass(frozen=True)
class Answer:
    """What a visit came to, shard by shard, and what was said in its course."""

    parts: dict[int, Part]
    said: list[str]


def versions() -> dict[str, str]:
    """What must be alike everywhere."""
    return {
        "undrift": undrift.__version__,
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
    }


class Worker:
    """Clients with numbers i mod shards, for some of the shards, and their states; the run tells it what to do."""

    problem: Any
    job: Job

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.said = _Said()
        logging.getLogger("undrift").addHandler(self.said)

    def where(self) -> tuple[str, str, dict[str, str]]:
        """The node's number, its name, and what runs there."""
        return ray.get_runtime_context().get_node_id(), socket.gethostname(), versions()

    def open(self, again: Packed) -> Packed:
        """The problem read anew, for all workers of this node."""
        return packed_problem(unpacked(again)())

    def begin(self, problem: Packed, job: Packed) -> None:
        self.problem, self.job = unpacked(problem, shared=True), unpacked(job)
        budget = half_of_memory() // (2 * self.job.workers)  # the run keeps copies of its own
        self.clients = ClientStates(self.job.initial, budget)
        self.pending = Pending(self.clients)

    def take(self, clients: Sequence[int], states: Packed) -> None:
        """Remember what clients had been like before."""
        self.clients.scatter(clients, unpacked(states))
        self.clients.changed()

    def visit(self, down: Packed, visit: Visit) -> Packed:
        """The parts of an exchange.  New states stay here, and are not written yet."""
        parts = self._visited(unpacked(down), visit)
        bare = {shard: replace(part, states=[]) for shard, part in parts.items()}
        return packed(Answer(bare, self.said.taken()))

    def replay(self, down: Packed, visit: Visit, over: bool) -> None:
        """Make a visit once more that another worker has made, and write the states it led to."""
        self._visited(unpacked(down), visit)
        self.pending.write()
        if over:  # the round of that visit is
            self.pending.keep()

    def write(self) -> None:
        self.pending.write()

    def keep(self) -> None:
        self.pending.keep()

    def undo(self) -> None:
        self.pending.undo()

    def changed(self) -> list[int]:
        """The clients whose states have changed since this was last asked."""
        return self.clients.changed()

    def states(self, clients: Sequence[int]) -> Packed:
        return packed(self.clients.gather(clients))

    def _visited(self, down: Any, visit: Visit) -> dict[int, Part]:
        key, choice = visit.key, self.job.choice
        exchange = exchanges_of(self.job.algorithm, key.round)[key.exchange]
        engine = engine_of(choice, max(key.round, 1))  # a first contact belongs to round 1
        setting = Setting(self.problem, engine, choice.inner.chunk, visit.solver)
        parts = {
            shard: visited(exchange.local, down, self.clients, party, setting, key)
            for shard, party in visit.parties.items()
        }
        self.pending.hold([each for part in parts.values() for each in part.states])
        return parts


class _Said(logging.Handler):
    """Warnings, to be passed on to the run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def taken(self) -> list[str]:
        messages, self.messages = self.messages, []
        return messages
