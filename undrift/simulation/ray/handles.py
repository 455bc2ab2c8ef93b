"""Handles of workers: how a run starts, asks and replaces them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayError, RayTaskError, WorkerCrashedError

from undrift.simulation.ray.worker import Worker, WorkerTask

LOST = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError)


@dataclass(frozen=True)
class Sent:
    """A visit, and where its Down is."""

    down: Any
    visit: WorkerTask


@dataclass
class WorkerHandle:
    """A worker, and what the run must know to put another in its place."""

    number: int
    shards: range
    actor: Any
    node: str = ""
    host: str = "an unknown node"
    staged: Sent | None = None  # a visit whose states are staged
    journal: list[Sent] = field(default_factory=list)  # visits that the copy of states lacks
    settled: int = 0  # so many of them are of rounds that are over

    @property
    def unsettled(self) -> bool:
        """Whether it has made visits in a round that is not over."""
        return self.staged is not None or len(self.journal) > self.settled

    def accept(self) -> None:
        """The server has accepted its last visit: from now on that belongs to the states."""
        if self.staged is not None:
            self.journal.append(self.staged)
            self.staged = None

    def forget(self) -> None:
        """The round has not happened."""
        self.staged = None
        del self.journal[self.settled :]


def start_worker(cpu: bool = True) -> Any:
    """A new worker, on the node with the fewest; without a processor of its own it shares one."""
    kind: Any = ray.remote(num_cpus=1 if cpu else 0, scheduling_strategy="SPREAD")(Worker)
    return kind.remote()


def count_missing(actors: Sequence[Any], seconds: float) -> int:
    """How many workers are not there after some time, or as soon as all of them are."""
    replies = [actor.where.remote() for actor in actors]
    return len(ray.wait(replies, num_returns=len(replies), timeout=seconds)[1])


def stop_worker(actor: Any) -> None:
    """End a worker, if it is still there."""
    with suppress(Exception):  # it is gone, or the cluster is
        ray.kill(actor)


def fetch(reply: Any) -> Any:
    """What a worker replies; an error of its code is raised as it was there."""
    try:
        return ray.get(reply)
    except RayTaskError as error:
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from None
        raise
