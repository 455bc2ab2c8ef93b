"""All workers of a run.

A client that remembers something belongs to one worker for good, and its state stays there.  The run keeps a copy of
all states, not older than COPIED rounds, and remembers whom it has sent where since then.  So what a lost worker knew
can be made again: another one is given the copy and repeats the visits, with the same randomness and so the same bits.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from undrift.core.algorithm import Exchange
from undrift.core.errors import InvalidInput, WorkersLost
from undrift.core.records import tensors
from undrift.core.rng import Key
from undrift.core.work import Solver
from undrift.simulation.aggregation import Outcome, Part, Party, concluded
from undrift.simulation.client_states import ClientStates, States
from undrift.simulation.ray.handles import (
    LOST,
    Hand,
    Sent,
    dismissed,
    got,
    missing,
    reason_of,
    started,
)
from undrift.simulation.ray.serialisation import packed, packed_problem, unpacked
from undrift.simulation.ray.worker import Job, Visit, versions
from undrift.simulation.transport import Plan, setting_of

log = logging.getLogger("undrift")

COPIED = 10  # rounds after which states are copied, if nobody has asked for them before
PATIENCE = 15.0  # seconds after which it is said that workers have not started yet
STARTING = 300.0  # seconds after which they are not waited for any more
ATTEMPTS = 3  # how often in a row a worker may be lost before the run ends
AT_ONCE = 64 * 2**20  # bytes of states that travel at a time


class Crew:
    """The workers of a run: a `Site`."""

    def __init__(self, plan: Plan, clients: ClientStates):
        self.plan, self.clients = plan, clients
        self.remembers = bool(tensors(clients.initial))
        self.copied = clients.round  # the round of the run's own copy of states
        self.said: set[str] = set()
        self.problems: dict[str, Any] = {}  # read there, by node
        self.placed: Any = None
        workers, self.shards = plan.choice.workers or 1, plan.choice.shards or 1
        self.job = ray.put(packed(Job(plan.algorithm, plan.choice, clients.initial, workers)))
        self.hands = [Hand(w, range(w, self.shards, workers), started()) for w in range(workers)]
        try:
            self._await_all()
            for hand in self.hands:
                try:
                    self._begin(hand)
                except LOST as error:  # perhaps with its node
                    self._replace(hand, error)
        except BaseException:
            self._dismiss()
            raise
        if self.remembers:
            clients.refresh = self.copy

    # what a run asks of a site

    def carry_out(self, exchange: Exchange, server: Any, party: Party, key: Key) -> Outcome:
        setting = setting_of(self.plan, key.round)

        def collect(down: Any) -> list[Part]:
            return self._parts(down, party, setting.solver, key)

        return concluded(exchange, server, party, setting, key, collect)

    def write(self) -> None:
        hands = [hand for hand in self.hands if hand.held is not None]
        for hand in hands:
            hand.accept()
        self._tell("write", hands)

    def keep(self, t: int) -> None:
        hands = [hand for hand in self.hands if hand.unsettled]
        for hand in hands:
            hand.accept()
            hand.settled = len(hand.journal)
        self._tell("keep", hands)
        self.clients.round = t
        if self.remembers and t - self.copied >= COPIED:
            self.copy()

    def undo(self) -> None:
        if self.remembers:
            for hand in self.hands:
                hand.forget()
            self._tell("undo", self.hands)  # also those whose answers were not waited for

    def close(self) -> None:
        """States come home, workers go."""
        try:
            if self.remembers:
                self.copy()
                self.clients.refresh = None
        except (RayError, RuntimeError, OSError) as error:
            log.warning(
                "what clients remembered after round %d is lost: %s",
                self.clients.round,
                reason_of(error),
            )
            self.clients.refresh = _gone
        finally:
            self._dismiss()

    # visits

    def _parts(self, down: Any, party: Party, solver: Solver, key: Key) -> list[Part]:
        """Every shard's part of an exchange, in the order of shards."""
        sent, parties = ray.put(packed(down)), dealt(party, self.shards, self.remembers)
        asked: list[tuple[Hand, Sent, Any]] = []
        for hand in self.hands:
            mine = {shard: parties[shard] for shard in hand.shards if parties[shard].clients}
            if mine:
                what = Sent(sent, Visit(key, solver, mine))
                asked.append((hand, what, hand.actor.visit.remote(what.down, what.visit)))
        parts: dict[int, Part] = {}
        for hand, what, reply in asked:
            parts |= self._answer(hand, what, reply)
        return [parts[shard] for shard in sorted(parts)]

    def _answer(self, hand: Hand, sent: Sent, reply: Any) -> dict[int, Part]:
        """A worker's answer; another's, if the worker is lost."""
        for _ in range(ATTEMPTS):
            try:
                answer = unpacked(got(reply))
                break
            except LOST as error:
                self._replace(hand, error)
                reply = hand.actor.visit.remote(sent.down, sent.visit)
        else:
            raise _again_and_again(hand)
        hand.held = sent if self.remembers else None
        for message in answer.said:
            if message not in self.said:  # once, not once a worker
                self.said.add(message)
                log.warning("%s", message)
        return answer.parts

    def _tell(self, what: str, hands: Sequence[Hand]) -> None:
        """Tell workers what becomes of states; one put in the place of a lost one knows it from the journal."""
        replies = [(hand, getattr(hand.actor, what).remote()) for hand in hands]
        for hand, reply in replies:
            try:
                got(reply)
            except LOST as error:
                self._replace(hand, error)

    # states

    def copy(self) -> None:
        """Bring the run's own copy of states up to date: of each worker all that is new or nothing."""
        if self.clients.round == self.copied:
            return
        self.clients.refresh = None  # what is written now need not be refreshed before
        try:
            for hand in self.hands:
                if hand.journal:
                    for clients, states in self._changed(hand):
                        self.clients.scatter(clients, states)
                    hand.journal, hand.settled = [], 0
            self.copied = self.clients.round
        finally:
            self.clients.refresh = self.copy

    def _changed(self, hand: Hand) -> States:
        for _ in range(ATTEMPTS):
            try:
                some = self._in_turn(got(hand.actor.changed.remote()))
                return [(ids, unpacked(got(hand.actor.states.remote(ids)))) for ids in some]
            except LOST as error:
                self._replace(hand, error)
        raise _again_and_again(hand)

    def _in_turn(self, clients: Sequence[int]) -> list[Sequence[int]]:
        """Clients in groups whose states may travel together."""
        each = max(1, AT_ONCE // max(1, self.clients.row_bytes))
        return [clients[first : first + each] for first in range(0, len(clients), each)]

    def _of_copy(self, read: Callable[[], Any]) -> Any:
        """Something of the copy as it is, however old."""
        refresh, self.clients.refresh = self.clients.refresh, None
        try:
            return read()
        finally:
            self.clients.refresh = refresh

    # workers

    def _await_all(self) -> None:
        actors = [hand.actor for hand in self.hands]
        if away := missing(actors, PATIENCE):
            log.warning("waiting for %d of %d workers to start", away, len(actors))
        if away and (away := missing(actors, STARTING)):
            raise InvalidInput(
                f"{away} of {len(actors)} workers did not start in {STARTING:g} s: the cluster's CPUs are taken, "
                "perhaps by a run that has not ended; use fewer workers or wait"
            )

    def _begin(self, hand: Hand) -> None:
        """Let a worker begin: with its problem, and what the copy says that its clients remember."""
        hand.node, hand.host, there = got(hand.actor.where.remote())
        for name, version in versions().items():
            if there[name] != version:
                raise InvalidInput(
                    f"Ray's node {hand.host} has {name} {there[name]}, this machine {version}: "
                    "install the same everywhere"
                )
        try:
            got(hand.actor.begin.remote(self._problem(hand), self.job))
        except InvalidInput as error:
            raise InvalidInput(f"Ray's node {hand.host}: {error}") from error
        seen = self._of_copy(self.clients.seen)
        for some in self._in_turn([i for i in seen if i % self.shards in hand.shards]):
            states = self._of_copy(lambda: self.clients.gather(some))  # noqa: B023 (used at once)
            got(hand.actor.take.remote(some, packed(states)))

    def _problem(self, hand: Hand) -> Any:
        """The problem for a worker: read on its node if it can be, else placed where all nodes find it."""
        again = getattr(self.plan.problem, "reopen", None)
        if again is None or hand.node == ray.get_runtime_context().get_node_id():
            if self.placed is None:
                self.placed = ray.put(packed_problem(self.plan.problem))
            return self.placed
        if hand.node not in self.problems:
            self.problems[hand.node] = hand.actor.open.remote(packed(again))
        return self.problems[hand.node]

    def _replace(self, hand: Hand, why: Exception) -> None:
        """Put another worker in the place of a lost one, with the states that it had."""
        for _ in range(ATTEMPTS):
            log.warning(
                "round %d: worker %d on %s was lost (%s): its part of the round is repeated by another, from the states "
                "after the round before",
                self.clients.round + 1,
                hand.number,
                hand.host,
                reason_of(why),
            )
            dismissed(hand.actor)  # if it is there after all it must not go on
            self.problems.pop(hand.node, None)  # what was on its node may be lost with it
            try:
                self._start_anew(hand)
                self._begin(hand)
                for number, sent in enumerate(hand.journal):
                    over = number < hand.settled
                    got(hand.actor.replay.remote(sent.down, sent.visit, over))
                return
            except LOST as error:
                why = error
        raise _again_and_again(hand)

    def _start_anew(self, hand: Hand) -> None:
        """Another worker; if there is no processor for it, it shares one."""
        if ray.available_resources().get("CPU", 0) >= 1:
            hand.actor = started()
            if not missing([hand.actor], PATIENCE):
                return
            dismissed(hand.actor)
        hand.actor = started(cpu=False)
        if missing([hand.actor], STARTING):
            raise _again_and_again(hand)

    def _dismiss(self) -> None:
        for hand in self.hands:
            dismissed(hand.actor)
        self.hands = []


def dealt(party: Party, shards: int, remembered: bool) -> list[Party]:
    """A party for every shard.

    A client that remembers something belongs to shard i mod `shards`: neighbours, who take part together where
    participation is cyclic, belong to different ones.  One that does not may be visited anywhere: then the party is cut
    into runs of equal length, so that no worker waits for another.

    >>> party = Party([0, 2, 4, 5], [1.0] * 4, [3] * 4, [0.1] * 4)
    >>> [p.clients for p in dealt(party, 2, remembered=True)]
    [[0, 2, 4], [5]]
    >>> [p.clients for p in dealt(party, 2, remembered=False)]
    [[0, 2], [4, 5]]
    """
    count = len(party.clients)
    if remembered:
        places = [
            [j for j, i in enumerate(party.clients) if i % shards == s] for s in range(shards)
        ]
    else:
        ends = [count * s // shards for s in range(shards + 1)]
        places = [list(range(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
    return [
        replace(
            party,
            clients=[party.clients[j] for j in some],
            weights=[party.weights[j] for j in some],
            steps=[party.steps[j] for j in some],
            share=[party.share[j] for j in some],
        )
        for some in places
    ]


def _again_and_again(hand: Hand) -> WorkersLost:
    return WorkersLost(
        f"worker {hand.number} was lost {ATTEMPTS} times in a row, the last time on {hand.host}: is there memory enough? "
        "What was recorded is kept, the run can be resumed"
    )


def _gone() -> None:
    raise RuntimeError(
        "what clients remembered was lost with their workers: go on from a checkpoint or a snapshot"
    )
