"""Engines: ways of visiting clients.  Each gives the same trajectory.

    sequential.py   one client after another, or several side by side in threads: the reference
    batched.py      a chunk of clients as one computation
    compiled.py     the same, compiled: for that tracing.py makes a visit a pure function of tensors, and structure.py
                    tells which visits run the same programs
    row_check.py    in the first rounds of a run, one client of a cohort is compared with itself alone
    request.py      what an engine is asked
    choice.py       which engine suits a run

What is done with results (decoding, checks, sums, bytes) is the same for all: see `simulation/aggregation.py`.
"""

import torch

from undrift.simulation.engines import batched, compiled, sequential
from undrift.simulation.engines.choice import EngineChoice, choose_engine
from undrift.simulation.engines.memory import keep_freed_memory
from undrift.simulation.engines.request import Engine, Request, ResultStream
from undrift.simulation.engines.row_check import CHECKED_ROUNDS, checked

__all__ = ["EngineChoice", "Engine", "Request", "choose_engine", "engine_of"]


def engine_of(choice: EngineChoice, round: int) -> Engine:
    """The engine that a choice means in a round; on Ray, inside each worker."""
    keep_freed_memory()
    choice = choice.inner
    engine = _engine(choice, choice.compiles(round), round)
    return engine if choice.threads is None else with_threads(engine, choice.threads)


def _engine(choice: EngineChoice, compiles: bool, round: int) -> Engine:
    if choice.one_by_one:
        if compiles:
            return compiled.compiled_one_by_one(choice.workers)
        return sequential.sequential if choice.workers is None else sequential.threaded(choice.workers)
    engine = compiled.compiled if compiles else batched.batched
    return checked(engine, rows=not compiles) if round <= CHECKED_ROUNDS else engine


def with_threads(engine: Engine, threads: int) -> Engine:
    """The same with so many threads of torch's."""

    def visit(request: Request) -> ResultStream:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            yield from engine(request)
        finally:
            torch.set_num_threads(before)

    return visit
