"""What privacy does to a message: it is clipped as a whole, and gets the client's share of the noise if clients add it."""

from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

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


@dataclass(frozen=True)
class PrivateWire:
    """The wire of a private run.

    If the server adds the noise it also clips, what it has decoded: whatever a codec, or a client that does not keep to the
    rules, makes of a message, no more than `clip` of it enters the sum.  A client counts with the same (`Exchange.settle`).
    If clients add the noise they clip before.
    """

    clip: float
    share: float = 0.0  # deviation of the noise that each client adds
    codec: Wire | None = None

    def client(self, own: Any) -> Any:
        return own if self.codec is None else self.codec.client(own)

    def client_of(self, state: Any) -> Any:
        return state if self.codec is None else self.codec.client_of(state)

    def keep(self, own: Any, kept: Any) -> Any:
        return own if self.codec is None else self.codec.keep(own, kept)

    def encode(self, up: Any, state: Any, work: Work) -> tuple[Any, Any]:
        if self.codec is not None:
            return self.codec.encode(up, state, work)
        return (self._noisy(clip_jointly(up, self.clip), work) if self.share else up), None

    def decode(self, payload: Any) -> Any:
        if self.share:
            return payload
        return clip_jointly(payload if self.codec is None else self.codec.decode(payload), self.clip)

    def _noisy(self, up: Any, work: Work) -> Any:
        key, calls = replace(work.key, loop=0), count()
        noise = lambda t: work.keyed_random(Purpose.PRIVACY, key, next(calls), t, "normal")
        return map_tensors(lambda t: t + self.share * noise(t), up)
