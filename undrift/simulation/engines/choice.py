"""Which engine a run uses: chosen once, before the first round, by what the run is, never by the clock."""

import logging
import os
import shutil
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import psutil
import torch

from undrift.compiler import untested_torch
from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import check_fields, hyper
from undrift.core.rng import Key
from undrift.local import Local
from undrift.local.parameters import initial_of
from undrift.problems import Problem
from undrift.problems.protocols import PrefersEngine, Replicable, Sized, Traceable
from undrift.simulation.participation import Participation

log = logging.getLogger("undrift")

ENGINES = ("sequential", "batched", "compiled")  # in one process
CHUNK_BYTES = 256 * 2**20  # what one chunk of clients may take on a processor
VECTORS_PER_CLIENT = 8  # model, gradient, state and temporaries, by rule of thumb

# How long a gradient takes uncompiled, by rule of thumb (docs/speed.md): a fixed part, and its operations.
STEP_SECONDS = 5e-4
FLOPS_PER_CORE = 6e10
# What compiling the visits of a method takes: 4 to 5 s, the first time on a machine 7 to 10, the next time 2.
COMPILING_SECONDS = 5.0
# What compiling saves of a round, as a part of the time that its gradients take: in chunks, and of one client.
SAVED, SAVED_ONE_BY_ONE = 0.55, 0.1
MOST_WORKERS = 4096
# Steps of fewer operations have one thread: a second brings less than the machine's noise, and makes every step wait for it
# where other processes take its core (python -m benchmarks.busy).
SMALL_STEP = 3e6


@dataclass(frozen=True)
class EngineChoice:
    """An engine and its settings: with the same choice, a run gives the same bits.

    engine    "sequential", "batched", "compiled" or "ray"
    chunk     how many clients are computed at once (not by "sequential")
    workers   sequential, and compiled in chunks of one: clients side by side, each on one core; any number gives the
              same bits.  None: one client after another on all cores.  ray: processes, each on one core
    since     the first round that is compiled; those before it are batched, or sequential in chunks of one
    shards    ray: in so many parts the clients of an exchange are added up; any number of workers gives the same bits
    inside    ray: the engine of each worker
    threads   of clients' computations; None: as many as torch has.  Workers have one each

    >>> EngineChoice(**EngineChoice("batched", chunk=10).json())
    EngineChoice(engine='batched', chunk=10, workers=None, since=1, shards=None, inside=None, threads=None)
    """

    engine: str
    chunk: int = hyper(default=1, within="[1, inf)")
    workers: int | None = hyper(default=None, within=f"[1, {MOST_WORKERS}]")
    since: int = hyper(default=1, within="[1, inf)")
    shards: int | None = hyper(default=None, within=f"[1, {16 * MOST_WORKERS}]")
    inside: str | None = None
    threads: int | None = hyper(default=None, within=f"[1, {MOST_WORKERS}]")

    def __post_init__(self) -> None:
        if self.engine not in (*ENGINES, "ray"):
            raise unknown("engine", str(self.engine), [*ENGINES, "auto", "events", "ray"])
        check_fields(self, "run")
        if self.engine == "ray":
            return self._check_ray()
        if self.workers is not None and not self.one_by_one:
            raise InvalidInput(
                f"workers compute clients side by side in engine 'sequential', or 'compiled' with chunk=1; "
                f"'{self.engine}' computes chunks of them together on all cores: leave workers out"
            )
        if self.workers is not None and self.threads is not None:
            raise InvalidInput("workers have one thread each: leave threads out")
        if self.shards is not None or self.inside is not None:
            raise InvalidInput(f"shards and inside are for engine 'ray', not '{self.engine}'")

    def _check_ray(self) -> None:
        if self.inside is not None and self.inside not in ENGINES:
            raise unknown("engine inside a worker:", str(self.inside), ENGINES)
        if self.threads is not None:
            raise InvalidInput("workers on Ray have one thread each: leave threads out")
        if self.workers and self.shards and self.workers > self.shards:
            raise InvalidInput(
                f"{self.workers} workers have nothing to do but {self.shards} shards: use as many shards, or fewer workers"
            )

    @property
    def one_by_one(self) -> bool:
        """Whether clients are computed one by one."""
        return self.engine == "sequential" or (self.engine == "compiled" and self.chunk == 1)

    def compiles(self, t: int) -> bool:
        """Whether round t is compiled."""
        return self.engine == "compiled" and t >= self.since

    @property
    def inner(self) -> "EngineChoice":
        """What visits clients: inside each worker on Ray, else the choice itself."""
        if self.engine != "ray":
            return self
        return EngineChoice(self.inside or "sequential", self.chunk, since=self.since)  # a worker has one core

    def uncompiled(self) -> "EngineChoice":
        """The same without a compiler."""
        eager = "sequential" if self.inner.one_by_one else "batched"
        if self.engine == "ray":
            return replace(self, inside=eager, since=1)
        return replace(self, engine=eager, since=1)

    def json(self) -> dict[str, Any]:
        """The choice as JSON holds it."""
        return asdict(self)

    def __str__(self) -> str:
        if self.engine == "ray":
            inner = str(self.inner).replace(", all cores for each", "")
            return f"{self.workers} workers on Ray, {self.shards} shards; in each, {inner}"
        from_round = f" from round {self.since} on" if self.since > 1 else ""
        how = f", compiled{from_round}" if self.engine == "compiled" else ""
        if self.one_by_one:
            cores = {None: "all cores", 1: "one core"}.get(self.threads, f"{self.threads} cores")
            side = f"{self.workers} side by side" if self.workers else f"{cores} for each"
            return f"clients one after another, {side}{how}"
        return f"clients in chunks of {self.chunk}{how or ', batched'}"


