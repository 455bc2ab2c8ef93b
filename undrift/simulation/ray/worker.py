"""One worker: a process on one core that visits the clients of some shards and keeps their states."""

import logging
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch

from undrift.core.rng import Key
from undrift.simulation.aggregation import PartialAggregate
from undrift.simulation.client_states import ClientStates, StagedStates, half_of_memory
from undrift.simulation.participants import Participants
from undrift.simulation.ray.serialisation import Packed, pack_object, pack_problem, unpack_object
from undrift.simulation.transport import RunPlan
from undrift.simulation.transport import visit_clients as visit_clients
from undrift.version import __version__


@dataclass(frozen=True)
class Job:
    """What a worker is for, the same for all of them."""

    plan: RunPlan  # without its problem, which travels apart
    initial: Any  # the state of a client that has not been seen
    workers: int


@dataclass(frozen=True)
class WorkerTask:
    """One exchange with the clients of a worker, shard by shard.  Down travels apart, once for all workers."""

    key: Key
    participants: dict[int, Participants]
    keep: bool = True  # what clients will have learnt


@dataclass(frozen=True)
class WorkerReply:
    """What a visit came to, shard by shard, and the warnings that were logged meanwhile."""

    parts: dict[int, PartialAggregate]
    warnings: list[str]


def versions() -> dict[str, str]:
    """What must be alike everywhere."""
    return {"undrift": __version__, "torch": str(torch.__version__), "Python": platform.python_version()}


class Worker:
    """Clients with numbers i mod shards, for some of the shards, and their states; the run tells it what to do."""

    plan: RunPlan
    job: Job

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.warnings = _Warnings()
        logging.getLogger("undrift").addHandler(self.warnings)

    def where(self) -> tuple[str, str, dict[str, str]]:
        """The node's number, its name, and what runs there."""
        return ray.get_runtime_context().get_node_id(), socket.gethostname(), versions()

    def open(self, again: Packed) -> Packed:
        """The problem read again, for all workers of this node."""
        return pack_problem(unpack_object(again)())

    def begin(self, problem: Packed, job: Packed) -> None:
        self.job = unpack_object(job)
        self.plan = replace(self.job.plan, problem=unpack_object(problem, shared=True))
        budget = half_of_memory() // (2 * self.job.workers)  # the run keeps copies of its own
        self.clients = ClientStates(self.job.initial, budget)
        self.staged = StagedStates(self.clients)

    def take(self, clients: Sequence[int], states: Packed) -> None:
        """Start from these client states."""
        self.clients.scatter(clients, unpack_object(states))
        self.clients.changed()

    def visit(self, down: Packed, visit: WorkerTask) -> Packed:
        """The parts of an exchange.  New states stay here, staged."""
        parts = self._visit(unpack_object(down), visit)
        bare = {shard: replace(part, states=[]) for shard, part in parts.items()}
        return pack_object(WorkerReply(bare, self.warnings.take()))

    def replay(self, down: Packed, visit: WorkerTask, over: bool) -> None:
        """Repeat a visit that another worker has made, and apply the states it led to."""
        self._visit(unpack_object(down), visit)
        self.staged.apply()
        if over:  # the round of that visit is
            self.staged.commit()

    def apply(self) -> None:
        self.staged.apply()

    def commit(self) -> None:
        self.staged.commit()

    def rollback(self) -> None:
        self.staged.rollback()

    def changed(self) -> list[int]:
        """The clients whose states have changed since this was last asked."""
        return self.clients.changed()

    def states(self, clients: Sequence[int]) -> Packed:
        return pack_object(self.clients.gather(clients))

    def _visit(self, down: Any, visit: WorkerTask) -> dict[int, PartialAggregate]:
        plan, key = self.plan, visit.key
        exchange = plan.exchanges(key.round)[key.exchange]
        parts = {
            shard: visit_clients(plan, exchange, down, self.clients, participants, key)
            for shard, participants in visit.participants.items()
        }
        if visit.keep:
            self.staged.stage([each for part in parts.values() for each in part.states])
        return parts


class _Warnings(logging.Handler):
    """Warnings, to be passed on to the run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def take(self) -> list[str]:
        messages, self.messages = self.messages, []
        return messages
