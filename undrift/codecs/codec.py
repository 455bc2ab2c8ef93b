"""The codec's protocol, codecs by name, and the wire that puts one between clients and the server's sum."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count, repeat
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

import torch
from torch import Tensor

from undrift.core.algorithm import Algorithm, exchanges_of, trial_up
from undrift.core.errors import InvalidInput, MethodFailure, first_line, registering
from undrift.core.hyper import build_named, spec_of
from undrift.core.records import Beside, check_records, children, map_leaves, record, tensors, with_children
from undrift.core.rng import Distribution, Key, Purpose
from undrift.core.work import Ones, Solver, Work


class Random(Protocol):
    """Numbers of the shape of `like`, keyed by client and round as `work.random` is, so that every engine draws the same."""

    def __call__(self, like: Tensor, distribution: Distribution = "normal") -> Tensor: ...


@runtime_checkable
class Codec(Protocol):
    """Encodes vectors `[D]`, or `[S, D]` with a row per client, which must be treated apart.

    encode    a tensor, or a record or tuple of tensors of any dtype: its bytes are what travels
    decode    the vector that the server adds up, in the shape `[..., D]` and dtype of the model `like`, `[D]`
    """

    def encode(self, v: Tensor, random: Random) -> Any: ...
    def decode(self, payload: Any, like: Tensor) -> Tensor: ...


CODECS: dict[str, Callable[..., Codec]] = {}

CodecT = TypeVar("CodecT", bound=Callable[..., Any])


@overload
def codec(name: CodecT) -> CodecT: ...
@overload
def codec(name: str | None = None) -> Callable[[CodecT], CodecT]: ...
def codec(name: Any = None) -> Any:
    """Register a class, or a function that makes a codec, under a name for `codec=` and an experiment's `[codec]`.

    Without a name, `@codec`, it is called as the class or function: a class SignSum is "sign-sum".

    >>> @codec("sign")
    ... class Sign:
    ...     def encode(self, v, random):
    ...         return v > 0, v.abs().mean(-1, keepdim=True)
    ...     def decode(self, payload, like):
    ...         positive, scale = payload
    ...         return torch.where(positive, scale, -scale)
    >>> CODECS.pop("sign") is Sign
    True
    """
    return registering("codec", name, CODECS)


@codec("identity")
@dataclass(frozen=True)
class Identity:
    """Vectors as they are."""

    def encode(self, v: Tensor, random: Random) -> Tensor:
        return v

    def decode(self, payload: Tensor, like: Tensor) -> Tensor:
        return payload


def random_of(work: Work) -> Random:
    """The codec's own random numbers: whatever else a visit draws, and in whichever engine, they are the same."""
    calls = count()

    def random(like: Tensor, distribution: Distribution = "normal") -> Tensor:
        key = replace(work.key, loop=0)
        return work.keyed_random(Purpose.CODEC, key, next(calls), like, distribution)

    return random


@record
class Encoded:
    """A vector of an Up as it travels."""

    payload: Any


@record
class WithError(Beside):
    """A client's state of the method's, and what codecs have left out so far of the vectors that it sent."""

    own: Any
    error: tuple[Tensor, ...]


@runtime_checkable
class FeedsBack(Protocol):
    """A codec that says whether it is used with error feedback."""

    @property
    def feedback(self) -> bool: ...


