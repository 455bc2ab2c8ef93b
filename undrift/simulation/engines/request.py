"""What an engine is asked to compute: one exchange with some clients."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from undrift.core.algorithm import Algorithm, Exchange
from undrift.core.observe import LocalPath, Observe
from undrift.core.records import map_tensors
from undrift.core.rng import Key
from undrift.core.work import Solver, Work
from undrift.problems import Problem
from undrift.simulation.aggregation import ClientResults
from undrift.simulation.client_states import ClientStates
from undrift.simulation.participants import Participants


@dataclass(frozen=True)
class Request:
    """One exchange with some clients, who start from their states.

    All are sent the same message, unless `downs` gives a row for each client; then `rounds` are those of the models that
    they work on (virtual time).  An engine may add up what clients send only if `may_sum`.  With `observe`, results tell
    what was seen of local loops.
    """

    algorithm: Algorithm
    exchange: Exchange
    down: Any
    states: ClientStates
    participants: Participants
    problem: Problem
    solver: Solver
    key: Key
    chunk: int = 1
    may_sum: bool = True
    downs: Callable[[Sequence[int]], Any] | None = None
    rounds: Callable[[Sequence[int]], list[int] | None] = lambda clients: None
    observe: Observe | None = None

    def down_rows(self, clients: Sequence[int]) -> Any:
        """The message as a row for every client."""
        if self.downs is not None:
            return self.downs(clients)
        return map_tensors(lambda t: t.expand(len(clients), *t.shape), self.down)

    def work(self, clients: Sequence[int], single: bool, problem: Problem | None = None) -> Work:
        """The Work of these clients."""
        steps = [self._steps[i] for i in clients]
        path = None if self.observe is None else LocalPath(self.observe, steps)
        rounds = self.rounds(clients)
        return Work(problem or self.problem, self.solver, clients, steps, self.key, single, rounds, path)

    @cached_property
    def _steps(self) -> dict[int, int]:
        return dict(zip(self.participants.clients, self.participants.steps, strict=True))


ResultStream: TypeAlias = Generator[ClientResults, None, None]
# A way of visiting clients: results come chunk by chunk, in ascending order of clients; to be closed.
Engine: TypeAlias = Callable[[Request], ResultStream]
