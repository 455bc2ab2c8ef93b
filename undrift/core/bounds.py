"""What a number may ask for: memory is counted before it is taken, and files are files."""

from pathlib import Path

import psutil

from undrift.core.errors import InvalidInput

LARGEST_SEED = 2**63 - 1


def check_memory(what: str, size: float, todo: str) -> None:
    """Raise InvalidInput if something would take more memory than is free.

    >>> check_memory("clients = 10**12", 1e18, "take fewer")
    Traceback (most recent call last):
    undrift.core.errors.InvalidInput: clients = 10**12 would take 931,322,575 GiB of memory, ... GiB are free: take fewer
    """
    free = psutil.virtual_memory().available
    if size > free:
        sizes = [f"{each / 2**30:,.0f} GiB" if each > 2**33 else f"{each / 2**30:.2f} GiB" for each in (size, free)]
        raise InvalidInput(f"{what} would take {sizes[0]} of memory, {sizes[1]} are free: {todo}")


def check_file(path: Path, most: int | None = None) -> None:
    """Raise InvalidInput unless this is a file that fits into memory, of at most so many bytes; a device is none."""
    if not path.is_file():
        found = "it is no file" if path.exists() else "it is not there"
        raise InvalidInput(f"{path} cannot be read ({found}): give a file that can")
    size = path.stat().st_size
    if most is not None and size > most:
        raise InvalidInput(f"{path} has {size:,} bytes, at most {most:,} are read: is it the right file?")
    check_memory(str(path), 2 * size, "take a smaller file, or a machine with more")
