"""Files that are whole or not there, and lines that are counted."""

import errno
import json
import math
import mmap
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from undrift.core.errors import InvalidInput


def write_aside(path: Path, content: bytes | memoryview) -> None:
    """Write beside the place, make sure of it, rename: under its own name a file is always whole."""
    aside = _beside(path)
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


Kind: TypeAlias = tuple[torch.dtype, tuple[int, ...]]  # of a tensor: its numbers and its shape

SAFETENSORS = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.bool: "BOOL",
}
BLOCK = 4096  # what a disk writes at a time


class Draft:
    """A safetensors file laid out in memory, which the next one uses again.

    Large checkpoints cost what it costs to fill fresh memory, for copies and for the system's cache of files.  So there is
    one copy, in memory that stays, and it goes from there to the disk without passing the cache, where that is possible.

    >>> from safetensors.torch import load
    >>> draft = Draft()
    >>> draft.fill({"a": torch.arange(3)})
    >>> load(draft.content.tobytes())
    {'a': tensor([0, 1, 2])}
    """

    def __init__(self) -> None:
        self._memory, self._size = _pages(BLOCK), 0

    def lay_out(self, kinds: Mapping[str, Kind]) -> dict[str, Tensor]:
        """Room for tensors of these kinds, to be filled."""
        header, places, end = {}, {}, 0
        wide_first = sorted(kinds.items(), key=lambda named: -named[1][0].itemsize)  # aligns all
        for name, (dtype, shape) in wide_first:
            begin, end = end, end + torch.Size(shape).numel() * dtype.itemsize
            entry = {"dtype": SAFETENSORS[dtype], "shape": shape, "data_offsets": (begin, end)}
            header[name], places[name] = entry, (begin, dtype, shape)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        start = 8 + len(text)
        self._size = start + end
        if self._size > len(self._memory):
            self._memory = _pages(self._size)
        self._memory[:start] = len(text).to_bytes(8, "little") + text
        return {
            name: self._view(start + at, dtype, shape)
            for name, (at, dtype, shape) in places.items()
        }

    def fill(self, content: Mapping[str, Tensor]) -> None:
        """Take these tensors in."""
        room = self.lay_out({name: (t.dtype, tuple(t.shape)) for name, t in content.items()})
        for name, t in content.items():
            room[name].copy_(t)

    @property
    def content(self) -> memoryview:
        """The file, until the next one is laid out."""
        return memoryview(self._memory)[: self._size]

    def write(self, path: Path) -> tuple[int, int]:
        """Write the file aside and rename it; returns its size and checksum."""
        if "O_DIRECT" not in vars(os) or not self._write_directly(path):
            write_aside(path, self.content)
        return self._size, zlib.crc32(self.content)

    def _view(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=at).view(shape)

    def _write_directly(self, path: Path) -> bool:
        """Write whole blocks past the cache; False where the file system cannot."""
        aside = _beside(path)
        try:
            file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
            try:
                blocks = memoryview(self._memory)[: -(-self._size // BLOCK) * BLOCK]
                done = 0
                while done < len(blocks):
                    done += os.write(file, blocks[done:])
                os.ftruncate(file, self._size)
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(aside, path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            if error.errno == errno.EINVAL:
                return False
            raise
        return True


def _pages(size: int) -> mmap.mmap:
    """Memory of this process alone, in whole blocks, as disks want it."""
    size = -(-size // BLOCK) * BLOCK
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def synced(path: Path) -> None:
    """Make sure that what was written to a file is on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_json(path: Path, content: Any) -> None:
    """A JSON file for people and programs."""
    write_aside(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; what is wrong with it is said."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read ({error})") from error


def plain(value: float) -> float | None:
    """A number as JSON has it: None for what is not finite."""
    return value if math.isfinite(value) else None


class Lines:
    """A file of JSON lines that knows how much of it has been written, so that it can be cut back to there."""

    def __init__(self, path: Path, size: int = 0, crc: int = 0):
        self.path, self.size, self.crc = path, size, crc
        path.touch()
        os.truncate(path, size)
        self._file = path.open("ab", buffering=0)

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line, at once."""
        content = (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()
        written = self._file.write(content)
        if written != len(content):  # the disk is full, or nearly
            raise OSError(28, "No space left on device", str(self.path))
        self.size, self.crc = self.size + len(content), zlib.crc32(content, self.crc)

    def mark(self) -> dict[str, int]:
        """How much is there, and what it is."""
        return {"bytes": self.size, "crc32": self.crc}

    def close(self) -> None:
        self._file.close()


def holds(path: Path, mark: Mapping[str, int]) -> bool:
    """Whether a file begins with what was marked."""
    try:
        with path.open("rb") as file:
            content = file.read(mark["bytes"])
    except OSError:
        return False
    return len(content) == mark["bytes"] and zlib.crc32(content) == mark["crc32"]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file of JSON lines; one that was being written is left out."""
    try:
        content = path.read_bytes()
    except OSError:
        return
    for line in content.split(b"\n")[:-1]:
        try:
            yield json.loads(line)
        except ValueError:
            return


def lock(directory: Path) -> FileLock:
    """Hold a run directory for this process alone; the system lets go of it however the process ends."""
    held = FileLock(directory / ".lock")
    try:
        held.acquire(timeout=1)  # a process that was just killed may take a moment to be gone
    except Timeout:
        raise InvalidInput(
            f"{directory} is in use by another process: wait for it, or stop it first"
        ) from None
    return held


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Hold a run directory for this process alone for as long as this is entered."""
    held = lock(directory)
    try:
        yield
    finally:
        held.release()


def alone(tensor: Tensor) -> Tensor:
    """A tensor as a file can hold it: on the host, sharing memory with no other."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
