"""What privacy does to a message: it is clipped as a whole, and gets the client's share of the noise if clients add it."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256, shake_256
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from undrift.core.algorithm import Wire
from undrift.core.records import map_tensors, tensors
from undrift.core.rng import Purpose
from undrift.core.work import Work

T = TypeVar("T")


def clip_jointly(up: T, clip: float) -> T:
    """The same message, scaled so that the norm over all its numbers is at most `clip`; each client's row apart.

    >>> import torch
    >>> clip_jointly((torch.tensor([3.0, 0.0]), torch.tensor([4.0])), 1.0)
    (tensor([0.6000, 0.0000]), tensor([0.8000]))
    """
    squares = sum((t * t).sum(-1, keepdim=True) for t in tensors(up))
    if not isinstance(squares, Tensor):  # a message without numbers
        return up
    factor = (clip / squares.sqrt()).clamp(max=1.0)
    return map_tensors(lambda t: t * factor, up)


def system_noise(like: Tensor, random: Callable[[int], bytes] = os.urandom) -> Tensor:
    """Standard normal numbers from the operating system's generator, or other random bytes (Box and Muller).

    >>> system_noise(torch.zeros(3)).shape
    torch.Size([3])
    """
    pairs = -(-like.numel() // 2)
    bits = np.frombuffer(random(16 * pairs), dtype="<u8").reshape(2, pairs)
    u, v = ((bits >> 11) + 1) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(u)), 2 * np.pi * v
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: like.numel()]
    return torch.from_numpy(normal).to(like).view_as(like)


def noise_by_secret(secret: bytes, message: Any, about: str) -> Any:
    """Noise in the form of a message that only the secret and this very message tell (SHAKE-256).

    A sum that is released again has the same noise, which tells nothing new; another sum has noise of its own.

    >>> one, same, other = (noise_by_secret(b"s", (torch.tensor([x]),), "round 1")[0] for x in (1.0, 1.0, 2.0))
    >>> torch.equal(one, same), torch.equal(one, other)
    (True, False)
    """
    key = sha256(secret + about.encode())
    for t in tensors(message):
        key.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    calls = count()
    stream = lambda: shake_256(key.digest() + next(calls).to_bytes(4, "big")).digest
    return map_tensors(lambda t: system_noise(t, stream()), message)


@dataclass(frozen=True)
class PrivateWire:
    """The wire of a private run.

    Clients clip what they send.  If the server adds the noise it clips again, what it has decoded: whatever a codec, or a
    client that does not keep to the rules, makes of a message, no more than `clip` of it enters the sum.  A client counts
    with the same (`Exchange.settle`).
    """

    clip: float
    share: float = 0.0  # deviation of the noise that each client adds
    codec: Wire | None = None
    secret: bool = False  # noise is the system's, not the seed's: on real nodes

    def client(self, own: Any) -> Any:
        return own if self.codec is None else self.codec.client(own)

    def client_of(self, state: Any) -> Any:
        return state if self.codec is None else self.codec.client_of(state)

    def keep(self, own: Any, kept: Any) -> Any:
        return own if self.codec is None else self.codec.keep(own, kept)

    def encode(self, up: Any, state: Any, work: Work) -> tuple[Any, Any]:
        if self.codec is not None:
            return self.codec.encode(up, state, work)
        clipped = clip_jointly(up, self.clip)
        return (self._noisy(clipped, work) if self.share else clipped), None

    def decode(self, payload: Any) -> Any:
        if self.share:
            return payload
        return clip_jointly(payload if self.codec is None else self.codec.decode(payload), self.clip)

    def _noisy(self, up: Any, work: Work) -> Any:
        key, calls = replace(work.key, loop=0), count()
        keyed = lambda t: work.keyed_random(Purpose.PRIVACY, key, next(calls), t, "normal")
        noise = system_noise if self.secret else keyed
        return map_tensors(lambda t: t + self.share * noise(t), up)

    def bound(self, up: Any) -> float:
        """The largest norm of a message that kept to the rules, but for one of e^32; infinite where a codec may exceed it."""
        if self.codec is not None:
            return math.inf
        size = sum(t.numel() for t in tensors(up))
        return 1.001 * (
            self.clip + self.share * (math.sqrt(size) + 8)
        )  # the norm of noise is concentrated: P < e^(-8^2/2)
