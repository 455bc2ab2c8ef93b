"""What the server looks at before an answer gets into a sum."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.records import rebuild
from undrift.deploy.messages import Parcel, packed


class Bad(Exception):
    """An answer that must not be used; the message says why."""


def read_answer(reply: Parcel, kind: str, visit: Mapping[str, Any], form: Any, bound: float) -> Any:
    """The record in an answer that is of the right kind, answers the visit that was asked for and has the form of `form`
    in every vector, finite and within the bound (0: none); otherwise Bad.

    >>> up = Parcel("up", {"visit": {"round": 2}}, {"up.0": torch.tensor([torch.nan])})
    >>> read_answer(up, "up", {"round": 2}, (torch.zeros(1),), bound=0)
    Traceback (most recent call last):
    undrift.deploy.checks.Bad: up.0 has NaN or Inf in it
    """
    if reply.kind == "failed":
        raise Bad(f"failed: {reply.words.get('reason', 'no reason given')}")
    if reply.kind != kind:
        raise Bad(f"answered with a message of kind {reply.kind!r}, not {kind!r}")
    claimed = reply.words.get("visit")
    if claimed != visit:
        raise Bad(_other_visit(claimed, visit))
    _, expected = packed("up" if kind == "up" else "state", form)
    if set(reply.arrays) != set(expected):
        raise Bad(f"sent {sorted(reply.arrays)}, not {sorted(expected)}")
    for name, like in expected.items():
        _check_array(name, reply.arrays[name], like)
    arrays = [reply.arrays[name] for name in expected]
    norm = float(torch.stack([t.double().norm() for t in arrays]).norm()) if arrays else 0.0
    if bound and norm > bound:
        raise Bad(f"sent vectors of norm {norm:.3g}, more than {bound:g}")
    return rebuild(form, iter(arrays))


def _check_array(name: str, got: Tensor, like: Tensor) -> None:
    if got.shape != like.shape:
        raise Bad(f"{name} has shape {list(got.shape)}, not {list(like.shape)}")
    if got.dtype != like.dtype:
        raise Bad(f"{name} is {got.dtype}, not {like.dtype}")
    if not bool(got.isfinite().all()):
        raise Bad(f"{name} has NaN or Inf in it")


def _other_visit(claimed: Any, visit: Mapping[str, Any]) -> str:
    if not isinstance(claimed, Mapping):
        return "does not say which request it answers"
    for word in ("run", "round", "exchange", "client", "base"):
        if claimed.get(word) != visit.get(word):
            return f"answers {word} {claimed.get(word)}, not {word} {visit.get(word)}"
    return "answers another request"


def check_kind_of_method(method: Any) -> None:
    """Refuse a method whose clients could not come back after losing what they remember."""
    spec = getattr(method, "spec", None)
    if spec is not None and spec.adds_states and not hasattr(method, "recount"):
        raise InvalidInput(
            f"{spec.name} adds up clients' states, so on nodes, which may lose theirs, it needs a function "
            "recount(server, mean, cohort): the server with its sum made anew from the mean of states"
        )
