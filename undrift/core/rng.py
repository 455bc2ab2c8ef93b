"""Counter-based randomness: every draw has a key, so it does not matter who draws first, or where.

A Philox stream is fixed by (seed, purpose, round, part, client): no generator is ever carried from one draw to the next,
which is why engines agree, chunks do not matter and a resumed run goes on with the same numbers.
"""

from dataclasses import dataclass
from enum import IntEnum
from threading import local

import numpy as np


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


@dataclass(frozen=True)
class Key:
    """When a minibatch is drawn: run, round, exchange of the round, loop of the visit."""

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
    return np.random.Generator(
        np.random.Philox(key=np.array([key.seed, purpose], dtype=np.uint64), counter=counter)
    )


class _Reused(local):
    """A generator of each thread, with views of the words that fix its stream."""

    def __init__(self) -> None:
        self.random = np.random.Generator(np.random.Philox(key=0))
        self.bits = self.random.bit_generator
        self.start = self.bits.state
        self.key, self.counter = self.start["state"]["key"], self.start["state"]["counter"]


_reused = _Reused()


def stream(purpose: Purpose, key: Key, client: int = 0) -> np.random.Generator:
    """The stream that `generator` gives, ten times sooner, in an object that the thread's next call takes over.

    So it must be read before the next one is asked for.

    >>> key = Key(seed=1, round=2)
    >>> bool(stream(Purpose.NOISE, key, 3).random() == generator(Purpose.NOISE, key, 3).random())
    True
    """
    mine = _reused
    mine.key[0], mine.key[1] = key.seed, purpose
    mine.counter[1] = (key.exchange << 32) + key.loop
    mine.counter[2], mine.counter[3] = client, key.round
    mine.bits.state = mine.start
    return mine.random
