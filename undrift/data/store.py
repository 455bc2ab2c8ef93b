"""Files of data sets: where they are looked for, how they are checked, and how they get here.

A file of data set d is looked for in $UNDRIFT_DATA/d, in $UNDRIFT_DATA and in the user's cache, in this order; if it is in
none of them and has a home on the web it is downloaded to the cache, unless $UNDRIFT_OFFLINE is set.  Nothing is ever
loaded with pickle.
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
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from undrift.core.errors import InvalidInput

TIMEOUT = 60.0  # seconds without an answer
GZIP = b"\x1f\x8b"

# tests put their own here: whatever takes (url, timeout=...) and gives a stream
opener: Callable[..., Any] = urlopen


class DataMissing(InvalidInput):
    """A file that is nowhere on this machine and could not be downloaded."""


def folders(dataset: str) -> tuple[Path, ...]:
    """Where the files of a data set are looked for, first to last; the last one is where downloads go.

    >>> folders("mnist")[-1].parts[-2:]
    ('undrift', 'mnist')
    """
    given = os.environ.get("UNDRIFT_DATA", "")
    root = Path(given).expanduser()
    return (*((root / dataset, root) if given else ()), _user_cache() / "undrift" / dataset)


def look(dataset: str, names: Iterable[str]) -> Path | None:
    """The first of these files that is there, or None.  A name may have sub-folders."""
    places = folders(dataset)
    found = (place / name for name in names for place in places)
    return next((path for path in found if path.is_file()), None)


def look_folder(dataset: str, names: Iterable[str]) -> Path | None:
    """The first of these sub-folders of the data set's own folders that is there, or None.

    $UNDRIFT_DATA itself is left out: its `train` may belong to anything.
    """
    places = [place for place in folders(dataset) if place.name == dataset]
    found = (place / name for name in names for place in places)
    return next((path for path in found if path.is_dir()), None)


def find(
    dataset: str,
    file: str,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    url: str | None = None,
    aliases: Sequence[str] = (),
    home: str = "",
) -> Path:
    """A file of a data set, checked; downloaded if it is not there and has a URL.

    aliases   other names under which the file may lie, looked for after `file`, e.g. "MNIST/raw/labels.gz"
    home      where else to get the file or how to make it, in words, for the message
    """
    path = look(dataset, (file, *aliases))
    if path is not None:
        verify(path, sha256=sha256, md5=md5)
        return path
    if url is None:
        raise _missing(dataset, file, sha256, md5, home)
    target = folders(dataset)[-1] / file
    try:
        if os.environ.get("UNDRIFT_OFFLINE"):
            raise OSError("UNDRIFT_OFFLINE is set")
        _download(url, target, sha256=sha256, md5=md5)
    except (OSError, HTTPException) as error:
        reason = f"its home is {url}, where getting it failed ({error})"
        raise _missing(
            dataset, file, sha256, md5, f"{reason}; {home}" if home else reason
        ) from error
    return target


def verify(path: Path, *, sha256: str | None = None, md5: str | None = None) -> None:
    """Raise InvalidInput unless the file has the checksums that were published."""
    for algorithm, expected in (("sha256", sha256), ("md5", md5)):
        if expected is not None and (got := checksum(path, algorithm)) != expected:
            raise InvalidInput(
                f"{path}: its {algorithm} is {got}, the published file's is {expected}: "
                "the file is damaged or another one; delete it and get it again"
            )


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def checksums(paths: Iterable[Path]) -> dict[str, str]:
    """File name -> sha256, what `Data.checksums` holds."""
    return {path.name: checksum(path) for path in paths}


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip (whatever its name)."""
    return unpacked(_read(path), path)


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file, unpacked if it is gzip."""
    try:
        return read_bytes(path).decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not {encoding} text ({error}): get it again") from error


def unpacked(content: bytes, path: Path) -> bytes:
    """Bytes as they were before gzip, if they are gzip."""
    if not content.startswith(GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: object) -> InvalidInput:
    """The error for an archive that cannot be unpacked."""
    return InvalidInput(f"{path} is truncated or damaged ({error}): delete it and get it again")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error}): give a file that can") from error


def _user_cache() -> Path:
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if given else Path.home() / ".cache"


def _download(url: str, target: Path, *, sha256: str | None, md5: str | None) -> None:
    """Write aside, check, rename: a file under its own name is always whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")  # others may be at it too
    try:
        with aside.open("xb") as file, opener(url, timeout=TIMEOUT) as answer:
            shutil.copyfileobj(answer, file)
            promised = answer.headers.get("Content-Length")
        if promised is not None and aside.stat().st_size != int(promised):
            raise OSError(f"{aside.stat().st_size} of {promised} bytes arrived")
        try:
            verify(aside, sha256=sha256, md5=md5)
        except InvalidInput as error:  # the name aside means nothing to the user
            raise InvalidInput(str(error).replace(str(aside), f"{url} (nothing kept)")) from None
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def _missing(
    dataset: str, file: str, sha256: str | None, md5: str | None, home: str
) -> DataMissing:
    known = [f"{name} {value}" for name, value in (("sha256", sha256), ("md5", md5)) if value]
    what = f"{dataset}: the file {file}{f' ({known[0]})' if known else ''} is not on this machine"
    places = ", ".join(str(place) for place in folders(dataset))
    to_set = (
        "" if os.environ.get("UNDRIFT_DATA") else ", or set UNDRIFT_DATA to a folder that has it"
    )
    return DataMissing(
        f"{what}; {home or 'it has no home on the web'}. Looked in {places}: put it in one of them{to_set}"
    )
