"""The problems of several seeds as one: the same data and model, each seed with its own partition.

Rows are ordered by seed, client and run: the `width` runs of a seed have the same minibatches, which are therefore
gathered once and multiplied with the models of all of them at once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from undrift.core.batched_scalar import NotBatchable
from undrift.core.rng import Key
from undrift.data.trees import equal, sample_count
from undrift.problems.evaluation import evaluate_each
from undrift.problems.minibatches import Minibatches, Source, draw_minibatches, sources
from undrift.problems.model import ModelProblem

Visitor = tuple[int, int]  # the number of a seed, and a client of its


class StackedProblem:
    """What engines ask of a problem, for rows of several runs; a client is (number of a seed, client)."""

    def __init__(self, problems: Sequence[ModelProblem], seeds: Sequence[int], width: int):
        check_alike(problems)
        self.problems, self.seeds, self.width = problems, seeds, width
        self.first = problems[0]
        self.x0, self.pieces = self.first.x0, self.first.pieces

    # what engines ask

    def draw(
        self, key: Key, rows: Sequence[Visitor], steps: Sequence[int], batch: int | None, replacement: bool = False
    ) -> Minibatches:
        """The minibatches of the visitors, each once."""
        visitors, counts = rows[:: self.width], steps[:: self.width]
        stretches = _stretches(visitors)
        each: list[Source] = []
        for s, begin, end in stretches:
            own = replace(key, seed=self.seeds[s])
            each += sources(self.problems[s].parts, [i for _, i in visitors[begin:end]], repeat(own))

        def numbers(positions: Tensor) -> Tensor:
            found = torch.empty_like(positions, device=self.first.index.device)
            for s, begin, end in stretches:  # each seed has a partition of its own
                found[:, begin:end] = self.problems[s].index[positions[:, begin:end]]
            return found

        first = self.first
        return draw_minibatches(each, counts, batch, first.seeded, first.augment, numbers, replacement)

    def draw_with_replacement(
        self, key: Key, rounds: Sequence[int], rows: Sequence[Visitor], steps: Sequence[int], batch: int | None
    ) -> Minibatches:
        """The same with every sample drawn on its own."""
        return self.draw(key, rows, steps, batch, replacement=True)

    def grad(self, y: Tensor, minibatches: Minibatches, k: int) -> Tensor:
        found, counts = torch.zeros_like(y), minibatches.counts[:, k]
        into = found.view(len(counts), self.width, -1)
        for count in counts.unique().tolist():  # short minibatches apart: nothing is padded
            if count == 0:  # these clients are done
                continue
            here = (counts == count).nonzero().flatten()
            samples, drawn, seeds = minibatches.of_step(k, here, count)
            mine = y.view_as(into)[here].flatten(0, 1)
            into[here] = self.grad_of(mine, self.resident(), (samples, None, seeds, drawn)).view(
                len(here), *into.shape[1:]
            )
        return found

    def full_grad(self, y: Tensor, rows: Sequence[Visitor]) -> Tensor:
        """The gradient of the client's whole objective, all runs of a visitor at once."""
        first, found = self.first, torch.zeros_like(y)
        first.flat.template.eval()
        of_all = vmap(grad(first.mean_loss), in_dims=(0, None, None))
        for number, (s, i) in enumerate(rows[:: self.width]):
            mine = self.problems[s].samples(i)
            here = slice(number * self.width, (number + 1) * self.width)
            for some in first.gradient_parts(len(mine)):
                found[here] += of_all(y[here], *first.batch(mine[some])) * (len(mine[some]) / len(mine))
        return found

    # what the compiled engine asks

    def resident(self) -> list[Tensor]:
        return self.first.resident()

    def inputs(self, minibatches: Minibatches, K: int, batch: int | None) -> list[tuple[Tensor | None, ...]]:
        widest = max(problem.widest(batch) for problem in self.problems)
        return self.first.inputs(minibatches.widened(widest), K, widest)

    def grad_of(self, y: Tensor, resident: Sequence[Tensor], minibatch: Sequence[Tensor | None]) -> Tensor:
        """The gradients of all rows: over visitors, and within over the runs, which share the samples."""
        samples, shares, seeds, drawn = minibatch
        assert samples is not None
        first = self.first
        first.flat.template.train()
        given = [y.view(len(samples), self.width, -1), *first.batch(samples, drawn, resident), seeds]
        loss: Any = first.mean_loss
        if shares is not None:
            loss, given = first.shared_loss, [*given, shares]
        of_runs = vmap(grad(loss), in_dims=(0, *[None] * (len(given) - 1)))
        each = tuple(None if x is None else 0 for x in given)
        return vmap(of_runs, in_dims=each)(*given).flatten(0, 1)

    def values_held(self) -> Hashable:
        return self.first.values_held()

    def not_compiled(self, minibatch: Sequence[Tensor | None]) -> str | None:
        return self.first.not_compiled(minibatch)

    # what is recorded

    def evaluate(self, x: Tensor) -> list[dict[str, float]]:
        """The metrics of every run."""
        rows = x.view(len(self.problems), self.width, -1)
        return [found for problem, mine in zip(self.problems, rows, strict=True) for found in _metrics(problem, mine)]


def _metrics(problem: ModelProblem, x: Tensor) -> list[dict[str, float]]:
    """Of each model; one by one if the problem has a way of its own to evaluate it."""
    usual = type(problem).evaluate is ModelProblem.evaluate
    return evaluate_each(problem, x) if usual else [problem.evaluate(row) for row in x]


def check_alike(problems: Sequence[ModelProblem]) -> None:
    """Raise NotBatchable unless problems differ in partition and first model only."""
    first = problems[0]
    if not all(isinstance(problem, ModelProblem) for problem in problems):
        raise NotBatchable("only models on data (ud.federate) are computed together")
    if first.local_x0 is not None:
        raise NotBatchable("clients have parameters of their own")
    why = first.not_batched or (None if first.engine == "batched" else "its layers are faster one by one")
    if why:
        raise NotBatchable(why)
    for problem in problems[1:]:
        if not (equal(first.X, problem.X) and equal(first.Y, problem.Y)):
            raise NotBatchable("the runs have different data")
        if problem.N != first.N:
            raise NotBatchable("the runs have different numbers of clients")
        if problem.prepare != first.prepare or problem.augment != first.augment:
            raise NotBatchable("the runs prepare or augment samples differently")
        if problem.flat is not first.flat and not _same_model(first, problem):
            raise NotBatchable("the runs have different models or losses")


def _same_model(first: ModelProblem, other: ModelProblem) -> bool:
    """Whether both are the same function of a vector: they have the same gradient somewhere."""
    if first.flat.names != other.flat.names or first.flat.shapes != other.flat.shapes:
        return False
    if first.x0.dtype != other.x0.dtype:
        return False
    X, Y = first.batch(torch.arange(min(8, sample_count(first.X))))
    seed = torch.tensor(0)
    return all(
        torch.equal(first.gradient(y, X, Y, seed, training), other.gradient(y, X, Y, seed, training))
        for y in (first.x0, other.x0)
        for training in (True, False)
    )


def _stretches(visitors: Sequence[Visitor]) -> list[tuple[int, int, int]]:
    """(seed, begin, end) of the visitors that belong to one seed."""
    edges = [j for j in range(1, len(visitors)) if visitors[j][0] != visitors[j - 1][0]]
    begins, ends = [0, *edges], [*edges, len(visitors)]
    return [(visitors[a][0], a, b) for a, b in zip(begins, ends, strict=True)]
