"""Which samples, which dropped units and which crops make up the minibatches of a visit: all drawn by key."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.core.rng import Key, Purpose, stream
from undrift.data.assignment import ClientIndices
from undrift.data.transforms import CropFlip


@dataclass(frozen=True)
class Minibatches:
    """Sample numbers `[S, K, batch]`, of which a minibatch has the first `counts` (some are short)."""

    samples: Tensor
    counts: Tensor
    seeds: Tensor | None  # of dropout, `[S, K]`
    augmentation: Tensor | None  # what was drawn for each sample, `[S, K, batch, ...]`
    whole: bool  # whether every minibatch has as many samples as there is room for

    def shares(self, dtype: torch.dtype) -> Tensor:
        """Of every sample in its minibatch's mean, `[S, K, batch]`: none where a minibatch is short."""
        counts = self.counts.unsqueeze(2)
        numbers = torch.arange(self.samples.shape[2], device=counts.device)
        return (numbers < counts) / counts.clamp(min=1).to(dtype)

    def of_step(self, k: int, rows: Any, count: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Of the k-th step of some rows, which have so many samples each: these, what was drawn for each, and seeds."""
        drawn = None if self.augmentation is None else self.augmentation[rows, k, :count]
        return self.samples[rows, k, :count], drawn, None if self.seeds is None else self.seeds[rows, k]

    def widened(self, width: int) -> "Minibatches":
        """The same with room for so many samples in every minibatch, so that all visits have one shape."""
        more = width - self.samples.shape[2]
        if more == 0:
            return self
        crops = self.augmentation
        return Minibatches(
            F.pad(self.samples, (0, more)),
            self.counts,
            self.seeds,
            None if crops is None else F.pad(crops, (0, 0, 0, more)),
            whole=False,
        )


class Source(NamedTuple):
    """What a client's minibatches are drawn from, and by which key."""

    key: Key
    client: int
    begin: int  # the position of its first sample, after which the others follow
    size: int


def sources(parts: ClientIndices, clients: Sequence[int], keys: Iterable[Key]) -> list[Source]:
    """Of these clients of a partition, each with its key."""
    begins, sizes = (each[list(clients)].tolist() for each in (parts.starts, parts.sizes))
    return list(map(Source, keys, clients, begins, sizes))


def draw_minibatches(
    each: Sequence[Source],
    steps: Sequence[int],
    batch: int | None,
    seeded: bool,
    augment: CropFlip | None,
    numbers: Callable[[Tensor], Tensor],
    replacement: bool = False,
) -> Minibatches:
    """Minibatches of each: pass after pass over a client's data, each in a new order, or with replacement.

    `numbers` are those of the samples that lie at given positions, `[K, S, batch]`.
    """
    sizes = [source.size for source in each]
    width = [n if batch is None else min(batch, n) for n in sizes]
    alike = len({*steps}) == len({*width}) == 1
    of_one = _independent if replacement else _one
    positions = _side_by_side(list(map(of_one, each, steps, width)), steps, width, alike)
    positions += np.array([source.begin for source in each])[:, None]
    shape = positions.shape
    seeds = np.zeros(shape[:2], dtype=np.int64) if seeded else None
    crops = None if augment is None else np.zeros((*shape, 3), dtype=np.int64)
    for row, (source, k, size) in enumerate(zip(each, steps, width, strict=True)):
        if seeds is not None:
            random = stream(Purpose.DROPOUT, source.key, source.client)
            seeds[:k, row] = random.integers(2**62, size=k)
        if augment is not None and crops is not None:
            random = stream(Purpose.AUGMENTATION, source.key, source.client)
            crops[:k, row, :size] = augment.draw(random, (k, size))
    whole = alike and (replacement or all(steps[0] * width[0] <= n or n % width[0] == 0 for n in sizes))
    a_pass = width if replacement else sizes  # no minibatch of independent samples is short
    counts = np.full(shape[:2], width[0]) if whole else _counts(a_pass, width, steps)
    samples = numbers(torch.from_numpy(positions))
    return Minibatches(
        samples.transpose(0, 1),
        torch.from_numpy(counts).T.to(samples.device),
        None if seeds is None else torch.from_numpy(seeds).T.to(samples.device),
        None if crops is None else torch.from_numpy(crops).transpose(0, 1).to(samples.device),
        whole,
    )


def _counts(sizes: Sequence[int], width: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """How many samples each minibatch has, `[K, S]`: the last of a pass what is left, none after a client's last step."""
    full, rest = np.divmod(sizes, np.maximum(width, 1))
    a_pass = np.maximum(full + (rest > 0), 1)
    k = np.arange(max(steps))[:, None]
    return np.where(k % a_pass < full, width, rest) * (k < np.array(steps))


def _one(source: Source, K: int, width: int) -> np.ndarray:
    """Where the samples of one client's minibatches lie, counted from its first, `[K width]`: pass after pass."""
    n = source.size
    if width == n:  # the whole of it, whose order does not matter
        return np.tile(np.arange(n), K)
    random = stream(Purpose.MINIBATCH, source.key, source.client)
    if K * width <= n:
        return random.permutation(n)[: K * width]
    a_pass = -(-n // width) * width  # with room in the last minibatch, if that is short
    found = np.zeros(-(-K * width // a_pass) * a_pass, dtype=np.int64)
    for first in range(0, K * width, a_pass):
        found[first : first + n] = random.permutation(n)
    return found[: K * width]


def _independent(source: Source, K: int, width: int) -> np.ndarray:
    """The same with every sample drawn on its own, all equally likely."""
    return stream(Purpose.MINIBATCH, source.key, source.client).integers(source.size, size=K * width)


def _side_by_side(rows: Sequence[np.ndarray], steps: Sequence[int], width: Sequence[int], alike: bool) -> np.ndarray:
    """The minibatches of all clients, `[K, S, batch]`, with room for the most steps and the widest of them."""
    # steps come first in memory, because one step of all clients is what is read at a time
    K, S, most = max(steps), len(rows), max(width)
    if alike:
        return np.concatenate(rows).reshape(S, K, most).swapaxes(0, 1).copy()
    found = np.zeros((K, S, most), dtype=np.int64)
    for row, (mine, k, size) in enumerate(zip(rows, steps, width, strict=True)):
        found[:k, row, :size] = mine.reshape(k, size)
    return found
