"""What the server looks at before an answer gets into a sum."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from undrift.core.algorithm import Recounts
from undrift.core.errors import InvalidInput
from undrift.core.hyper import spec_of
from undrift.core.records import rebuild
from undrift.deploy.messages import Envelope, pack_tensors


class BadAnswer(Exception):
    """Why an answer must not be used."""


def read_answer(
    reply: Envelope, kind: str, visit: Mapping[str, Any], form: Any, bound: float
) -> Any:
    """The record in an answer that is of the right kind, answers the visit that was asked for and has the form of `form`
    in every vector, finite and within the bound (0: none); otherwise BadAnswer.

    >>> up = Envelope("up", {"visit": {"round": 2}}, {"up.0": torch.tensor([torch.nan])})
    >>> read_answer(up, "up", {"round": 2}, (torch.zeros(1),), bound=0)
    Traceback (most recent call last):
    undrift.deploy.checks.BadAnswer: up.0 has NaN or Inf in it
    """
    if reply.kind == "failed":
        raise BadAnswer(f"failed: {reply.header.get('reason', 'no reason given')}")
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
    arrays = [reply.arrays[name] for name in expected]
    norm = float(torch.stack([t.double().norm() for t in arrays]).norm()) if arrays else 0.0
    if bound and norm > bound:
        raise BadAnswer(f"sent vectors of norm {norm:.3g}, more than {bound:g}")
    return rebuild(form, iter(arrays))


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
            return f"answers {word} {claimed.get(word)}, not {word} {visit.get(word)}"
    return "answers another request"


def check_method(method: Any) -> None:
    """Refuse a method whose clients could not come back after losing their state."""
    spec = spec_of(method)
    if spec.adds_states and not isinstance(method, Recounts):
        raise InvalidInput(
            f"{spec.name} adds up clients' states, so on nodes, which may lose theirs, it needs a function "
            "recount(server, mean, cohort): the server with its sum recomputed from the mean of states"
        )