def choose_engine(
    problem: Problem,
    *,
    rounds: int,
    participation: Participation,
    local: Local,
    engine: str | EngineChoice = "auto",
    chunk: int | None = None,
    workers: int | None = None,
    concurrency: int | None = None,
) -> EngineChoice:
    """The engine that suits a run in one process: as asked for, or by model, cohort, steps, rounds and threads.

    Convolutions and recurrent layers run one client after another, each worker on a core of its own; other models run in
    chunks.  All but recurrent layers are compiled if the run is long enough to repay it.  `concurrency`: how many there are
    to compute at once, a cohort if None.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(4, 1, 1), torch.ones(4, 1))
    >>> choice = choose_engine(problem, rounds=5, participation=ud.Uniform(3), local=ud.Local(steps=2))
    >>> choice.engine, choice.chunk
    ('batched', 3)
    """
    if isinstance(engine, EngineChoice):
        check_possible(engine.engine, problem)
        return checked_for_torch(engine)
    prefers, _ = preference(problem)
    name = engine
    if name == "auto":
        name = "sequential" if workers else prefers
    EngineChoice(name, chunk or 1, workers)  # refuses what is wrong before anything is tried
    check_possible(name, problem)
    most = chunk_by_memory(problem, local)
    one_by_one = workers is not None or (prefers == "sequential" and chunk in (None, 1))
    if name == "sequential" or (name == "compiled" and one_by_one):
        apart = _not_shared(problem)
        if workers is not None and apart:
            raise InvalidInput(f"workers cannot compute this problem side by side: {apart}")
        if engine != "sequential" and workers is None and not apart and torch.get_num_threads() > 1:
            workers = torch.get_num_threads()
        threads = threads_for(problem, 1, local) if workers is None else None
        choice = EngineChoice(name, workers=workers, threads=threads)
        compiled = EngineChoice("compiled", workers=workers, since=2, threads=threads)
        if prefers != "sequential":  # one by one by request: what auto would compile are chunks
            return checked_for_torch(choice)
    else:
        chunk = chunk or min(most, concurrency or cohort_size(problem, participation))
        threads = threads_for(problem, chunk, local)
        choice = EngineChoice(name, chunk, threads=threads)
        compiled = EngineChoice("compiled", chunk, since=2, threads=threads)
    if engine == "auto" and _repays(compiled, problem, rounds, participation, local):
        return compiled
    return checked_for_torch(choice)


def checked_for_torch(choice: EngineChoice) -> EngineChoice:
    """The same choice, or after a line of notice the uncompiled one where this version of torch may not compile."""
    why = untested_torch()
    if why is None or "compiled" not in (choice.engine, choice.inside):
        return choice
    log.warning("not compiled: %s", why)
    return choice.uncompiled()


def preference(problem: Problem) -> tuple[str, str | None]:
    """The engine that suits a problem, and why its clients cannot be computed together, or None."""
    return (problem.engine, problem.not_batched) if isinstance(problem, PrefersEngine) else ("batched", None)


def check_possible(name: str, problem: Problem) -> None:
    """Raise InvalidInput if an engine cannot run a problem."""
    _, why = preference(problem)
    if name != "sequential" and why:
        raise InvalidInput(f"engine '{name}' cannot run this problem: {why}")


def _not_shared(problem: Problem) -> str | None:
    """Why threads cannot compute different clients of a problem at the same time, or None."""
    if problem.x0.device.type != "cpu":
        return f"it is on {problem.x0.device}, which all of them would wait for"
    if not isinstance(problem, Replicable):
        return f"{type(problem).__name__} has no twin(), a copy for another thread"
    return problem.not_shared


@runtime_checkable
class _HasCohortSize(Protocol):
    S: int


def cohort_size(problem: Problem, participation: Participation) -> int:
    """How many clients take part in a round, at most."""
    known = isinstance(participation, _HasCohortSize)
    return min(participation.S, problem.N) if known else problem.N


