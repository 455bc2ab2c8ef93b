"""Files in the layouts of data sets, and data compared."""

import struct
from pathlib import Path

import numpy as np
import torch

from undrift.data.registry import Data


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def idx(array: np.ndarray) -> bytes:
    kind = {np.dtype("u1"): 8, np.dtype("i4"): 12}[array.dtype]
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def same(a: Data, b: Data) -> bool:
    def tensors(d: Data) -> list[torch.Tensor | None]:
        return [*d.train, *(d.test or ()), d.clients, d.test_clients]

    pairs = zip(tensors(a), tensors(b), strict=True)
    return (a.client_names, a.checksums) == (b.client_names, b.checksums) and all(
        x is y if x is None or y is None else torch.equal(x, y) for x, y in pairs
    )
