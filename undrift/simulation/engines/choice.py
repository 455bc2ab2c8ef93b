"""Which engine a run uses.  Chosen once, before the first round, and small enough to be kept with the run."""

import logging
import os
import shutil
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from undrift.compiler.inductor import untested
from undrift.core.errors import InvalidInput, unknown
from undrift.core.hyper import check_value
from undrift.core.rng import Key

if TYPE_CHECKING:
    from undrift.local.settings import Local
    from undrift.problems import Problem
    from undrift.simulation.participation import Participation

log = logging.getLogger("undrift")

NAMES = ("sequential", "batched", "compiled")  # in one process
CHUNK_BYTES = 256 * 2**20  # what one chunk of clients may take
VECTORS_A_CLIENT = 8  # model, gradient, state and temporaries, by rule of thumb
# what compiling the visits of a method takes: 4 to 5 s, the first time on a machine 7 to 10, the next time 2
COMPILING_SECONDS = 5.0
# what compiling saves of a round, as a part of the time that its gradients alone take: in chunks, where it is 0.9 to 1.2, and
# of one client
SAVED, SAVED_ALONE = 0.8, 0.1


@dataclass(frozen=True)
class Choice:
    """An engine and its settings: with the same choice, a run gives the same bits.

    engine    "sequential", "batched", "compiled" or "ray"
    chunk     how many clients are computed at once (not by "sequential")
    workers   sequential, and compiled in chunks of one: clients side by side, each on one core; any number gives the
              same bits.  None: one client after another on all cores.  ray: processes, each on one core
    since     the first round that is compiled; those before it are batched, or sequential in chunks of one
    shards    ray: in so many parts the clients of an exchange are added up; any number of workers gives the same bits
    inside    ray: the engine of each worker

    >>> Choice(**Choice("batched", chunk=10).json())
    Choice(engine='batched', chunk=10, workers=None, since=1, shards=None, inside=None)
    """

    engine: str
    chunk: int = 1
    workers: int | None = None
    since: int = 1
    shards: int | None = None
    inside: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in (*NAMES, "ray"):
            raise unknown("engine", str(self.engine), [*NAMES, "auto", "events", "ray"])
        check_value("run", "chunk", self.chunk, int, within="[1, inf)")
        check_value("run", "workers", self.workers, int, None, within="[1, inf)")
        check_value("run", "since", self.since, int, within="[1, inf)")
        check_value("run", "shards", self.shards, int, None, within="[1, inf)")
        if self.engine == "ray":
            return self._check_ray()
        if self.workers is not None and not self.alone:
            raise InvalidInput(
                f"workers compute clients side by side in engine 'sequential', or 'compiled' with chunk=1; "
                f"'{self.engine}' computes chunks of them together on all cores: leave workers out"
            )
        if self.shards is not None or self.inside is not None:
            raise InvalidInput(f"shards and inside are for engine 'ray', not '{self.engine}'")

    def _check_ray(self) -> None:
        if self.inside is not None and self.inside not in NAMES:
            raise unknown("engine inside a worker:", str(self.inside), NAMES)
        if self.workers and self.shards and self.workers > self.shards:
            raise InvalidInput(
                f"{self.workers} workers have nothing to do but {self.shards} shards: use as many shards, or fewer workers"
            )

    @property
    def alone(self) -> bool:
        """Whether clients are computed one by one."""
        return self.engine == "sequential" or (self.engine == "compiled" and self.chunk == 1)

    def compiles(self, t: int) -> bool:
        """Whether round t is compiled."""
        return self.engine == "compiled" and t >= self.since

    @property
    def inner(self) -> "Choice":
        """What visits clients: inside each worker on Ray, else the choice itself."""
        if self.engine != "ray":
            return self
        return Choice(self.inside or "sequential", self.chunk, since=self.since)

    def json(self) -> dict[str, Any]:
        """The choice as numbers and words."""
        return asdict(self)

    def __str__(self) -> str:
        if self.engine == "ray":
            inner = str(self.inner).replace(", all cores for each", "")
            return f"{self.workers} workers on Ray, {self.shards} shards; in each, {inner}"
        from_round = f" from round {self.since} on" if self.since > 1 else ""
        how = f", compiled{from_round}" if self.engine == "compiled" else ""
        if self.alone:
            side = f"{self.workers} side by side" if self.workers else "all cores for each"
            return f"clients one after another, {side}{how}"
        return f"clients in chunks of {self.chunk}{how or ', batched'}"