def chunk_by_memory(problem: Problem, local: Local) -> int:
    """How many clients can be computed at once; raises InvalidInput if not even one."""
    x0 = problem.x0
    vectors = x0.numel() * x0.element_size() * VECTORS_PER_CLIENT
    batch = problem.batch_bytes(local.batch) if isinstance(problem, Sized) else 0
    free = free_bytes(x0.device)
    if vectors + batch > free:
        raise InvalidInput(
            f"one client needs about {_size(vectors + batch)}: {VECTORS_PER_CLIENT} vectors of {x0.numel():,} "
            f"numbers ({_size(vectors)}) and a minibatch ({_size(batch)}), and {_size(free)} of memory are free: "
            "use a smaller batch or model"
        )
    # A processor's caches are small; an accelerator wants as much at once as fits, with room for what torch adds.
    budget = min(CHUNK_BYTES, free) if x0.device.type == "cpu" else free // 4
    return max(1, budget // (vectors + batch))


def free_bytes(device: torch.device) -> int:
    """The memory that is free where a problem is computed."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"


def cpp_compiler() -> str | None:
    """The C++ compiler that compiled visits need, or None."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))), None)


def _repays(choice: EngineChoice, problem: Problem, rounds: int, participation: Participation, local: Local) -> bool:
    """Whether compiled visits would save more than compiling takes."""
    _, not_batched = preference(problem)
    traceable: object = problem
    own = initial_of(problem) is not None  # parameters of clients, with which nothing is compiled
    if not isinstance(traceable, Traceable) or not_batched or own:
        return False
    seconds = gradient_seconds(choice, problem, rounds, participation, local)
    return worth_compiling(seconds, choice.one_by_one)


def gradient_seconds(
    choice: EngineChoice, problem: Problem, rounds: int, participation: Participation, local: Local
) -> float:
    """How long the gradients of a run take uncompiled, estimated from their operations."""
    clients = min(choice.chunk, problem.N)
    steps = local.count(problem, Key(0, 1), range(clients))
    chunks = -(-cohort_size(problem, participation) // choice.chunk)
    return rounds * chunks * max(steps) * step_seconds(problem, clients, local)


def explain(
    choice: EngineChoice,
    problem: Problem,
    *,
    rounds: int,
    participation: Participation,
    local: Local,
    engine: str | EngineChoice = "auto",
) -> str:
    """Why a run has this engine, in a sentence.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(4, 1, 1), torch.ones(4, 1))
    >>> run = {"rounds": 5, "participation": ud.Uniform(3), "local": ud.Local(steps=2)}
    >>> explain(choose_engine(problem, **run), problem, **run)
    'clients are computed together; too short to repay compiling'
    """
    if engine != "auto":
        return "as asked for"
    prefers, not_batched = preference(problem)
    if not_batched:
        return not_batched
    layout = "clients are computed together"
    if prefers == "sequential":
        layout = "convolutions are faster client by client than in a batch over clients"
    inner = choice.inner
    seconds = gradient_seconds(inner, problem, rounds, participation, local)
    saved = (SAVED_ONE_BY_ONE if inner.one_by_one else SAVED) * seconds
    if inner.engine == "compiled":
        return f"{layout}; compiling takes some seconds and saves about {saved:.0f}"
    if saved < COMPILING_SECONDS:
        return f"{layout}; too short to repay compiling"
    missing = "no C++ compiler was found" if cpp_compiler() is None else "it cannot be compiled"
    return f"{layout}; not compiled: {untested_torch() or missing}"


def worth_compiling(seconds: float, one_by_one: bool) -> bool:
    """Whether compiling saves more than it takes, where gradients take so long in all."""
    if (SAVED_ONE_BY_ONE if one_by_one else SAVED) * seconds < COMPILING_SECONDS:
        return False
    why = untested_torch()
    if cpp_compiler() is None:
        why = "no C++ compiler was found (g++ or clang++, or set CXX)"
    if why is not None:
        log.warning("not compiled: %s", why)
    return why is None


def step_seconds(problem: Problem, clients: int, local: Local) -> float:
    """How long a gradient of so many clients takes uncompiled, estimated from its operations."""
    threads = threads_for(problem, clients, local) or torch.get_num_threads()
    return STEP_SECONDS + clients * _step_flops(problem, local) / (FLOPS_PER_CORE * threads)


def threads_for(problem: Problem, clients: int, local: Local) -> int | None:
    """Of a step of so many clients: one for little work; None means all there are."""
    small = clients * _step_flops(problem, local) < SMALL_STEP and problem.x0.device.type == "cpu"
    return 1 if small and torch.get_num_threads() > 1 else None


def _step_flops(problem: Problem, local: Local) -> float:
    return problem.step_flops(local.batch) if isinstance(problem, Sized) else 6.0 * problem.x0.numel()
