"""The reference: one client after another, vectors `[D]`, nothing clever; errors name the client.

With workers, clients are computed side by side by threads, each with a copy of the model and a single core: every client
is still computed by one thread alone, in the same way, and results come back in order, so any number of workers gives
the same bits.  Torch's operators do not hold Python's lock, hence threads and not processes.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local as ThreadLocal
from typing import Any
from weakref import WeakKeyDictionary

import torch

from undrift.core.errors import MethodFailure
from undrift.core.records import map_tensors
from undrift.core.work import Work
from undrift.simulation.client_states import ClientStates
from undrift.simulation.engines.batched import Local, Result


def sequential(
    local: Local,
    down: Any,
    states: ClientStates,
    clients: Sequence[int],
    lend: Callable[[Sequence[int], bool], Work],
    chunk: int,
    weights: Sequence[float] | None = None,
) -> Iterator[Result]:
    """Visit clients one at a time."""
    for i in clients:
        yield visit_one(local, down, states.gather([i]), i, lend([i], True))


def side_by_side(workers: int) -> Callable[..., Iterator[Result]]:
    """The sequential engine with so many workers."""

    def engine(
        local: Local,
        down: Any,
        states: ClientStates,
        clients: Sequence[int],
        lend: Callable[[Sequence[int], bool], Work],
        chunk: int,
        weights: Sequence[float] | None = None,
    ) -> Iterator[Result]:
        def visit(i: int, client: Any, problem: Any) -> Result:
            work = lend([i], True)
            work.problem = problem
            return visit_one(local, down, client, i, work)

        yield from in_threads(visit, states, clients, lend(clients[:1], True).problem, workers)

    return engine


def in_threads(
    visit: Callable[[int, Any, Any], Result],
    states: ClientStates,
    clients: Sequence[int],
    problem: Any,
    workers: int,
) -> Iterator[Result]:
    """`visit(i, what it remembers, problem)` for each client, on so many cores, with a twin of the problem for each core."""
    mine, cores = ThreadLocal(), torch.get_num_threads()
    copies = twins(problem, workers)

    def begin() -> None:
        torch.set_num_threads(1)
        mine.problem = copies.pop()

    @torch.no_grad()  # which holds for one thread only
    def visited(i: int, client: Any) -> Result:
        return visit(i, client, mine.problem)

    pool = ThreadPoolExecutor(workers, "undrift", initializer=begin)
    torch.set_num_threads(1)  # of this thread, which adds up meanwhile: all cores are taken
    try:
        waiting: deque[Future[Result]] = deque()
        for i in clients:
            waiting.append(pool.submit(visited, i, states.gather([i])))
            if len(waiting) > 2 * workers:  # results are not heaped up
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


def visit_one(local: Local, down: Any, client: Any, i: int, work: Work) -> Result:
    """One visit of one client, vectors `[D]`; what comes of it has a row."""
    client = map_tensors(lambda t: t[0], client)
    try:
        up, client = local(down, client, work)
        up, client = map_tensors(_row, up), map_tensors(_row, client)
    except Exception as error:
        where = f"client {i}, round {work.t}, stage local"
        raise MethodFailure(f"{where}: {type(error).__name__}: {error}") from error
    return [i], up, client


def _row(t: Any) -> Any:
    return t.unsqueeze(0)
