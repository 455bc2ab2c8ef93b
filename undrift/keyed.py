"""Counter-based randomness: every draw has a key, so it does not matter who draws first, or where.

A Philox stream is fixed by (seed, purpose, round, part, client): no generator is ever carried from one draw to the next,
which is why engines agree, chunks do not matter and a resumed run goes on with the same numbers.
"""

from dataclasses import dataclass
from enum import IntEnum

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


class Streams:
    """The streams of many clients under one key: what `generator` gives, without making a generator for each.

    A stream must be read to its end before the next one is asked for.

    >>> streams, key = Streams(Purpose.NOISE, Key(seed=1, round=2)), Key(seed=1, round=2)
    >>> bool(streams.of(3).standard_normal() == generator(Purpose.NOISE, key, 3).standard_normal())
    True
    """

    def __init__(self, purpose: Purpose, key: Key):
        self._random = generator(purpose, key)
        self._bits = self._random.bit_generator
        self._start = self._bits.state
        self._client = self._start["state"]["counter"][2:3]  # a view: the counter's third word

    def of(self, client: int) -> np.random.Generator:
        """The stream of a client, from its beginning."""
        self._client[0] = client
        self._bits.state = self._start
        return self._random
