"""Where files are looked for, downloads, checksums."""

import gzip
import hashlib
import io
import sys
from pathlib import Path

import pytest

from tests.support.data_files import write
from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.registry import DATASETS, load


class Answer(io.BytesIO):
    def __init__(self, content: bytes, promised: int | None = None):
        super().__init__(content)
        self.headers = {} if promised is None else {"Content-Length": str(promised)}


def served(monkeypatch: pytest.MonkeyPatch, content: bytes, promised: int | None = None) -> list[str]:
    asked: list[str] = []

    def give(url: str, timeout: float) -> Answer:
        asked.append(url)
        return Answer(content, promised)

    monkeypatch.setattr(store, "open_url", give)
    return asked


def test_a_file_is_looked_for_in_order(home: Path, tmp_path: Path) -> None:
    cached = write(tmp_path / "cache" / "undrift" / "set" / "f.txt", "cache")
    assert store.find("set", "f.txt") == cached
    root = write(home / "f.txt", "root")
    assert store.find("set", "f.txt") == root
    own = write(home / "set" / "f.txt", "own")
    assert store.find("set", "f.txt") == own
    alias = write(home / "tabular" / "g.txt", "alias")
    assert store.find("set", "f.txt", aliases=["tabular/g.txt"]) == own
    assert store.find("set", "h.txt", aliases=["tabular/g.txt"]) == alias
    (home / "h.txt").mkdir()  # a folder is not the file
    assert store.find("set", "h.txt", aliases=["tabular/g.txt"]) == alias


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UNDRIFT_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert store.folders("a") == (tmp_path / ".cache" / "undrift" / "a",)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert store.folders("a") == (tmp_path / "local" / "undrift" / "a",)


def test_a_wrong_checksum_names_file_and_both(home: Path) -> None:
    path = write(home / "f.txt", "hello")
    md5, sha256 = hashlib.md5(b"hello").hexdigest(), hashlib.sha256(b"hello").hexdigest()
    for known in (f"md5:{md5}", f"sha256:{sha256}"):
        assert store.find("set", "f.txt", known_hash=known) == path
    with pytest.raises(InvalidInput, match=f"f.txt: its md5 is {md5}, .* is 0000: .*delete it"):
        store.find("set", "f.txt", known_hash="md5:0000")
    with pytest.raises(InvalidInput, match=f"its sha256 is {sha256}, .* is 0000"):
        store.find("set", "f.txt", known_hash="sha256:0000")


def test_download(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = served(monkeypatch, b"hello", promised=5)
    known_hash = f"md5:{hashlib.md5(b'hello').hexdigest()}"
    path = tmp_path / "cache" / "undrift" / "set" / "f.txt"
    for _ in range(2):  # the second time it is there
        assert store.find("set", "f.txt", url="https://example.org/f.txt", known_hash=known_hash) == path
        assert path.read_bytes() == b"hello"
    assert asked == ["https://example.org/f.txt"]
    assert [p.name for p in path.parent.iterdir()] == ["f.txt"]


def test_a_bad_download_leaves_nothing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "undrift" / "set"
    served(monkeypatch, b"hell")
    with pytest.raises(InvalidInput, match="https://example.org/f .*its md5 is .* is 5d41402a"):
        known_hash = "md5:5d41402abc4b2a76b9719d911017c592"
        store.find("set", "f", url="https://example.org/f", known_hash=known_hash)
    assert list(cache.iterdir()) == []
    served(monkeypatch, b"hell", promised=5)
    with pytest.raises(store.DataMissing, match="4 of 5 bytes arrived"):
        store.find("set", "f", url="https://example.org/f")
    assert list(cache.iterdir()) == []


def test_what_is_missing_is_named(home: Path, tmp_path: Path) -> None:
    with pytest.raises(store.DataMissing) as caught:
        store.find("set", "f.gz", known_hash="md5:5d41", url="https://example.org/f.gz")
    for part in ("f.gz", "md5 5d41", "https://example.org/f.gz", "no network in tests"):
        assert part in str(caught.value)
    for folder in (home / "set", home, tmp_path / "cache" / "undrift" / "set"):
        assert str(folder) in str(caught.value)
    with pytest.raises(store.DataMissing, match="bake it"):
        store.find("set", "f.gz", hint="bake it")
    for name in set(DATASETS) - {"digits", "synthetic"}:
        with pytest.raises(store.DataMissing, match=str(home)):
            load(name)


def test_gzip_gone_wrong(home: Path) -> None:
    whole = gzip.compress(b"abc" * 1000)
    assert store.read_bytes(write(home / "f", whole)) == b"abc" * 1000
    for wrong in (whole[:-12], whole[:20] + b"\0" * 20, whole[:-8] + b"\1" * 8):
        path = write(home / "f", wrong)
        with pytest.raises(InvalidInput, match="f is truncated or damaged .* get it again"):
            store.read_bytes(path)
    with pytest.raises(InvalidInput, match="not utf-8 text"):
        store.read_text(write(home / "f", b"\xff\xfe\xfd"))
    with pytest.raises(InvalidInput, match="nowhere cannot be read"):
        store.read_bytes(home / "nowhere")


def test_an_archive_made_to_fill_the_memory_is_refused(home: Path) -> None:
    packed = gzip.compress(bytes(2**27 + 2**26), 9)
    assert len(packed) < 2**18
    with pytest.raises(InvalidInput, match=r"unpacks to more than .*, which data do not"):
        store.read_bytes(write(home / "bomb.gz", packed))


def test_a_device_is_no_file(home: Path) -> None:
    with pytest.raises(InvalidInput, match="it is no file"):
        store.read_bytes(Path("/dev/zero"))
