"""What travels between processes: a pickle, and beside it the numbers of its tensors as arrays.

Ray keeps arrays in memory that all processes of a node share, so a federation's data are there once.  Pickles are for
the way only, between processes of one run that trust each other; nothing on disk is ever one.
"""

import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor

from undrift.problems.protocols import Traceable


@dataclass(frozen=True)
class Packed:
    """Something packed for another process."""

    pickled: bytes
    arrays: list[np.ndarray]


def pack_object(thing: Any, apart: Callable[[Tensor], bool] = lambda t: True) -> Packed:
    """Something, with those of its tensors apart that should be.

    >>> unpack_object(pack_object({"x": torch.ones(2), "y": (1, None)}))
    {'x': tensor([1., 1.]), 'y': (1, None)}
    """
    arrays: list[np.ndarray] = []

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if type(obj) is not Tensor or not apart(obj):
                return None
            raw = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            arrays.append(raw.numpy())  # as bytes, since numpy lacks some of torch's types
            return len(arrays) - 1, obj.dtype, tuple(obj.shape)

    file = io.BytesIO()
    Pickler(file).dump(thing)
    return Packed(file.getvalue(), arrays)


def unpack_object(content: Packed, shared: bool = False) -> Any:
    """What was packed; `shared` tensors lie in memory that other processes read too, and must not be written to."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Tensor:
            number, dtype, shape = pid
            array = content.arrays[number]
            if not array.size:
                return torch.empty(shape, dtype=dtype)
            with warnings.catch_warnings():  # torch warns of arrays that cannot be written to
                warnings.simplefilter("ignore", UserWarning)
                raw = torch.from_numpy(array if shared else array.copy())
            return raw.view(dtype).reshape(shape)

    return Unpickler(io.BytesIO(content.pickled)).load()


def pack_problem(problem: Any) -> Packed:
    """A problem whose data, which nobody writes to, are apart: `resident()` says what they are."""
    known = {id(t) for t in problem.resident()} if isinstance(problem, Traceable) else set()
    return pack_object(problem, lambda t: id(t) in known)
