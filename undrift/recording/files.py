"""Files that are whole or not there, and lines that are counted."""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from undrift.errors import InvalidInput


def write_aside(path: Path, content: bytes) -> None:
    """Write beside the place, make sure of it, rename: under its own name a file is always whole."""
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


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


def alone(tensor: Tensor) -> Tensor:
    """A tensor as a file can hold it: on the host, sharing memory with no other."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