def choose(
    problem: "Problem",
    *,
    rounds: int,
    participation: "Participation",
    local: "Local",
    engine: "str | Choice" = "auto",
    chunk: int | None = None,
    workers: int | None = None,
    together: int | None = None,
) -> Choice:
    """The engine that suits a run: as asked for, or by what the model is and how long a step takes.

    Convolutions and recurrent layers run one client after another, each worker on a core of its own; other models run in
    chunks.  All but recurrent layers are compiled if the run is long enough to repay it.  `together`: how many there are to
    compute at once, a cohort if None.  The choice is logged at INFO.

    >>> import undrift as ud
    >>> problem = ud.Quadratic(torch.ones(4, 1, 1), torch.ones(4, 1))
    >>> choose(problem, rounds=5, participation=ud.Uniform(3), local=ud.Local(steps=2))
    Choice(engine='batched', chunk=3, workers=None, since=1, shards=None, inside=None)
    """
    if isinstance(engine, Choice) and (chunk is not None or workers is not None):
        raise InvalidInput("a Choice says chunk and workers itself: give one or the other")
    if engine == "ray" or (isinstance(engine, Choice) and engine.engine == "ray"):
        from undrift.simulation.ray.choice import on_ray  # Ray need not be installed

        asked = engine if isinstance(engine, Choice) else Choice("ray", workers=workers)
        choice = on_ray(asked, problem, rounds, participation, local, chunk)
    elif isinstance(engine, Choice):
        check_possible(engine.engine, problem)
        return without_compiling_if_untested(engine)
    else:
        choice = in_process(problem, rounds, participation, local, engine, chunk, workers, together)
    choice = without_compiling_if_untested(choice)
    log.info("engine: %s", choice)
    return choice


def without_compiling_if_untested(choice: Choice) -> Choice:
    """The same choice, or after a line of notice the uncompiled one where this version of torch may not compile."""
    why = untested()
    if why is None or "compiled" not in (choice.engine, choice.inside):
        return choice
    log.warning("not compiled: %s", why)
    eager = "sequential" if choice.inner.alone else "batched"
    if choice.engine == "ray":
        return replace(choice, inside=eager, since=1)
    return replace(choice, engine=eager, since=1)


def in_process(
    problem: "Problem",
    rounds: int,
    participation: "Participation",
    local: "Local",
    engine: str = "auto",
    chunk: int | None = None,
    workers: int | None = None,
    together: int | None = None,
) -> Choice:
    """The engine that suits a run in one process."""
    name, suits = engine, getattr(problem, "engine", "batched")
    if name == "auto":
        name = "sequential" if workers else suits
    Choice(name, chunk or 1, workers)  # refuses what is wrong before anything is tried
    check_possible(name, problem)
    most = chunk_by_memory(problem, local)
    one_by_one = workers is not None or (suits == "sequential" and chunk in (None, 1))
    if name == "sequential" or (name == "compiled" and one_by_one):
        apart = _not_shared(problem)
        if workers is not None and apart:
            raise InvalidInput(f"workers cannot compute this problem side by side: {apart}")
        if engine != "sequential" and workers is None and not apart and torch.get_num_threads() > 1:
            workers = torch.get_num_threads()
        choice = Choice(name, workers=workers)
        compiled = Choice("compiled", workers=workers, since=2)
        if suits != "sequential":  # one by one by request: what auto would compile are chunks
            return choice
    else:
        chunk = chunk or min(most, together or cohort_of(problem, participation))
        choice, compiled = Choice(name, chunk), Choice("compiled", chunk, since=2)
    if engine == "auto" and _repays(compiled, problem, rounds, participation, local):
        return compiled
    return choice


