"""How many workers a run on Ray has, and which engine each of them uses."""

from dataclasses import replace

from undrift.core.errors import InvalidInput
from undrift.local import Local
from undrift.problems import Problem
from undrift.simulation.engines.choice import (
    EngineChoice,
    check_possible,
    checked_for_torch,
    choose_engine,
    cohort_size,
)
from undrift.simulation.participation import Participation
from undrift.simulation.ray.cluster import cpus


def choose_on_ray(
    problem: Problem, asked: EngineChoice, chunk: int | None, *, rounds: int, participation: Participation, local: Local
) -> EngineChoice:
    """What was asked for, and the rest: a worker for every processor, a shard for every worker.

    A choice that has everything is kept, if the cluster is large enough for it.
    """
    if problem.x0.device.type != "cpu":
        raise InvalidInput(f"engine 'ray' computes on processors, the model is on {problem.x0.device}: use model.cpu()")
    cores = cpus()
    if asked.shards is not None and asked.shards > problem.N:
        raise InvalidInput(f"{asked.shards} shards for {problem.N} clients: use at most one for each")
    if asked.workers is not None and asked.workers > problem.N:
        raise InvalidInput(f"workers={asked.workers} for {problem.N} clients: use at most one for each")
    if asked.workers is not None and asked.workers > cores:
        raise InvalidInput(
            f"workers={asked.workers} and the Ray cluster has {cores} CPUs: use at most {cores} workers, "
            "or a larger cluster (RAY_ADDRESS)"
        )
    workers = asked.workers or max(1, min(cores, asked.shards or problem.N))
    shards = asked.shards or workers
    if asked.inside is not None:
        check_possible(asked.inside, problem)
        return checked_for_torch(replace(asked, workers=workers, shards=shards))
    chunk = chunk or (asked.chunk if asked.chunk > 1 else None)
    inner = choose_engine(problem, rounds=rounds, participation=participation, local=local, chunk=chunk)
    if inner.engine == "compiled" and not inner.one_by_one and chunk is None:
        # Chunks are filled up, so they should be full.
        inner = replace(inner, chunk=-(-cohort_size(problem, participation) // shards))
    return EngineChoice("ray", inner.chunk, workers, inner.since, shards, inner.engine)
