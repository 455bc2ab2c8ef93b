"""Where the clients of a run are: in this process, or with workers on a cluster."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from undrift.compiler.kernels.dense import own_products
from undrift.core.algorithm import Algorithm, Exchange
from undrift.core.rng import Key
from undrift.local.settings import Local
from undrift.problems import Problem
from undrift.simulation.aggregation import Outcome, Party, Setting, carry_out
from undrift.simulation.client_states import ClientStates, Pending
from undrift.simulation.engines import Choice, engine_of
from undrift.simulation.participation import Participation


@dataclass(frozen=True)
class Plan:
    """What stays the same during a run."""

    algorithm: Algorithm
    problem: Problem
    participation: Participation
    local: Local
    choice: Choice
    seed: int
    largest_weight: float

    def evaluate(self, x: Tensor, t: int) -> dict[str, float]:
        """The figures of the model after round t."""
        with own_products(self.choice.compiles(t)):
            return self.problem.evaluate(x)


class Site(Protocol):
    """Where clients are and what they remember: in this process, or with workers on a cluster.

    New states are held back until the server has accepted an exchange, and undone if the round fails later.
    """

    def carry_out(self, exchange: Exchange, server: Any, party: Party, key: Key) -> Outcome:
        """One exchange with some clients; their new states are held back."""
        ...

    def write(self) -> None:
        """Let the next exchange of the round see the new states."""
        ...

    def keep(self, t: int) -> None:
        """Round t is over: its states are written."""
        ...

    def undo(self) -> None:
        """The round has failed: states are what they were before it."""
        ...

    def close(self) -> None:
        """There will be no more rounds."""
        ...


class Here:
    """Clients that are visited in this process."""

    def __init__(self, plan: Plan, clients: ClientStates):
        self.plan, self.clients, self.pending = plan, clients, Pending(clients)

    def carry_out(self, exchange: Exchange, server: Any, party: Party, key: Key) -> Outcome:
        setting = setting_of(self.plan, key.round)
        outcome = carry_out(exchange, server, self.clients, party, setting, key)
        self.pending.hold(outcome.states)
        return outcome

    def write(self) -> None:
        self.pending.write()

    def keep(self, t: int) -> None:
        self.pending.keep()
        self.clients.round = t

    def undo(self) -> None:
        self.pending.undo()

    def close(self) -> None:
        pass


def setting_of(plan: Plan, t: int) -> Setting:
    """What stays the same during round t; a first contact, t = 0, belongs to round 1."""
    engine = engine_of(plan.choice, max(t, 1))
    return Setting(plan.problem, engine, plan.choice.chunk, plan.local.solver(t))


def site_of(plan: Plan, clients: ClientStates) -> Site:
    """Where the clients of a run are."""
    if plan.choice.engine != "ray":
        return Here(plan, clients)
    from undrift.simulation.ray.transport import Crew  # Ray need not be installed

    return Crew(plan, clients)
