"""Files of data sets: where they are searched, how they are checked, downloaded and read.

A file of data set d is searched in $UNDRIFT_DATA/d, in $UNDRIFT_DATA and in the user's cache, in this order; if it is in
none of them and has a URL it is downloaded to the cache, unless $UNDRIFT_OFFLINE is set.  Nothing is ever loaded with
pickle.
"""

import gzip
import hashlib
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from undrift.core.bounds import check_file, check_memory
from undrift.core.errors import InvalidInput

TIMEOUT = 60.0  # seconds without an answer
GZIP = b"\x1f\x8b"
UNPACKED_AT_LEAST, UNPACKED_TIMES = 2**26, 100  # bytes that any archive may unpack to, and as a multiple of its own

# tests replace it: takes (url, timeout=...) and returns a stream
open_url: Callable[..., Any] = urlopen


class DataMissing(InvalidInput):
    """A file that is nowhere on this machine and could not be downloaded."""


def folders(dataset: str) -> tuple[Path, ...]:
    """Where the files of a data set are searched, first to last; downloads go to the last one.

    >>> folders("mnist")[-1].parts[-2:]
    ('undrift', 'mnist')
    """
    root = os.environ.get("UNDRIFT_DATA", "")
    configured = (Path(root).expanduser() / dataset, Path(root).expanduser()) if root else ()
    return (*configured, _user_cache() / "undrift" / dataset)


def locate(dataset: str, names: Iterable[str]) -> Path | None:
    """The first of these files that is there, or None.  A name may have sub-folders."""
    paths = (folder / name for name in names for folder in folders(dataset))
    return next((path for path in paths if path.is_file()), None)


def locate_folder(dataset: str, names: Iterable[str]) -> Path | None:
    """The first of these sub-folders of the data set's own folders that is there, or None.

    $UNDRIFT_DATA itself is left out: its `train` may belong to anything.
    """
    own = [folder for folder in folders(dataset) if folder.name == dataset]
    paths = (folder / name for name in names for folder in own)
    return next((path for path in paths if path.is_dir()), None)


def find(
    dataset: str,
    file: str,
    *,
    known_hash: str | None = None,
    url: str | None = None,
    aliases: Sequence[str] = (),
    hint: str = "",
) -> Path:
    """A file of a data set, checked; downloaded if it is not there and has a URL.

    known_hash   the published checksum, "md5:..." or "sha256:..."
    url          of the file, or of its folder with / at the end
    aliases      other names that the file may have, searched after `file`; {} is its name, as in "MNIST/raw/{}"
    hint         where else to get the file or how to make it, for the error message
    """
    path = locate(dataset, (file, *(alias.format(file) for alias in aliases)))
    if path is not None:
        verify_checksum(path, known_hash)
        return path
    if url is None:
        raise _missing(dataset, file, known_hash, hint)
    url = url + file if url.endswith("/") else url
    target = folders(dataset)[-1] / file
    try:
        if os.environ.get("UNDRIFT_OFFLINE"):
            raise OSError("UNDRIFT_OFFLINE is set")
        _download(url, target, known_hash)
    except (OSError, HTTPException) as error:
        failure = f"its home is {url}, where getting it failed ({error})"
        hint = f"{failure}; {hint}" if hint else failure
        raise _missing(dataset, file, known_hash, hint) from error
    return target


def verify_checksum(path: Path, known_hash: str | None) -> None:
    """Raise InvalidInput unless the file has the checksum that was published, if one was."""
    if known_hash is None:
        return
    algorithm, _, expected = known_hash.partition(":")
    if (got := checksum(path, algorithm)) != expected:
        raise InvalidInput(
            f"{path}: its {algorithm} is {got}, the published file's is {expected}: "
            "the file is damaged or another one; delete it and get it again"
        )


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def checksums(paths: Sequence[Path]) -> dict[str, str]:
    """File name -> sha256, for `Data.checksums`; with the folder in the name where two files have the same."""
    unique = len({path.name for path in paths}) == len(paths)
    return {path.name if unique else f"{path.parent.name}/{path.name}": checksum(path) for path in paths}


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip (whatever its name)."""
    check_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error}): give a file that can") from error
    if not content.startswith(GZIP):
        return content
    try:
        parts, size = [], 0
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            while part := file.read(2**20):
                parts.append(part)
                size += len(part)
                check_unpacked(path, size)
        return b"".join(parts)
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, error) from error


def check_unpacked(path: Path, size: int) -> None:
    """Raise InvalidInput if an archive unpacks to far more than data do: one made to fill the memory."""
    most = UNPACKED_AT_LEAST + UNPACKED_TIMES * path.stat().st_size
    if size > most:
        raise InvalidInput(
            f"{path} has {path.stat().st_size:,} bytes and unpacks to more than {most:,}, which data do not: "
            "get it again; if you trust it, unpack it yourself"
        )
    check_memory(f"{path}, unpacked,", size, "take a machine with more")


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file, unpacked if it is gzip."""
    try:
        return read_bytes(path).decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not {encoding} text ({error}): get it again") from error


def damaged(path: Path, error: object) -> InvalidInput:
    """The error for an archive that cannot be unpacked."""
    return InvalidInput(f"{path} is truncated or damaged ({error}): delete it and get it again")


def _user_cache() -> Path:
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _download(url: str, target: Path, known_hash: str | None) -> None:
    """To a temporary file, checked, then renamed: a file under its own name is always whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")  # others may download too
    try:
        with partial.open("xb") as file, open_url(url, timeout=TIMEOUT) as answer:
            shutil.copyfileobj(answer, file)
            promised = answer.headers.get("Content-Length")
        if promised is not None and partial.stat().st_size != int(promised):
            raise OSError(f"{partial.stat().st_size} of {promised} bytes arrived")
        try:
            verify_checksum(partial, known_hash)
        except InvalidInput as error:  # the temporary name means nothing to the user
            raise InvalidInput(str(error).replace(str(partial), f"{url} (nothing kept)")) from None
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _missing(dataset: str, file: str, known_hash: str | None, hint: str) -> DataMissing:
    published = f" ({known_hash.replace(':', ' ')})" if known_hash else ""
    searched = ", ".join(map(str, folders(dataset)))
    configure = "" if os.environ.get("UNDRIFT_DATA") else ", or set UNDRIFT_DATA to a folder that has it"
    return DataMissing(
        f"{dataset}: the file {file}{published} is not on this machine; {hint or 'it has no home on the web'}. "
        f"Looked in {searched}: put it in one of them{configure}"
    )
