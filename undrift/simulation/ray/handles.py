"""Workers as a run knows them: started, asked, replaced."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from undrift.simulation.ray.worker import Visit, Worker

LOST = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError)


@dataclass(frozen=True)
class Sent:
    """A visit, and where its Down is."""

    down: Any
    visit: Visit


@dataclass
class Hand:
    """A worker, and what the run must know to put another in its place."""

    number: int
    shards: range
    actor: Any
    node: str = ""
    host: str = "an unknown node"
    held: Sent | None = None  # a visit whose states are not written yet
    journal: list[Sent] = field(default_factory=list)  # visits that the copy of states lacks
    settled: int = 0  # so many of them are of rounds that are over

    @property
    def unsettled(self) -> bool:
        """Whether it has made visits in a round that is not over."""
        return self.held is not None or len(self.journal) > self.settled

    def accept(self) -> None:
        """The server has accepted its last visit: from now on that belongs to the states."""
        if self.held is not None:
            self.journal.append(self.held)
            self.held = None

    def forget(self) -> None:
        """The round has not happened."""
        self.held = None
        del self.journal[self.settled :]


def started(cpu: bool = True) -> Any:
    """A new worker, on the node with the fewest; without a processor of its own it shares one."""
    kind: Any = ray.remote(num_cpus=1 if cpu else 0, scheduling_strategy="SPREAD")(Worker)
    return kind.remote()


def missing(actors: Sequence[Any], seconds: float) -> int:
    """How many workers are not there after some time, or as soon as all of them are."""
    replies = [actor.where.remote() for actor in actors]
    return len(ray.wait(replies, num_returns=len(replies), timeout=seconds)[1])


def dismissed(actor: Any) -> None:
    """End a worker, if it is still there."""
    with suppress(Exception):  # it is gone, or the cluster is
        ray.kill(actor)


def got(reply: Any) -> Any:
    """What a worker replies; an error of its code is raised as it was there."""
    try:
        return ray.get(reply)
    except RayTaskError as error:
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from None
        raise


def reason_of(error: BaseException) -> str:
    """What an error says, in a line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
