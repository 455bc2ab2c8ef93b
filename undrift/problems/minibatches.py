"""Which samples, which dropped units and which crops make up the minibatches of a visit: all drawn by key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.data.augment import CropFlip
from undrift.data.partition import Parts
from undrift.keyed import Key, Purpose, stream


@dataclass(frozen=True)
class Minibatches:
    """Sample numbers `[S, K, batch]`, of which a minibatch has the first `counts` (some are short)."""

    samples: Tensor
    counts: Tensor
    seeds: Tensor | None  # of dropout, `[S, K]`
    augmentation: Tensor | None  # what was drawn for each sample, `[S, K, batch, ...]`
    whole: bool  # whether every minibatch has as many samples as there is room for

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


def draw(
    parts: Parts,
    index: Tensor,
    key: Key,
    clients: Sequence[int],
    steps: Sequence[int],
    batch: int | None,
    seeded: bool,
    augment: CropFlip | None,
    rounds: Sequence[int] | None = None,
) -> Minibatches:
    """The minibatches of these clients: pass after pass over a client's data, each in a new order.

    `rounds` are those of the clients where they are not the key's.
    """
    sizes = parts.sizes[list(clients)].tolist()
    width = max(sizes) if batch is None else min(batch, max(sizes))
    # steps come first in memory, because one step of all clients is what is read at a time
    positions = np.zeros((max(steps), len(clients), width), dtype=np.int64)
    counts = np.zeros(positions.shape[:2], dtype=np.int64)  # none after a client's last step
    seeds = np.zeros(positions.shape[:2], dtype=np.int64) if seeded else None
    crops = None if augment is None else np.zeros((*positions.shape, 3), dtype=np.int64)
    for row, (i, n, K) in enumerate(zip(clients, sizes, steps, strict=True)):
        size = n if batch is None else min(batch, n)
        own = key if rounds is None else replace(key, round=rounds[row])
        _one(positions[:, row], counts[:, row], int(parts.starts[i]), n, K, size, own, i)
        if seeds is not None:
            seeds[:K, row] = stream(Purpose.DROPOUT, own, i).integers(2**62, size=K)
        if augment is not None and crops is not None:
            drawn = augment.draw(stream(Purpose.AUGMENTATION, own, i), (K, size))
            crops[:K, row, :size] = drawn
    return Minibatches(
        index[torch.from_numpy(positions)].transpose(0, 1),
        torch.from_numpy(counts).T.to(index.device),
        None if seeds is None else torch.from_numpy(seeds).T.to(index.device),
        None if crops is None else torch.from_numpy(crops).transpose(0, 1).to(index.device),
        whole=bool((counts == width).all()),
    )


def _one(
    positions: np.ndarray,
    counts: np.ndarray,
    begin: int,
    n: int,
    K: int,
    size: int,
    key: Key,
    client: int,
) -> None:
    """Fill in one client's minibatches."""
    if size == n:  # the whole of it, whose order does not matter
        positions[:K, :n], counts[:K] = begin + np.arange(n), n
        return
    random = stream(Purpose.MINIBATCH, key, client)
    full, rest = divmod(n, size)
    a_pass = full + (rest > 0)
    for first in range(0, K, a_pass):
        order = begin + random.permutation(n)
        now = min(full, K - first)
        positions[first : first + now, :size] = order[: now * size].reshape(now, size)
        counts[first : first + now] = size
        if rest and first + full < K:
            positions[first + full, :rest], counts[first + full] = order[full * size :], rest
