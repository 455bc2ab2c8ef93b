"""The one door for what comes over the wire: everything from a node is parsed, bounded and looked at here.

    parse_envelope     words and arrays as they came -> an Envelope
    read_hello         a node's greeting             -> Hello
    read_answer        an answer                     -> the record in it

Whatever is wrong, the error is BadAnswer, whose text is short and printable: the node is named, counted and survived.
"""

import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.core.algorithm import Recounts
from undrift.core.errors import InvalidInput
from undrift.core.hyper import spec_of
from undrift.core.records import rebuild, tensors
from undrift.deploy.messages import Envelope, pack_tensors

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")  # of a client

HEADER = 2**20  # characters of JSON
DEPTH = 32  # of lists in lists
ARRAYS, DIMENSIONS = 1000, 8
TEXT = 500  # characters of a reason
REASONS = 10

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class BadAnswer(Exception):
    """Why a message must not be used."""

    def __init__(self, reason: str):
        super().__init__(printable(reason))


def printable(value: Any) -> str:
    """What a node said, fit for a log: short, on one line, without escapes for terminals.

    >>> printable("no\\nmore\\x1b[2J")
    'no\\\\nmore\\\\x1b[2J'
    """
    text = value if isinstance(value, str) else reprlib.repr(value)
    cut = text if len(text) <= TEXT else text[: TEXT - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


# what any message is


class RawArray(NamedTuple):
    """A tensor as it travels: its dtype by name, its shape, its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def parse_envelope(kind: Any, header: Any, arrays: Mapping[str, RawArray]) -> Envelope:
    """The envelope of words in JSON and arrays, if they are one.

    >>> parse_envelope("up", "[" * 100_000, {})
    Traceback (most recent call last):
    undrift.deploy.checks.BadAnswer: not a message of undrift's (RecursionError)
    """
    try:
        if not isinstance(kind, str) or not isinstance(header, str) or len(header) > HEADER:
            raise BadAnswer(f"not a message of undrift's: its header is no text of at most {HEADER} characters")
        words = json.loads(header)
        if not isinstance(words, dict) or _depth(words) > DEPTH:
            raise BadAnswer(f"not a message of undrift's: its header is no JSON object of depth {DEPTH} at most")
        if len(arrays) > ARRAYS:
            raise BadAnswer(f"sent {len(arrays)} arrays, more than {ARRAYS}")
        return Envelope(printable(kind), words, {printable(name): _tensor(name, raw) for name, raw in arrays.items()})
    except BadAnswer:
        raise
    except Exception as error:  # whatever a stranger can provoke in a parser
        raise BadAnswer(f"not a message of undrift's ({type(error).__name__})") from None


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def _tensor(name: str, raw: RawArray) -> Tensor:
    dtype, shape = DTYPES.get(raw.dtype), tuple(raw.shape)
    if dtype is None:
        raise BadAnswer(f"{name} is of dtype {printable(raw.dtype)}, not one of {', '.join(DTYPES)}")
    if len(shape) > DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise BadAnswer(f"{name} has shape {printable(shape)}")
    if math.prod(shape) * dtype.itemsize != len(raw.data):
        raise BadAnswer(f"{name} has {len(raw.data)} bytes, not those of {raw.dtype} {printable(shape)}")
    if not raw.data:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(raw.data), dtype=torch.uint8)
    if dtype is torch.bool and bool((flat > 1).any()):
        raise BadAnswer(f"{name} is of dtype bool and has other values than 0 and 1")
    return flat.view(dtype).view(shape)


# what a node says of itself


@dataclass(frozen=True)
class Hello:
    """Who is there, with how many samples, and what speaks against working together."""

    name: str
    samples: int
    reasons: tuple[str, ...]
    facts: Mapping[str, Any]


def read_hello(reply: Envelope, most_samples: int) -> Hello:
    """A node's greeting, if it is one.

    >>> read_hello(Envelope("hello", {"name": "ash", "samples": True}), 10**6)
    Traceback (most recent call last):
    undrift.deploy.checks.BadAnswer: it has True samples, not a whole number from 1 to 1000000
    """
    words = reply.header
    if reply.kind == "failed":
        raise BadAnswer(printable(words.get("reason", "no reason given")))
    if reply.kind != "hello" or not isinstance(words.get("name"), str):
        raise BadAnswer("it said no name")
    name, samples, reasons = words["name"], words.get("samples"), words.get("reasons", [])
    if not NAME.fullmatch(name):
        raise BadAnswer(f"a client's name has at most 64 letters, digits and _.@-, got {name!r}")
    if not isinstance(reasons, list):
        raise BadAnswer("its reasons are no list")
    if not reasons and not (type(samples) is int and 1 <= samples <= most_samples):
        raise BadAnswer(f"it has {printable(samples)} samples, not a whole number from 1 to {most_samples}")
    number = samples if type(samples) is int else 0
    return Hello(name, number, tuple(printable(reason) for reason in reasons[:REASONS]), words)


# what it answers


def read_answer(
    reply: Envelope,
    kind: str,
    visit: Mapping[str, Any],
    form: Any,
    bound: float,
    decode: Callable[[Any], Any] | None = None,
) -> Any:
    """The record in an answer that is of the right kind, answers the visit that was asked for and has the form of `form`
    in every vector, finite and within the bound (0: none), also when it is decoded; otherwise BadAnswer.

    >>> up = Envelope("up", {"visit": {"round": 2}}, {"up.0": torch.tensor([torch.nan])})
    >>> read_answer(up, "up", {"round": 2}, (torch.zeros(1),), bound=0)
    Traceback (most recent call last):
    undrift.deploy.checks.BadAnswer: up.0 has NaN or Inf in it
    """
    if reply.kind == "failed":
        raise BadAnswer(f"failed: {printable(reply.header.get('reason', 'no reason given'))}")
    if reply.kind != kind:
        raise BadAnswer(f"answered with a message of kind {reply.kind!r}, not {kind!r}")
    claimed = reply.header.get("visit")
    if claimed != visit:
        raise BadAnswer(_other_visit(claimed, visit))
    _, expected = pack_tensors("up" if kind == "up" else "state", form)
    if set(reply.arrays) != set(expected):
        raise BadAnswer(f"sent {sorted(reply.arrays)}, not {sorted(expected)}")
    for name, like in expected.items():
        _check_array(name, reply.arrays[name], like)
    answer = rebuild(form, iter([reply.arrays[name] for name in expected]))
    vectors = tensors(_decoded(answer, decode) if decode else answer)
    norm = float(torch.stack([t.double().norm() for t in vectors]).norm()) if vectors else 0.0
    if bound and norm > bound:
        raise BadAnswer(f"sent vectors of norm {norm:.3g}, more than {bound:g}")
    return answer


def _decoded(answer: Any, decode: Callable[[Any], Any]) -> Any:
    try:
        found = decode(answer)
    except Exception as error:  # a codec may be the user's own
        raise BadAnswer(f"sent what cannot be decoded ({type(error).__name__}: {error})") from None
    if not all(bool(t.isfinite().all()) for t in tensors(found)):
        raise BadAnswer("has NaN or Inf in it when it is decoded")
    return found


def tells_of_a_loss(reply: Envelope, visit: Mapping[str, Any], has_states: bool) -> bool:
    """Whether a node may have lost the state that it was asked to work from: one that begins anew has none to lose."""
    return reply.kind == "lost" and has_states and reply.header.get("visit") == visit and any(visit["base"][:2])


def _check_array(name: str, got: Tensor, like: Tensor) -> None:
    if got.shape != like.shape:
        raise BadAnswer(f"{name} has shape {list(got.shape)}, not {list(like.shape)}")
    if got.dtype != like.dtype:
        raise BadAnswer(f"{name} is {got.dtype}, not {like.dtype}")
    if not bool(got.isfinite().all()):
        raise BadAnswer(f"{name} has NaN or Inf in it")


def _other_visit(claimed: Any, visit: Mapping[str, Any]) -> str:
    if not isinstance(claimed, Mapping):
        return "does not say which request it answers"
    for word in ("run", "round", "exchange", "client", "base"):
        if claimed.get(word) != visit.get(word):
            return f"answers {word} {printable(claimed.get(word))}, not {word} {visit.get(word)}"
    return "answers another request"


def check_method(method: Any) -> None:
    """Refuse a method whose clients could not come back after losing their state."""
    spec = spec_of(method)
    if spec.adds_states and not isinstance(method, Recounts):
        raise InvalidInput(
            f"{spec.name} adds up clients' states, so on nodes, which may lose theirs, it needs a function "
            "recount(server, mean, cohort): the server with its sum recomputed from the mean of states"
        )
