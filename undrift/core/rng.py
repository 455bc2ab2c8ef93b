"""Counter-based randomness: every draw has a key, so it does not matter who draws first, or where.

A Philox stream is fixed by (seed, purpose, round, exchange, loop, client): no generator is ever carried from one draw to
the next, which is why engines agree, chunks do not matter and a resumed run continues with the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from threading import local
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import unknown

Distribution: TypeAlias = Literal["normal", "uniform"]


class Purpose(IntEnum):
    """What a draw is for; two purposes never share a stream."""

    COHORT = 1
    STEPS = 2
    MINIBATCH = 3
    NOISE = 4
    PARTITION = 5
    DATA = 6
    DROPOUT = 7
    AUGMENTATION = 8
    DEVICE = 9
    VISIT = 10
    PRESENCE = 11
    METHOD = 12  # what a method draws on clients
    SERVER = 13  # what it draws on the server
    CODEC = 14  # what a codec draws on clients
    PRIVACY = 15  # noise for privacy, on clients or on the server


@dataclass(frozen=True)
class Key:
    """When something is drawn: run, round, exchange of the round, loop of the visit."""

    seed: int
    round: int
    exchange: int = 0
    loop: int = 0


def generator(purpose: Purpose, key: Key, client: int = 0) -> np.random.Generator:
    """The stream of random numbers that belongs to a key and a client.

    >>> a = generator(Purpose.NOISE, Key(seed=1, round=2), client=3).standard_normal()
    >>> b = generator(Purpose.NOISE, Key(seed=1, round=2), client=3).standard_normal()
    >>> bool(a == b)
    True
    """
    part = (key.exchange << 32) + key.loop
    counter = np.array([0, part, client, key.round], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([key.seed, purpose], dtype=np.uint64), counter=counter))


class _Reused(local):
    """A generator of each thread, with views of the words that fix its stream."""

    def __init__(self) -> None:
        self.random = np.random.Generator(np.random.Philox(key=0))
        self.bits = self.random.bit_generator
        self.start = self.bits.state
        self.key, self.counter = self.start["state"]["key"], self.start["state"]["counter"]


_reused = _Reused()


def stream(purpose: Purpose, key: Key, client: int = 0, call: int = 0) -> np.random.Generator:
    """The stream that `generator` gives, ten times sooner, in an object that the thread's next call reuses.

    So it must be read before the next one is asked for.  `call` tells several streams of one key apart.

    >>> key = Key(seed=1, round=2)
    >>> bool(stream(Purpose.NOISE, key, 3).random() == generator(Purpose.NOISE, key, 3).random())
    True
    """
    mine = _reused
    mine.key[0], mine.key[1] = key.seed, purpose + (call << 8)
    mine.counter[1] = (key.exchange << 32) + key.loop
    mine.counter[2], mine.counter[3] = client, key.round
    mine.bits.state = mine.start
    return mine.random


def draw_numbers(
    purpose: Purpose, keys: Sequence[Key], clients: Sequence[int], call: int, like: Tensor, distribution: Distribution
) -> Tensor:
    """Standard normal numbers, or uniform ones in [0, 1), with a row for every client, in the type of `like`.

    Every client's row comes from a stream of its own, so that it does not depend on who is computed beside it.

    >>> rows = draw_numbers(Purpose.METHOD, [Key(0, 1)] * 2, [3, 4], 0, torch.zeros(2, 5), "normal")
    >>> alone = draw_numbers(Purpose.METHOD, [Key(0, 1)], [4], 0, torch.zeros(1, 5), "normal")
    >>> bool((rows[1] == alone[0]).all())
    True
    """
    if distribution not in ("normal", "uniform"):
        raise unknown("distribution", str(distribution), ("normal", "uniform"))
    rows = np.empty((len(clients), *like.shape[1:]))
    for row, key, client in zip(rows, keys, clients, strict=True):
        random = stream(purpose, key, client, call)
        row[...] = random.standard_normal(row.shape) if distribution == "normal" else random.random(row.shape)
    return torch.from_numpy(rows).to(device=like.device, dtype=like.dtype)
