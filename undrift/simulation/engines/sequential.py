"""The reference: one client after another, vectors `[D]`, nothing clever; errors name the client.

With workers, clients are computed side by side by threads, each with a copy of the model and a single core: every client
is still computed by one thread alone, in the same way, and results come back in order, so any number of workers gives
the same bits.  Torch's operators release Python's lock, hence threads and not processes.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import local as ThreadLocal
from typing import Any
from weakref import WeakKeyDictionary

import torch

from undrift.core.errors import MethodFailure
from undrift.core.records import map_tensors
from undrift.simulation.aggregation import ClientResults
from undrift.simulation.engines.request import Engine, Request, ResultStream


def sequential(request: Request) -> ResultStream:
    """Visit clients one at a time."""
    for i in request.participants.clients:
        yield visit_one(request, i, request.states.gather([i]), request.problem)


def threaded(workers: int) -> Engine:
    """The sequential engine with so many clients side by side."""

    def engine(request: Request) -> ResultStream:
        yield from in_threads(partial(visit_one, request), request, workers)

    return engine


def in_threads(visit: Callable[[int, Any, Any], ClientResults], request: Request, workers: int) -> ResultStream:
    """`visit(client, its state, problem)` for each client, with a copy of the problem for each of so many threads."""
    own, cores = ThreadLocal(), torch.get_num_threads()
    copies = twins(request.problem, workers)

    def begin() -> None:
        torch.set_num_threads(1)
        own.problem = copies.pop()

    @torch.no_grad()  # which holds for one thread only
    def visited(i: int, state: Any) -> ClientResults:
        return visit(i, state, own.problem)

    pool = ThreadPoolExecutor(workers, "undrift", initializer=begin)
    torch.set_num_threads(1)  # of this thread, which adds up meanwhile: all cores are taken
    try:
        waiting: deque[Future[ClientResults]] = deque()
        for i in request.participants.clients:
            waiting.append(pool.submit(visited, i, request.states.gather([i])))
            if len(waiting) > 2 * workers:  # bounds the results in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)


TWINS: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def twins(problem: Any, count: int) -> list[Any]:
    """So many copies of a problem that can be used at the same time."""
    known = TWINS.setdefault(problem, [])
    while len(known) < count:
        known.append(problem.twin())
    return known[:count]


def visit_one(request: Request, i: int, state: Any, problem: Any) -> ClientResults:
    """One visit of one client, vectors `[D]`; what comes of it has a row."""
    work = request.work([i], True, problem)
    state = map_tensors(lambda t: t[0], state)
    try:
        up, state = request.exchange.visit(request.down, state, work)
        up, state = (map_tensors(lambda t: t.unsqueeze(0), each) for each in (up, state))
    except Exception as error:
        where = f"client {i}, round {request.key.round}, stage local"
        raise MethodFailure(f"{where}: {type(error).__name__}: {error}") from error
    return ClientResults([i], up, state, observed=work.observed(1))