@dataclass(frozen=True)
class CodecWire:
    """The wire of a run with a codec: vectors are encoded, single numbers travel as they are.

    With error feedback a client keeps, for each of the `vectors` that it sends in a round, what the codec left out, and
    adds it to the next one (Seide et al. 2014; Karimireddy et al. 2019).
    """

    codec: Codec
    like: Tensor
    vectors: int = 0  # with error feedback

    def client(self, own: Any) -> Any:
        return WithError(own, (torch.zeros_like(self.like),) * self.vectors) if self.vectors else own

    def client_of(self, state: Any) -> Any:
        return state.own if self.vectors else state

    def keep(self, own: Any, kept: Any) -> Any:
        return WithError(own, kept) if self.vectors else own

    def encode(self, up: Any, state: Any, work: Work) -> tuple[Any, Any]:
        random, of_round = random_of(work), self.vectors > 0 and work.key.round > 0
        errors = iter(state.error) if of_round else repeat(None)
        kept: list[Tensor] = []

        def encode(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.shape[-1:] != self.like.shape:
                return leaf
            error = next(errors)
            v = leaf if error is None else leaf + error
            encoded = self.codec.encode(v, random)
            if error is not None:
                kept.append(v - self.codec.decode(encoded, self.like))
            return Encoded(encoded)

        payload = map_leaves(encode, up)
        return payload, tuple(kept) if of_round or not self.vectors else state.error

    def decode(self, payload: Any) -> Any:
        if isinstance(payload, Encoded):
            return self.codec.decode(payload.payload, self.like)
        inside = children(payload)
        if inside is None:
            return payload
        return with_children(payload, [self.decode(part) for part in inside.values()])


def make_codec(given: Any) -> Codec | None:
    """A codec by name, with its parameters after a colon or as a section, or the object itself.

    >>> make_codec("fp16")
    Cast(dtype='float16', feedback=False)
    >>> make_codec("fp61")
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: unknown codec 'fp61'; did you mean 'fp16'? Known: bf16, fp16, identity, ...
    """
    if given is None:
        return None
    codec = build_named("codec", CODECS, given) if isinstance(given, str | Mapping) else given
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise InvalidInput(f"codec must be a name such as 'fp16' or an object with encode and decode, got {codec!r}")
    return None if isinstance(codec, Identity) else codec


def make_wire(given: Any, x: Tensor, algorithm: Algorithm, check: bool = True) -> CodecWire | None:
    """The wire of a method's run with a codec; None if it changes nothing.

    Raises InvalidInput for one that does not do what a codec does, or cannot do it with this method.
    """
    codec = make_codec(given)
    if codec is None:
        return None
    if check:
        _try(codec, x)
    vectors = _vectors_sent(algorithm, x) if isinstance(codec, FeedsBack) and codec.feedback else 0
    return CodecWire(codec, x, vectors)


@torch.no_grad()
def _vectors_sent(algorithm: Algorithm, x: Tensor) -> int:
    """How many vectors a client sends in a round."""
    exchanges = exchanges_of(algorithm, 1)
    if len(exchanges) != 1:
        raise InvalidInput(
            f"{spec_of(algorithm).name} crosses the wire several times a round: use a codec without error feedback"
        )
    return sum(t.shape == x.shape for t in tensors(trial_up(exchanges[0], algorithm, x)))


def _try(codec: Codec, x: Tensor) -> None:
    """Encode and decode something, alone and as one of two rows, before any work starts."""
    name = type(codec).__name__
    row = torch.linspace(-1, 0.9, x.numel(), dtype=torch.float64)
    values = torch.stack([3 * row, row]).to(x)  # of another size, which shows in all reductions over both
    try:
        both, alone, again = (_round_trip(codec, v, x) for v in (values, values[1], values[1]))
    except Exception as error:
        kind = "" if isinstance(error, InvalidInput) else f"{type(error).__name__}: "
        raise InvalidInput(f"codec {name}: {kind}{first_line(error)}") from error
    for found, expected in ((both, values), (alone, values[1])):
        if not isinstance(found, Tensor):
            raise InvalidInput(f"codec {name}: decode must return a tensor, got {type(found).__name__}")
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise InvalidInput(
                f"codec {name}: decode returned {list(found.shape)} of {found.dtype} for "
                f"{list(expected.shape)} of {expected.dtype}: they must be alike"
            )
        if not bool(found.isfinite().all()):
            raise InvalidInput(f"codec {name}: decode returned NaN or Inf for finite numbers")
    if not torch.equal(alone, again):
        raise InvalidInput(
            f"codec {name}: the same vector is decoded otherwise a second time: draw random numbers with the `random` "
            "that encode is given, so that they can be repeated"
        )
    if not torch.allclose(both[1], alone, rtol=1e-5, atol=1e-6):
        raise InvalidInput(
            f"codec {name}: a client's vector is decoded otherwise beside another's than alone: use reductions over "
            "dim=-1 only"
        )


def _round_trip(codec: Codec, v: Tensor, like: Tensor) -> Any:
    rows = v if v.dim() == 2 else v.unsqueeze(0)
    problem: Any = Ones(like)
    single = v.dim() == 1
    clients = [1] if single else [0, 1]
    work = Work(problem, Solver(lr=1.0), clients, [1] * len(rows), Key(0, 1), single)
    given = v.clone()
    payload = codec.encode(given, random_of(work))
    check_records(payload)
    if not torch.equal(given, v):
        raise MethodFailure("encode must not change the vector that it is given")
    if not single and any(t.dim() == 0 or len(t) != 2 for t in tensors(payload)):
        raise MethodFailure("encode must return tensors with a row for every client")
    return codec.decode(payload, like)
