"""Samples as trees: one tensor, or dicts, tuples and lists of tensors, whose first dimension counts the samples."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # what vmap and grad know trees by

Tree: TypeAlias = Any


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in its order.

    >>> leaves({"a": torch.zeros(1), "b": (torch.ones(1),)})
    [tensor([0.]), tensor([1.])]
    """
    return [tree] if isinstance(tree, Tensor) else tree_flatten(tree)[0]


def map_tree(f: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """The same tree with f applied to every tensor."""
    return f(tree) if isinstance(tree, Tensor) else tree_map(f, tree)


def take(tree: Tree, which: Any) -> Tree:
    """Some of the samples.

    >>> take({"a": torch.arange(4), "b": torch.arange(8).view(4, 2)}, [3])
    {'a': tensor([3]), 'b': tensor([[6, 7]])}
    """
    return map_tree(lambda t: t[which], tree)


def sample_count(tree: Tree) -> int:
    """How many samples there are."""
    return len(leaves(tree)[0])


def concatenate(trees: Sequence[Tree]) -> Tree:
    """The samples of several trees of one structure, one after another.

    >>> concatenate([(torch.tensor([1]),), (torch.tensor([2, 3]),)])
    (tensor([1, 2, 3]),)
    """
    structures = [tree_flatten(tree)[1] for tree in trees]
    if any(structure != structures[0] for structure in structures):
        raise ValueError("their inputs or targets are not made of the same parts")
    parts = zip(*map(leaves, trees), strict=True)
    return tree_unflatten([torch.cat(part) for part in parts], structures[0])


def shapes(tree: Tree) -> Any:
    """The shape of one sample: a list, or lists in the tree's own structure.

    >>> shapes({"ids": torch.zeros(5, 7), "length": torch.zeros(5)})
    {'ids': [7], 'length': []}
    """
    return map_tree(lambda t: list(t.shape[1:]), tree)


def equal(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same, bit for bit."""
    one, other = leaves(a), leaves(b)
    return len(one) == len(other) and all(x is y or torch.equal(x, y) for x, y in zip(one, other, strict=True))