def check_possible(name: str, problem: "Problem") -> None:
    refusal = getattr(problem, "not_batched", None) if name != "sequential" else None
    if refusal:
        raise InvalidInput(f"engine '{name}' cannot run this problem: {refusal}")


def _not_shared(problem: "Problem") -> str | None:
    """Why threads cannot compute different clients of a problem at the same time, if they cannot."""
    if problem.x0.device.type != "cpu":
        return f"it is on {problem.x0.device}, which all of them would wait for"
    if not hasattr(problem, "twin"):
        return f"{type(problem).__name__} has no twin(), a copy for another thread"
    return getattr(problem, "not_shared", None)


def cohort_of(problem: "Problem", participation: "Participation") -> int:
    """How many clients take part in a round, at most."""
    S = getattr(participation, "S", None)
    return min(S, problem.N) if isinstance(S, int) else problem.N


def chunk_by_memory(problem: "Problem", local: "Local") -> int:
    """How many clients can be computed at once; raises InvalidInput if not even one."""
    vectors = problem.x0.numel() * problem.x0.element_size() * VECTORS_A_CLIENT
    batch_bytes = getattr(problem, "batch_bytes", None)
    batch = 0 if batch_bytes is None else batch_bytes(local.batch)
    free = free_bytes()
    if free is not None and vectors + batch > free:
        raise InvalidInput(
            f"one client needs about {_size(vectors + batch)}: {VECTORS_A_CLIENT} vectors of {problem.x0.numel():,} "
            f"numbers ({_size(vectors)}) and a minibatch ({_size(batch)}), and {_size(free)} of memory are free: "
            "use a smaller batch or model"
        )
    budget = CHUNK_BYTES if free is None else min(CHUNK_BYTES, free)
    return max(1, budget // (vectors + batch))


def free_bytes() -> int | None:
    """The machine's memory that is free, where the system tells."""
    try:
        with open("/proc/meminfo") as lines:
            found = {line.split(":")[0]: line.split()[1] for line in lines}
        return int(found["MemAvailable"]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"


def compiler() -> str | None:
    """The C++ compiler that compiled steps need, if there is one."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))), None)


def _repays(
    choice: Choice, problem: Any, rounds: int, participation: "Participation", local: "Local"
) -> bool:
    """Whether compiled steps would save more than compiling takes."""
    if not hasattr(problem, "grad_of") or getattr(problem, "not_batched", None):
        return False
    clients = list(range(min(choice.chunk, problem.N)))
    steps = local.count(problem, Key(0, 1), clients)
    chunks = -(-cohort_of(problem, participation) // choice.chunk)
    seconds = rounds * chunks * max(steps) * step_seconds(problem, clients, local)
    return worth_compiling(seconds, choice.alone)


def worth_compiling(seconds: float, alone: bool) -> bool:
    """Whether it saves more than it takes, where gradients take so long in all, of clients one by one (`alone`) or in chunks."""
    if (SAVED_ALONE if alone else SAVED) * seconds < COMPILING_SECONDS:
        return False
    why = not_compiling()
    if why is not None:
        log.warning("not compiled: %s", why)
    return why is None


def not_compiling() -> str | None:
    """Why nothing can be compiled here, if so."""
    if compiler() is None:
        return "no C++ compiler was found (g++ or clang++, or set CXX)"
    return untested()


def step_seconds(problem: Any, clients: list[int], local: "Local") -> float:
    """How long a gradient of these clients takes, at best."""
    y = problem.x0.repeat(len(clients), 1) if len(clients) > 1 else problem.x0
    minibatches = problem.draw(Key(0, 0), clients, [1] * len(clients), local.batch)
    found = []
    for _ in range(3):
        began = perf_counter()
        problem.grad(y, minibatches, 0)
        found.append(perf_counter() - began)
    return min(found)
