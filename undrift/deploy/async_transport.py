"""Clients of a buffered server (ud.Buffer) in real time: they come when they like."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undrift.core.algorithm import Exchange
from undrift.core.errors import Deserted
from undrift.core.records import nbytes
from undrift.core.rng import Key
from undrift.deploy.messages import NOT_VISITED, Envelope, Stamp
from undrift.deploy.transport import Answers, FlowerTransport, StatesLost
from undrift.simulation.aggregation import Reply, Traffic, send
from undrift.simulation.asynchronous.buffered_rounds import Updates, discounts
from undrift.simulation.asynchronous.policies import Buffer
from undrift.simulation.driver import PlayedRound, play_exchanges
from undrift.simulation.participants import Participants
from undrift.simulation.participation import Draw
from undrift.simulation.results import Round, State


@dataclass(frozen=True)
class Dispatched:
    """A client at work: on which model it works, and what it was asked."""

    version: int
    weight: float
    steps: int
    request: Envelope
    form: Any
    up: Any = None  # when it has answered
    stamp: Stamp = NOT_VISITED  # of the state that it then has


class FlowerBuffer:
    """Nodes at work, and a buffer of their updates: an `AsyncTransport`.

    What is in flight when the server's process dies is asked again: no answer counts before it was used.
    """

    def __init__(self, nodes: FlowerTransport, policy: Buffer, state: State):
        self.nodes, self.plan, self.policy = nodes, nodes.plan, policy
        self.out: dict[int, Dispatched] = {}
        self.buffer: dict[int, Dispatched] = {}  # answered, in that order
        self._queue = self._in_turn(state.round)
        self._initialised = state.round > 0
        self._server: Any = state.server  # as the initialisation round has left it

    def initialise(self, server: Any) -> PlayedRound | None:
        self._server = server
        self.nodes.note_stamps()
        exchanges = [(0, number, e) for number, e in enumerate(self.plan.exchanges(0))]
        if self._initialised or not exchanges:
            return None
        played = play_exchanges(self.plan, self.nodes, server, exchanges, lambda: Draw(()))
        self.nodes.staged.commit()
        self._initialised, self._server = True, played.server
        return played

    def receive(self, t: int) -> Traffic:
        nodes, found = self.nodes, Answers()
        lost: list[int] = []
        for i, reply in nodes.fleet.answers():
            out = self.out.get(i)
            if out is None:
                continue
            loss = nodes.note_loss(i, reply, out.request, t)
            if loss and not nodes.entangled:
                self.out[i] = replace(out, request=nodes.restart(i, out.request))
                nodes.fleet.ask(i, self.out[i].request)
                continue
            del self.out[i]
            if loss:
                lost.append(i)
                continue
            nodes.read(found, i, reply, out.request, out.form, t)
            if i in found.good:
                self.buffer[i] = replace(out, up=found.good.pop(i), stamp=found.stamps[i])
        self._break_off(t)
        if lost:
            nodes.extra += Traffic(bytes_up=found.bytes_up)
            raise BufferedStatesLost(self, sorted(lost), t)
        return Traffic(bytes_up=found.bytes_up, left_out=tuple(found.bad))

    def _break_off(self, t: int) -> None:
        """Clients on models that are too old by now are free again; what they answer is not heard."""
        for held in (self.out, self.buffer):
            for i in [i for i, each in held.items() if self.policy.is_late(t - 1 - each.version)]:
                age = t - 1 - held.pop(i).version
                self.nodes.fleet.forget([i])
                self.nodes.faults.note(t, i, f"its update is {age} server steps old: thrown away")

    def is_full(self) -> bool:
        return len(self.buffer) >= self.policy.size

    def dispatch(self, server: Any, t: int) -> int:
        nodes, size = self.nodes, self.policy.size
        (exchange,) = self.plan.exchanges(t)
        N, sent = self.plan.problem.N, 0
        able = [i for i in range(N) if not nodes.faults.shut_out(i)]
        if len(able) < size:
            raise Deserted(f"round {t}: {len(able)} clients are not shut out, the buffer waits for {size}", t, None)
        free = {i for i in able if i not in self.out and i not in self.buffer}
        down = send(exchange, server, t)
        for _ in range(100 * N):
            if len(self.out) >= self.policy.at_work or not free:
                break
            i, weight = next(self._queue, (None, 0.0))
            if i is None:
                raise Deserted(f"round {t}: participation names nobody any more", t, None)
            if i in free:
                free.discard(i)
                self._send(exchange, down, i, weight, t)
                sent += nbytes(down)
        return sent

    def _send(self, exchange: Exchange, down: Any, i: int, weight: float, t: int) -> None:
        plan, key = self.plan, Key(self.plan.seed, t)
        (steps,) = plan.local.count(plan.problem, key, [i])
        request = self.nodes.request(down, i, steps, key)
        form = self.nodes.form(exchange, down, t)
        self.out[i] = Dispatched(t - 1, weight, steps, request, form)
        self.nodes.fleet.ask(i, request)

    def _in_turn(self, cohort: int) -> Iterator[tuple[int, float]]:
        """Clients in the order in which participation names them, cohort after cohort, with their weights."""
        plan, empty = self.plan, 0
        while empty < 1000:
            cohort += 1
            draw = plan.draw(cohort)
            empty = 0 if draw.clients else empty + 1
            for j, i in enumerate(draw.clients):
                p = float(plan.problem.weights[i]) / plan.largest_weight
                yield i, p if draw.counts is None else float(draw.counts[j])

    def wait(self, server: Any, t: int) -> int:
        self.nodes.fleet.link.pause(self.nodes.fleet.settings.poll)
        return 0

    def take(self, t: int) -> Updates:
        plan, nodes = self.plan, self.nodes
        used = dict(sorted(list(self.buffer.items())[: self.policy.size]))
        clients, dispatched = list(used), list(used.values())
        ages = [t - 1 - each.version for each in dispatched]
        participants = Participants(
            clients=clients,
            weights=[each.weight for each in dispatched],
            steps=[each.steps for each in dispatched],
            share=[float(plan.problem.weights[i]) for i in clients],
            staleness=ages,
        )
        stamps = {i: each.stamp for i, each in used.items()}
        ups = {i: each.up for i, each in used.items()}
        (exchange,) = plan.exchanges(t)
        discount = discounts(plan.algorithm, clients, ages)
        part = nodes.aggregate(ups, stamps, exchange, participants, t, discount)
        nodes.staged.stage(part.states)
        for i in used:
            del self.buffer[i]
        return Updates(participants, part)

    def recover(self, state: State, lost: Sequence[int], t: int) -> State:
        """As with cohorts; whoever starts again is not in flight any more."""
        nodes, clients = self.nodes, range(self.plan.problem.N)
        before = {i: nodes.stamp_of(i) for i in clients}
        nodes.fleet.forget(self.out)
        self.out = {}
        state = nodes.recover(replace(state, server=self._server), lost, t)
        for i in clients:
            if nodes.stamp_of(i) != before[i]:
                self.buffer.pop(i, None)
        return state

    # the rest of a `Transport`

    def cohort(self, t: int) -> Draw:
        raise RuntimeError("a buffered server has no cohorts")

    def exchange(self, exchange: Exchange, server: Any, draw: Draw, key: Key) -> Reply:
        raise RuntimeError("a buffered server has no cohorts")

    def of_everyone(self, exchange: Exchange, server: Any, key: Key) -> None:
        return self.nodes.of_everyone(exchange, server, key)

    def apply(self) -> None:
        self.nodes.apply()

    def commit(self, t: int) -> None:
        self.nodes.commit(t)

    def rollback(self) -> None:
        self.nodes.rollback()

    def complete(self, r: Round) -> Round:
        return self.nodes.complete(r)

    def close(self) -> None:
        self.nodes.close()


class BufferedStatesLost(StatesLost):
    """The same while a buffer is filled."""

    def __init__(self, buffer: FlowerBuffer, clients: Sequence[int], t: int):
        super().__init__(buffer.nodes, clients, t)
        self.buffer = buffer

    def recover(self, state: State) -> State:
        return self.buffer.recover(state, self.clients, self.t)
