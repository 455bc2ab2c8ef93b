"""Records as tensors and JSON, and back: no code is ever stored."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from undrift.core.records import children


def to_json(tree: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """The structure of a record as JSON; its tensors go into `tensors`, under names that begin with `name`.

    >>> import torch
    >>> found = {}
    >>> to_json((torch.zeros(2), None, 3), found, "server"), list(found)
    ({'tuple': [{'tensor': 'server.0'}, {'value': None}, {'value': 3}]}, ['server.0'])
    """
    if isinstance(tree, Tensor):
        tensors[name] = tree
        return {"tensor": name}
    inside = children(tree)
    if inside is not None:
        parts = {key: to_json(part, tensors, f"{name}.{key}") for key, part in inside.items()}
        if isinstance(tree, tuple):
            return {"tuple": list(parts.values())}
        return {"record": type(tree).__qualname__, "fields": parts}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return {"value": tree}
    raise TypeError(f"{name}: a state holds records, tuples, tensors and plain values, got {type(tree)}")


def from_json(structure: Any, tensors: Mapping[str, Tensor], classes: Mapping[str, type]) -> Any:
    """The record of a structure; `classes` are those that it may be made of, by name."""
    if "tensor" in structure:
        return tensors[structure["tensor"]]
    if "record" in structure:
        parts = structure["fields"].items()
        inside = {name: from_json(part, tensors, classes) for name, part in parts}
        return classes[structure["record"]](**inside)
    if "tuple" in structure:
        return tuple(from_json(part, tensors, classes) for part in structure["tuple"])
    return structure["value"]


def classes_in(trees: Iterable[Any]) -> dict[str, type]:
    """The classes of the records in some trees, by name."""
    found: dict[str, type] = {}
    for tree in trees:
        inside = children(tree)
        if inside is not None:
            if not isinstance(tree, tuple):
                found[type(tree).__qualname__] = type(tree)
            found |= classes_in(inside.values())
    return found
