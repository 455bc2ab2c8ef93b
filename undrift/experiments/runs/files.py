"""Files that are whole or not there, that know when they are damaged, and lines that are counted.

JSON files carry a checksum of what is in them.  A file of lines has a copy beside it, `.NAME.copy`, whose lines begin with
their checksums: where the two differ, it is known which of them is damaged.
"""

import errno
import json
import logging
import math
import mmap
import os
import socket
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from undrift.core.errors import InvalidInput

log = logging.getLogger("undrift")

OWNER_ONLY, AS_USUAL = 0o600, 0o666  # what holds a model or a state, and what the umask says


class Damaged(InvalidInput):
    """A file that is not what was written."""


def write_aside(path: Path, content: bytes | memoryview, mode: int = AS_USUAL, copy: bool = False) -> None:
    """Write a file that is whole or not there; before it its copy, if it has one."""
    for place in (copy_of(path), path) if copy else (path,):
        with _aside(place, mode) as number, os.fdopen(number, "wb", closefd=False) as file:
            file.write(content)


def copy_of(path: Path) -> Path:
    """Where the copy of a file is."""
    return path.with_name(f".{path.name}.copy")


@contextmanager
def _aside(path: Path, mode: int, flags: int = 0) -> Iterator[int]:
    """A new file beside the place; when it is written, make sure of it and rename it."""
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.unlink(missing_ok=True)  # what was left under its name goes first, so that no link is followed
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, mode)
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):  # a directory of that name is not ours; the first error is the one to tell
            aside.unlink(missing_ok=True)
        raise


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
        return {name: self._view(start + at, dtype, shape) for name, (at, dtype, shape) in places.items()}

    def fill(self, content: Mapping[str, Tensor]) -> None:
        """Take these tensors in."""
        room = self.lay_out({name: (t.dtype, tuple(t.shape)) for name, t in content.items()})
        for name, t in content.items():
            room[name].copy_(t)

    @property
    def content(self) -> memoryview:
        """The file, until the next one is laid out."""
        return memoryview(self._memory)[: self._size]

    def write(self, *paths: Path) -> tuple[int, int]:
        """Write the file aside and rename it, once for every path; returns its size and checksum."""
        for path in paths:
            if "O_DIRECT" not in vars(os) or not self._write_directly(path):
                write_aside(path, self.content, OWNER_ONLY)
        return self._size, zlib.crc32(self.content)

    def _view(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=at).view(shape)

    def _write_directly(self, path: Path) -> bool:
        """Write whole blocks past the cache; False where the file system cannot."""
        blocks, done = memoryview(self._memory)[: -(-self._size // BLOCK) * BLOCK], 0
        try:
            with _aside(path, OWNER_ONLY, os.O_DIRECT) as file:
                while done < len(blocks):
                    done += os.write(file, blocks[done:])
                os.ftruncate(file, self._size)
        except OSError as error:
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
    with path.open("r+b") as file:  # not every system syncs what is open for reading only
        os.fsync(file.fileno())


def synced_names(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk, where the system can."""
    with suppress(PermissionError):  # Windows opens no folders
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


CHECK, FORMAT = "crc32", "format"  # of a JSON object: a checksum of the rest, and that there is one


def write_json(path: Path, content: Any, copy: bool = False) -> None:
    """A JSON file for people and programs; an object knows its checksum, and may have a copy."""
    if isinstance(content, dict):
        rest = {FORMAT: 1} | {name: value for name, value in content.items() if name != CHECK}
        content = {**rest, CHECK: checksum_of(rest)}
    write_aside(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(), copy=copy)


def read_json(path: Path) -> Any:
    """The content of a JSON file; raises Damaged with the reason if it is not what was written."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read ({error})") from error
    if isinstance(content, dict) and (FORMAT in content or CHECK in content):  # neither: written before there were any
        if content.pop(CHECK, None) != checksum_of(content):
            raise Damaged(f"{path} is damaged: its checksum is not what was written")
        content.pop(FORMAT, None)
    return content


def read_json_or_copy(path: Path) -> Any:
    """The same of a file that has a copy, which is used, with a warning, if the file is damaged."""
    try:
        return read_json(path)
    except Damaged as error:
        try:
            content = read_json(copy_of(path))
        except InvalidInput:
            raise error from None
        log.warning("%s; its copy is used", error)
        return content


CHECKSUMS = ".checksums.json"  # of files in its folder that have no room for one: TOML, CSV


def write_marked(folder: Path, files: Mapping[str, bytes], copies: bool = False) -> None:
    """Write files whose checksums are kept beside them, under a name each; with a copy each, if they cannot be made again.

    What they are is written down first, beside what they were: stopped at any moment, one of the two is right.
    """
    marks, new = marks_in(folder), {name: mark_of_bytes(content) for name, content in files.items()}
    changed = {
        name: [*marks.get(name, [])[-1:], mark] for name, mark in new.items() if mark not in marks.get(name, [])[-1:]
    }
    if changed or not _sound(folder / CHECKSUMS):
        write_json(folder / CHECKSUMS, {"files": {**marks, **changed}}, copy=True)
    for name, content in files.items():
        path = folder / name
        for place in (copy_of(path), path) if copies else (path,):
            if not place.is_file() or place.read_bytes() != content:
                write_aside(place, content)


def _sound(path: Path) -> bool:
    """Whether a JSON file and its copy are what was written."""
    try:
        return read_json(path) == read_json(copy_of(path))
    except Damaged:
        return False


def marks_in(folder: Path) -> dict[str, list[dict[str, int]]]:
    """What is known of files whose checksums are kept beside them: what each is, perhaps after what it was before."""
    path = folder / CHECKSUMS
    try:
        return read_json_or_copy(path)["files"] if path.exists() or copy_of(path).exists() else {}
    except Damaged as error:
        log.warning("%s: what it was of is taken as it is", error)
        return {}


def is_as_written(path: Path) -> bool:
    """Whether a file is what was written, so far as its checksum is kept beside it."""
    marks = marks_in(path.parent).get(path.name)
    return marks is None or (path.is_file() and mark_of(path) in marks)


def read_marked(path: Path) -> bytes:
    """A file whose checksum is kept beside it, or with a warning its copy; Damaged if neither is what was written."""
    marks = marks_in(path.parent).get(path.name)
    for place in (path, copy_of(path)):
        content = place.read_bytes() if place.is_file() else None
        if content is not None and (marks is None or mark_of_bytes(content) in marks):
            if place != path:
                log.warning("%s is damaged or was changed: its copy is used", path)
            return content
    raise Damaged(f"{path} is damaged or was changed, and so is its copy")


def checksum_of(content: Mapping[str, Any]) -> int:
    """Of an object, however it is laid out in a file."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def plain(value: float) -> float | None:
    """A number as JSON has it: None for what is not finite."""
    return value if math.isfinite(value) else None


def json_line(line: Mapping[str, Any]) -> bytes:
    """An object as a line."""
    return (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()


class Lines:
    """A file of JSON lines that knows how much of it has been written, so that it can be cut back to there."""

    def __init__(self, path: Path, size: int = 0, crc: int = 0, copy: bool = False):
        self.path, self.size, self.crc = path, size, crc
        path.touch()
        if copy:  # before the file is cut: until then it has all that the copy has
            write_aside(copy_of(path), b"".join(map(_with_check, whole_lines(path, size))))
        os.truncate(path, size)
        self._file = path.open("ab", buffering=0)
        self._copy = copy_of(path).open("ab", buffering=0) if copy else None

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line, at once."""
        content = json_line(line)
        for file, data in ((self._file, content), (self._copy, _with_check(content))):
            if file is not None and file.write(data) != len(data):  # the disk is full, or nearly
                raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        self.size, self.crc = self.size + len(content), zlib.crc32(content, self.crc)

    def mark(self) -> dict[str, int]:
        """How much is there, and what it is."""
        return {"bytes": self.size, "crc32": self.crc}

    def close(self) -> None:
        self._file.close()
        if self._copy is not None:
            self._copy.close()


def whole_lines(path: Path, size: int = -1) -> list[bytes]:
    """The lines in the first bytes of a file, without one that was being written; none if there is no file."""
    try:
        with path.open("rb") as file:
            return [line + b"\n" for line in file.read(size).split(b"\n")[:-1]]
    except OSError:
        return []


def _with_check(line: bytes) -> bytes:
    return b"%08x %s" % (zlib.crc32(line), line)


def copied_lines(path: Path) -> list[bytes] | None:
    """The lines of a file as its copy has them; None if there is none that is sound."""
    if not copy_of(path).is_file():
        return None
    whole = whole_lines(copy_of(path))
    lines = [line[9:] for line in whole]
    return lines if all(_with_check(line) == each for line, each in zip(lines, whole, strict=True)) else None


def with_checksum(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line that knows when it is damaged."""
    return {**line, CHECK: checksum_of(line)}


def checked_lines(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The lines that are as they were written, whatever became of those between them; the numbers of the others."""
    sound: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, text in enumerate(whole_lines(path), 1):
        try:
            line = json.loads(text)
            if line.pop(CHECK) != checksum_of(line):
                raise ValueError("damaged")
            sound.append(line)
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            damaged.append(number)
    return sound, damaged


def rewritten(path: Path, lines: Iterable[Mapping[str, Any]]) -> Lines:
    """A file with these lines, each with a checksum, and no others, to be continued."""
    content = b"".join(json_line(with_checksum(line)) for line in lines)
    write_aside(path, content)
    return Lines(path, len(content), zlib.crc32(content))


def marked(path: Path, mark: Mapping[str, int]) -> bytes | None:
    """What was marked of a file, from itself or, with a warning, from its copy; None if neither has it."""
    if holds(path, mark):
        return path.read_bytes()[: mark["bytes"]]
    content = b"".join(copied_lines(path) or ())[: mark["bytes"]]
    if mark_of_bytes(content) != mark:
        return None
    log.warning("%s is damaged: its copy is used", path)
    return content


def mark_of_bytes(content: bytes) -> dict[str, int]:
    """What is known of a file with this content."""
    return {"bytes": len(content), "crc32": zlib.crc32(content)}


def mark_of(path: Path) -> dict[str, int]:
    """A file's size and checksum."""
    crc = size = 0
    with path.open("rb") as file:
        while part := file.read(2**24):
            size, crc = size + len(part), zlib.crc32(part, crc)
    return {"bytes": size, "crc32": crc}


def holds(path: Path, mark: Mapping[str, int]) -> bool:
    """Whether a file begins with what was marked."""
    try:
        with path.open("rb") as file:
            return mark_of_bytes(file.read(mark["bytes"])) == mark
    except OSError:
        return False


def read_checked(path: Path, mark: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """The lines of a file that has a copy, and that was marked when it was finished; Damaged if neither can be trusted."""
    if mark:
        content = marked(path, mark)
        if content is None:
            raise Damaged(f"{path} is damaged, and so is its copy: `undrift verify {path.parent}` says what is sound")
        lines = content.splitlines()
    else:
        copied = copied_lines(path) or []  # first: the file itself is never behind
        lines = whole_lines(path)
        if lines[: len(copied)] != copied:
            log.warning("%s is damaged: its copy is used", path)
            lines = [*copied, *lines[len(copied) :]]
    try:
        return [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: a line is not JSON ({error})") from error


def lock(directory: Path) -> FileLock:
    """Hold a run directory for this process alone; the system lets go of it however the process ends."""
    path = directory / ".lock"
    if path.exists() and not stat.S_ISREG(path.lstat().st_mode):
        raise InvalidInput(f"{path} is not a file, so {directory} cannot be locked: remove it")
    held = FileLock(path)
    try:
        held.acquire(timeout=1)  # a process that was just killed may take a moment to be gone
    except Timeout:
        raise InvalidInput(f"{directory} is in use by {_holder(path)}") from None
    with suppress(OSError), path.open("r+") as file:  # who it is, for others to tell
        file.truncate()
        file.write(f"{os.getpid()}\n{socket.gethostname()}\n")
    return held


def _holder(path: Path) -> str:
    """Who holds a lock, and what to do about it."""
    try:
        pid, host = path.read_text(encoding="utf-8", errors="replace").split()[:2]
        number = int(pid)
    except (OSError, ValueError):
        return "another process: wait for it, or stop it first"
    if host != socket.gethostname():
        return f"process {number} on {host}: wait for it, or stop it there first; if it is gone, remove {path}"
    if psutil.pid_exists(number):
        return f"another process, {number}: wait for it, or stop it first"
    return f"another process: the one that began, {number}, is gone; what it started may still run, else remove {path}"


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
