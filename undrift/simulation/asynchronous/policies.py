"""When the server of a run in virtual time makes its next step."""

from dataclasses import dataclass
from typing import TypeAlias

from undrift.core.errors import InvalidInput
from undrift.core.hyper import check_fields, hyper


@dataclass(frozen=True)
class Synchronous:
    """When all of the round's cohort have answered or are lost: the slowest sets the pace."""

    def check(self, N: int) -> None:
        pass


@dataclass(frozen=True)
class Deadline:
    """After so many seconds with whatever came, or sooner if all did.

    Work that is late is thrown away, and the client keeps the state it had.  If fewer than `minimum` came in time the
    server waits for so many of them.
    """

    seconds: float = hyper(within="(0, inf)")
    minimum: int = hyper(default=1, within="[0, inf)")

    __post_init__ = check_fields

    def check(self, N: int) -> None:
        if self.minimum > N:
            raise InvalidInput(f"Deadline: minimum={self.minimum} of {N} clients can never come")


@dataclass(frozen=True)
class Buffer:
    """When `size` updates have arrived, whatever model they are of, while `concurrency` clients are kept at work.

    A client whose update waits in the buffer is not asked again before the server has used it.  `max_staleness` bounds the
    delay, as asynchronous theory assumes it (Sun et al. 2024, Theorem 5.1): no update is used that is older in server steps.
    A client whose model becomes older than that is broken off: its work is thrown away, it keeps the state it had and may be
    asked again.
    """

    size: int = hyper(within="[1, inf)")
    concurrency: int | None = hyper(default=None, within="[1, inf)")  # as many as the buffer holds
    max_staleness: int | None = hyper(default=None, within="[0, inf)")  # any

    __post_init__ = check_fields

    @property
    def at_work(self) -> int:
        return self.size if self.concurrency is None else self.concurrency

    def is_late(self, staleness: int) -> bool:
        """Whether an update of this age is not used any more."""
        return self.max_staleness is not None and staleness > self.max_staleness

    def check(self, N: int) -> None:
        for name, number in (("size", self.size), ("concurrency", self.at_work)):
            if number > N:
                raise InvalidInput(
                    f"Buffer: {name}={number} is more than there are clients, {N}: each is out only once at a time"
                )


ServerPolicy: TypeAlias = Synchronous | Deadline | Buffer
