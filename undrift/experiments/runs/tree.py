"""Records as tensors and JSON, and back: no code is ever stored."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def taken_apart(tree: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """The shape of a record as JSON; its tensors go into `tensors`, under names that begin with `name`.

    >>> import torch
    >>> found = {}
    >>> taken_apart((torch.zeros(2), None, 3), found, "server"), list(found)
    ({'tuple': [{'tensor': 'server.0'}, {'value': None}, {'value': 3}]}, ['server.0'])
    """
    if isinstance(tree, Tensor):
        tensors[name] = tree
        return {"tensor": name}
    if is_dataclass(tree) and not isinstance(tree, type):
        parts = {
            f.name: taken_apart(getattr(tree, f.name), tensors, f"{name}.{f.name}")
            for f in fields(tree)
        }
        return {"record": type(tree).__qualname__, "fields": parts}
    if isinstance(tree, tuple):
        parts = [taken_apart(part, tensors, f"{name}.{i}") for i, part in enumerate(tree)]
        return {"tuple": parts}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return {"value": tree}
    raise TypeError(
        f"{name}: a state holds records, tuples, tensors and plain values, got {type(tree)}"
    )


def put_together(shape: Any, tensors: Mapping[str, Tensor], kinds: Mapping[str, type]) -> Any:
    """The record of a shape; `kinds` are the classes it may be made of, by name."""
    if "tensor" in shape:
        return tensors[shape["tensor"]]
    if "record" in shape:
        parts = {name: put_together(part, tensors, kinds) for name, part in shape["fields"].items()}
        return kinds[shape["record"]](**parts)
    if "tuple" in shape:
        return tuple(put_together(part, tensors, kinds) for part in shape["tuple"])
    return shape["value"]


def kinds_of(trees: Iterable[Any]) -> dict[str, type]:
    """The classes of records in some trees, by name."""
    found: dict[str, type] = {}
    for tree in trees:
        if is_dataclass(tree) and not isinstance(tree, type):
            found[type(tree).__qualname__] = type(tree)
            found |= kinds_of(getattr(tree, f.name) for f in fields(tree))
        elif isinstance(tree, tuple):
            found |= kinds_of(tree)
    return found
