"""What travels between the server and nodes, whatever carries it: a header and named tensors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.core.algorithm import Col
from undrift.core.records import record
from undrift.experiments.runs.tree import classes_in, from_json, to_json


class Stamp(NamedTuple):
    """The visit that a client's state comes from: its round and its exchange, counted from 1.  Stamps grow.

    A round that was played again has the same numbers and another `mark`, which says what was asked and answered.
    """

    round: int
    exchange: int
    mark: str = "0" * 16  # in hex


NOT_VISITED = Stamp(0, 0)  # of a client that has not been visited, or starts again


STAMP = Struct(">IB8s")  # in bytes: all halves, bfloat16 too, have these numbers exactly


@record
class StateStamp:
    """What the server remembers of a client: not its state, only which one it has, i.e. its stamp.

    A client's states have the dtype of the model, so a stamp is written in bytes, each a number.
    """

    content: tuple[Col, ...]

    @staticmethod
    def of(stamp: Stamp, like: Tensor) -> "StateStamp":
        """A stamp as a record that checkpoints can hold, for a client's row."""
        content = STAMP.pack(stamp.round, stamp.exchange, bytes.fromhex(stamp.mark))
        return StateStamp(tuple(torch.full_like(like[:1], byte) for byte in content))


def stamps_of(stamps: StateStamp) -> list[Stamp]:
    """The stamps in a table with a row a client."""
    columns = [[int(n) for n in byte.flatten().tolist()] for byte in stamps.content]
    rows = [STAMP.unpack(bytes(row)) for row in zip(*columns, strict=True)]
    return [Stamp(t, exchange, mark.hex()) for t, exchange, mark in rows]


@dataclass(frozen=True)
class Envelope:
    """A message: its kind, a header that JSON can hold, tensors by name.

    To nodes      hello, work, state (send me your state), refused
    from nodes    hello, up, state, lost (I have no such state), failed; and "absent", if the carrier says that nobody
                  will answer
    """

    kind: str
    header: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Tensor] = field(default_factory=dict)


def pack_tensors(name: str, message: Any) -> tuple[Any, dict[str, Tensor]]:
    """A record as its shape, which JSON can hold, and its tensors by name.

    >>> shape, arrays = pack_tensors("down", (torch.zeros(2), None))
    >>> list(arrays)
    ['down.0']
    """
    found: dict[str, Tensor] = {}
    return to_json(message, found, name), found


def unpack_tensors(shape: Any, arrays: Mapping[str, Tensor], like: Any) -> Any:
    """The record of a shape, made of the same classes as `like`."""
    return from_json(shape, arrays, classes_in([like]))


def to_bytes(t: Tensor) -> bytes:
    """The numbers of a tensor of any dtype, bfloat16 too, as they are in memory.

    >>> to_bytes(torch.ones(1, dtype=torch.bfloat16))
    b'\\x80?'
    """
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest(words: str, arrays: Mapping[str, Tensor]) -> str:
    """What a request is, in a few letters: two with one digest ask for the same work on the same numbers."""
    made = sha256(words.encode())
    for name in sorted(arrays):
        made.update(f"{name} {arrays[name].dtype} {list(arrays[name].shape)}".encode())
        made.update(to_bytes(arrays[name]))
    return made.hexdigest()


def digest_of(request: Envelope) -> str:
    """The digest of all in a request on which its answer depends."""
    words = {word: told for word, told in request.header.items() if word != "keep"}
    return digest(json.dumps(words, sort_keys=True), request.arrays)


def mark_of(request: str, answer: Mapping[str, Tensor]) -> str:
    """What tells a state from others of its round: the digest of the request, which names the state before, and the answer."""
    return digest(request, answer)[:16]
