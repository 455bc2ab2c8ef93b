"""Clients on the workers of a Ray cluster.

A client with a state belongs to one worker for good, and its state stays there.  The run keeps a copy of all states, not
older than COPY_EVERY rounds, and a journal of the visits since then.  So what a lost worker knew can be computed again:
another one is given the copy and repeats the visits, with the same randomness and so the same bits.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from undrift.core.algorithm import Exchange
from undrift.core.errors import InvalidInput, WorkersLost, first_line
from undrift.core.records import tensors
from undrift.core.rng import Key
from undrift.problems.protocols import Reopenable
from undrift.simulation.aggregation import PartialAggregate, join_partials
from undrift.simulation.client_states import ClientStates, States
from undrift.simulation.participants import Participants
from undrift.simulation.ray.handles import LOST, Sent, WorkerHandle, count_missing, fetch, start_worker, stop_worker
from undrift.simulation.ray.serialisation import pack_object, pack_problem, unpack_object
from undrift.simulation.ray.worker import Job, WorkerTask, versions
from undrift.simulation.transport import RunPlan, SynchronousTransport

log = logging.getLogger("undrift")

COPY_EVERY = 10  # rounds after which states are copied, if nobody has asked for them before
SECONDS_TO_WARNING = 15.0  # seconds after which a warning says that workers have not started yet
STARTING = 300.0  # seconds after which they are not waited for any more
SILENCE = 60.0  # seconds after which a warning says that a worker has not answered, then after twice as many, and so on
MAX_LOSSES = 3  # how often in a row a worker may be lost before the run ends
STATE_BYTES_PER_MESSAGE = 64 * 2**20  # bytes of states that travel at a time


class RayTransport(SynchronousTransport):
    """The workers of a run, as its transport."""

    def __init__(self, plan: RunPlan, clients: ClientStates):
        self.plan, self.clients = plan, clients
        self.stateful = bool(tensors(clients.initial))
        self.copied = clients.round  # the round of the run's own copy of states
        self.logged: set[str] = set()
        self.problems: dict[str, Any] = {}  # read there, by node
        self.placed: Any = None
        workers, self.shards = plan.choice.workers or 1, plan.choice.shards or 1
        bare: Any = replace(plan, problem=None)  # pyright: ignore[reportArgumentType]
        self.job = ray.put(pack_object(Job(bare, clients.initial, workers)))
        self.handles = [WorkerHandle(w, range(w, self.shards, workers), start_worker()) for w in range(workers)]
        try:
            self._await_all()
            for handle in self.handles:
                try:
                    self._begin(handle)
                except LOST as error:  # perhaps with its node
                    self._replace(handle, error)
        except BaseException:
            self._dismiss()
            raise
        if self.stateful:
            clients.refresh = self.copy

    # what a run asks of a transport

    def visit(
        self, exchange: Exchange, down: Any, participants: Participants, key: Key, keep: bool = True
    ) -> PartialAggregate:
        """Every shard's part of an exchange, added up in the order of shards."""
        sent, shares = ray.put(pack_object(down)), deal(participants, self.shards, self.stateful)
        asked: list[tuple[WorkerHandle, Sent, Any]] = []
        for handle in self.handles:
            mine = {shard: shares[shard] for shard in handle.shards if shares[shard].clients}
            if mine:
                what = Sent(sent, WorkerTask(key, mine, keep))
                asked.append((handle, what, handle.actor.visit.remote(what.down, what.visit)))
        parts: dict[int, PartialAggregate] = {}
        for handle, what, reply in asked:
            parts |= self._answer(handle, what, reply)
        return join_partials([parts[shard] for shard in sorted(parts)])

    def apply(self) -> None:
        handles = [handle for handle in self.handles if handle.staged is not None]
        for handle in handles:
            handle.accept()
        self._tell("apply", handles)

    def commit(self, t: int) -> None:
        handles = [handle for handle in self.handles if handle.unsettled]
        for handle in handles:
            handle.accept()
            handle.settled = len(handle.journal)
        self._tell("commit", handles)
        self.clients.round = t
        if self.stateful and t - self.copied >= COPY_EVERY:
            self.copy()

    def rollback(self) -> None:
        if self.stateful:
            for handle in self.handles:
                handle.forget()
            self._tell("rollback", self.handles)  # also those whose answers were not waited for

    def close(self) -> None:
        """Bring states home and stop the workers."""
        try:
            if self.stateful:
                self.copy()
                self.clients.refresh = None
        except (RayError, RuntimeError, OSError) as error:
            log.warning("what clients remembered after round %d is lost: %s", self.clients.round, first_line(error))
            self.clients.refresh = _gone
        finally:
            self._dismiss()

    # visits

    def _answer(self, handle: WorkerHandle, sent: Sent, reply: Any) -> dict[int, PartialAggregate]:
        """A worker's answer; another's, if the worker is lost."""
        for _ in range(MAX_LOSSES):
            try:
                _await_answer(handle, reply)
                answer = unpack_object(fetch(reply))
                break
            except LOST as error:
                self._replace(handle, error)
                reply = handle.actor.visit.remote(sent.down, sent.visit)
        else:
            raise _again_and_again(handle)
        if sent.visit.keep:
            handle.staged = sent if self.stateful else None
        for message in answer.warnings:
            if message not in self.logged:  # once, not once a worker
                self.logged.add(message)
                log.warning("%s", message)
        return answer.parts

    def _tell(self, what: str, handles: Sequence[WorkerHandle]) -> None:
        """Tell workers what becomes of states; one put in the place of a lost one knows it from the journal."""
        replies = [(handle, getattr(handle.actor, what).remote()) for handle in handles]
        for handle, reply in replies:
            try:
                fetch(reply)
            except LOST as error:
                self._replace(handle, error)

    # states

    def copy(self) -> None:
        """Bring the run's own copy of states up to date: of each worker all that is new or nothing."""
        if self.clients.round == self.copied:
            return
        self.clients.refresh = None  # what is written now need not be refreshed before
        try:
            for handle in self.handles:
                if handle.journal:
                    for clients, states in self._changed(handle):
                        self.clients.scatter(clients, states)
                    handle.journal, handle.settled = [], 0
            self.copied = self.clients.round
        finally:
            self.clients.refresh = self.copy

    def _changed(self, handle: WorkerHandle) -> States:
        for _ in range(MAX_LOSSES):
            try:
                some = self._in_turn(fetch(handle.actor.changed.remote()))
                return [(ids, unpack_object(fetch(handle.actor.states.remote(ids)))) for ids in some]
            except LOST as error:
                self._replace(handle, error)
        raise _again_and_again(handle)

    def _in_turn(self, clients: Sequence[int]) -> list[Sequence[int]]:
        """Clients in groups whose states may travel together."""
        each = max(1, STATE_BYTES_PER_MESSAGE // max(1, self.clients.row_bytes))
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
        actors = [handle.actor for handle in self.handles]
        if away := count_missing(actors, SECONDS_TO_WARNING):
            log.warning("waiting for %d of %d workers to start", away, len(actors))
        if away and (away := count_missing(actors, STARTING)):
            raise InvalidInput(
                f"{away} of {len(actors)} workers did not start in {STARTING:g} s: the cluster's CPUs are taken, "
                "perhaps by a run that has not ended; use fewer workers or wait"
            )

    def _begin(self, handle: WorkerHandle) -> None:
        """Let a worker begin: with its problem, and its clients' states as the copy has them."""
        handle.node, handle.host, there = fetch(handle.actor.where.remote())
        for name, version in versions().items():
            if there[name] != version:
                raise InvalidInput(
                    f"Ray's node {handle.host} has {name} {there[name]}, this machine {version}: "
                    "install the same everywhere"
                )
        try:
            fetch(handle.actor.begin.remote(self._problem(handle), self.job))
        except InvalidInput as error:
            raise InvalidInput(f"Ray's node {handle.host}: {error}") from error
        seen = self._of_copy(self.clients.seen)
        for some in self._in_turn([i for i in seen if i % self.shards in handle.shards]):
            states = self._of_copy(lambda: self.clients.gather(some))  # noqa: B023 (used at once)
            fetch(handle.actor.take.remote(some, pack_object(states)))

    def _problem(self, handle: WorkerHandle) -> Any:
        """The problem for a worker: read on its node if it can be, else placed where all nodes find it."""
        problem: object = self.plan.problem
        again = problem.reopen if isinstance(problem, Reopenable) else None
        if again is None or handle.node == ray.get_runtime_context().get_node_id():
            if self.placed is None:
                self.placed = ray.put(pack_problem(self.plan.problem))
            return self.placed
        if handle.node not in self.problems:
            self.problems[handle.node] = handle.actor.open.remote(pack_object(again))
        return self.problems[handle.node]

    def _replace(self, handle: WorkerHandle, why: Exception) -> None:
        """Put another worker in the place of a lost one, with the states that it had."""
        for _ in range(MAX_LOSSES):
            log.warning(
                "round %d: worker %d on %s was lost (%s): its part of the round is repeated by another, from the states "
                "after the round before",
                self.clients.round + 1,
                handle.number,
                handle.host,
                first_line(why),
            )
            stop_worker(handle.actor)  # if it is there after all it must not go on
            self.problems.pop(handle.node, None)  # what was on its node may be lost with it
            try:
                self._start_anew(handle)
                self._begin(handle)
                for number, sent in enumerate(handle.journal):
                    over = number < handle.settled
                    fetch(handle.actor.replay.remote(sent.down, sent.visit, over))
                return
            except LOST as error:
                why = error
        raise _again_and_again(handle)

    def _start_anew(self, handle: WorkerHandle) -> None:
        """Another worker; if there is no processor for it, it shares one."""
        if ray.available_resources().get("CPU", 0) >= 1:
            handle.actor = start_worker()
            if not count_missing([handle.actor], SECONDS_TO_WARNING):
                return
            stop_worker(handle.actor)
        handle.actor = start_worker(cpu=False)
        if count_missing([handle.actor], STARTING):
            raise _again_and_again(handle)

    def _dismiss(self) -> None:
        for handle in self.handles:
            stop_worker(handle.actor)
        self.handles = []


def deal(participants: Participants, shards: int, stateful: bool) -> list[Participants]:
    """The participants of every shard.

    A client with a state belongs to shard i mod `shards`: neighbours, who take part together where participation is
    cyclic, belong to different ones.  One without may be visited anywhere: then participants are cut into runs of equal
    length, so that no worker waits for another.

    >>> cohort = Participants([0, 2, 4, 5], [1.0] * 4, [3] * 4, [0.1] * 4)
    >>> [p.clients for p in deal(cohort, 2, stateful=True)]
    [[0, 2, 4], [5]]
    >>> [p.clients for p in deal(cohort, 2, stateful=False)]
    [[0, 2], [4, 5]]
    """
    clients = participants.clients
    if stateful:
        places = [[j for j, i in enumerate(clients) if i % shards == s] for s in range(shards)]
    else:
        ends = [len(clients) * s // shards for s in range(shards + 1)]
        places = [list(range(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
    return [participants.at(some) for some in places]


def _again_and_again(handle: WorkerHandle) -> WorkersLost:
    return WorkersLost(
        f"worker {handle.number} was lost {MAX_LOSSES} times in a row, the last time on {handle.host}: is there memory enough? "
        "What was recorded is kept, the run can be resumed"
    )


def _gone() -> None:
    raise RuntimeError("what clients remembered was lost with their workers: resume from a checkpoint or a snapshot")


def _await_answer(handle: WorkerHandle, reply: Any) -> None:
    """Wait for an answer, however long; say now and then that it is waited for, as a stopped process says nothing itself."""
    waited = SILENCE
    while not ray.wait([reply], timeout=waited)[0]:
        log.warning(
            "worker %d on %s has not answered for %d s more: a long visit, or its process is stopped; waiting",
            handle.number,
            handle.host,
            waited,
        )
        waited *= 2
