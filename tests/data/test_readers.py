"""Readers of real data: the counts their sources publish, small files in the original layouts, and files gone wrong."""

import gzip
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.real_data import ROOT, real_data
from undrift.core.errors import InvalidInput
from undrift.data import datasets, registry, store
from undrift.data.datasets import cifar, federated_vision, har, mnist, shakespeare, uci
from undrift.data.registry import DATASETS, Data, load

REAL = {  # train, test, clients, classes
    "mnist": (60_000, 10_000, 0, 10),
    "fashion-mnist": (60_000, 10_000, 0, 10),
    "mnist-writers": (60_000, 10_000, 539, 10),
    "shakespeare": (3_804_033, 422_125, 1129, 80),
    "tinyshakespeare": (904_990, 100_429, 255, 65),
    "digits": (1500, 297, 0, 10),
    "hapt": (9838, 1091, 30, 12),
    "heart": (494, 246, 4, 2),
    "parkinsons": (4699, 1176, 42, None),
    "adult": (32_561, 16_281, 0, 2),
    "a9a": (32_561, 0, 0, 2),
    "w8a": (49_749, 0, 0, 2),
    "mushrooms": (8124, 0, 0, 2),
}


READ: dict[str, Data] = {}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, **_: Any) -> Any:
        raise URLError("no network in tests")

    monkeypatch.setattr(store, "open_url", refuse)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $UNDRIFT_DATA and an empty cache; published checksums are not asked for."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("UNDRIFT_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for reader in (mnist, cifar):
        monkeypatch.setattr(reader, "KNOWN_HASHES", {})
    return folder


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Data]:
    """load() from the real data, each set once; skips if a file is not there."""
    monkeypatch.setenv("UNDRIFT_DATA", str(real_data()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def read(name: str) -> Data:
        try:
            return READ.get(name) or READ.setdefault(name, load(name))
        except store.DataMissing as error:
            pytest.skip(str(error))

    return read


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


# --- real data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_a_real_set_has_its_published_counts(name: str, real: Callable[..., Data]) -> None:
    data = real(name)
    train, test, clients, classes = REAL[name]
    assert (data.name, len(data.train[0]), data.classes) == (name, train, classes)
    assert (0 if data.test is None else len(data.test[0])) == test
    assert len(data.client_names) == clients and DATASETS[name].about in data.about
    if data.clients is None:
        assert not clients
    else:
        assert data.clients.unique().tolist() == list(range(clients))
    for file, value in data.checksums.items():
        (path,) = real_data().rglob(file) if "mnist" not in name else _mnist(name, file)
        assert value == hashlib.sha256(path.read_bytes()).hexdigest()
    assert bool(data.checksums) == (name != "digits")
    inputs = data.train[0][:6].reshape(3, 2, *data.train[0].shape[1:])
    if data.prepare is not None:
        assert torch.equal(data.prepare(inputs).flatten(0, 1), data.prepare(inputs.flatten(0, 1)))
        inputs = data.prepare(inputs)
    assert inputs.dtype in (torch.float32, torch.int64)
    assert same(data, load(name))


def _mnist(name: str, file: str) -> list[Path]:
    return [real_data() / ("fashion-mnist" if name == "fashion-mnist" else "mnist") / file]


def test_mnist_labels_and_scale(real: Callable[..., Data]) -> None:
    data = real("mnist")
    assert data.train[1][:5].tolist() == [5, 0, 4, 1, 9]
    assert data.train[1].bincount().tolist() == [
        *(5923, 6742, 5958, 6131, 5842),
        *(5421, 5918, 6265, 5851, 5949),
    ]
    assert data.test is not None and data.test[1].bincount()[:3].tolist() == [980, 1135, 1032]
    assert data.train[0].dtype == torch.uint8 and data.prepare is not None
    prepared = data.prepare(data.train[0][:20_000])
    assert abs(float(prepared.mean())) < 0.01 and abs(float(prepared.std()) - 1) < 0.01


def test_fashion_mnist_is_balanced(real: Callable[..., Data]) -> None:
    data = real("fashion-mnist")
    assert data.test is not None
    assert data.train[1].bincount().tolist() == [6000] * 10
    assert data.test[1].bincount().tolist() == [1000] * 10


def test_mnist_writers_are_qmnists(real: Callable[..., Data]) -> None:
    data = real("mnist-writers")
    assert data.clients is not None and data.test is not None and data.test_clients is not None
    sizes = data.clients.bincount()
    assert (int(sizes.min()), int(sizes.max()), int(sizes.median())) == (19, 131, 116)
    assert data.test_clients.unique().tolist() == [-1]  # no writer is in both
    path = real_data() / "mnist" / "qmnist-test-labels-idx2-int.gz"
    others = mnist.read_writers(path, data.test[1].numpy())
    assert len(np.unique(others)) == 297
    assert not {str(w) for w in others} & set(data.client_names)


def test_cifar10_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = real_data() / "restore_cifar.py"
    if not script.is_file():
        pytest.skip(f"no {script}")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path))
    data = load("cifar10")
    assert data.test is not None and data.prepare is not None and len(data.checksums) == 6
    assert data.train[0].shape == (50_000, 3, 32, 32) and data.train[0].dtype == torch.uint8
    assert data.train[1].bincount().tolist() == [5000] * 10
    assert data.test[1].bincount().tolist() == [1000] * 10
    prepared = data.prepare(data.train[0][:10_000])
    assert prepared.mean((0, 2, 3)).abs().max() < 0.02
    assert (prepared.std((0, 2, 3)) - 1).abs().max() < 0.02
    batch = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    batch.write_bytes(batch.read_bytes()[:-1] + b"\0")
    with pytest.raises(InvalidInput, match=r"data_batch_3.bin: its md5 is .*942cd6a4.*delete"):
        load("cifar10")


def test_shakespeare_windows_are_leafs(real: Callable[..., Data]) -> None:
    data = real("shakespeare")
    assert data.clients is not None and data.test is not None and data.test_clients is not None
    assert data.prepare is not None
    sizes = (data.clients.bincount() + data.test_clients.bincount()).double()
    assert int(sizes.sum()) == 4_226_158
    assert f"{sizes.mean():.2f} {sizes.std(correction=0):.2f}" == "3743.28 6212.26"
    path = real_data() / "shakespeare" / "shakespeare_by_role.json.gz"
    source = json.loads(gzip.decompress(path.read_bytes()))
    for role in (0, 500, 1128):
        raw = source["user_data"][data.client_names[role]]["raw"]
        said = re.sub(r"   *", " ", raw.replace("\n", " "))
        mine = (data.clients == role).nonzero().flatten()
        codes = data.prepare(data.train[0][mine[-1:]])[0]
        i = len(mine) - 1
        assert "".join(shakespeare.ALPHABET[c] for c in codes.tolist()) == said[i : i + 80]
        assert shakespeare.ALPHABET[int(data.train[1][mine[-1]])] == said[i + 80]
        theirs = (data.test_clients == role).nonzero().flatten()
        assert shakespeare.ALPHABET[int(data.test[1][theirs[0]])] == said[i + 81]


def test_a_test_target_is_in_no_training_window(real: Callable[..., Data]) -> None:
    for data in (real("shakespeare"), real("tinyshakespeare")):
        assert data.test is not None and isinstance(data.prepare, shakespeare.Windows)
        seen = torch.zeros(len(data.prepare.text), dtype=torch.bool)
        for step in range(81):
            seen[data.train[0].long() + step] = True
        assert not seen[data.test[0].long() + 80].any()


def test_tinyshakespeare_has_its_text_and_alphabet(real: Callable[..., Data]) -> None:
    real("tinyshakespeare")
    path = real_data() / "shakespeare" / "tinyshakespeare.txt.gz"
    whole = store.read_text(path)
    assert hashlib.sha256(whole.encode()).hexdigest().startswith("86c4e6aa9db7c042")
    assert "".join(sorted(set(whole))) == shakespeare.TINY_ALPHABET
    assert len(set(shakespeare.ALPHABET)) == 80
    said = shakespeare.group_by_speaker(whole)
    assert len(said) == 309
    assert said["SAMPSON"].startswith("Gregory, o' my word")  # after an empty line too many


def test_hapt_windows(real: Callable[..., Data]) -> None:
    data = real("hapt")
    assert data.test is not None and data.clients is not None and data.test_clients is not None
    assert data.train[0].shape[1:] == (6, 128) and len(data.train[0]) + len(data.test[0]) == 10_929
    assert data.test[1].unique().tolist() == list(range(12))
    share = data.test_clients.bincount() / (data.clients.bincount() + data.test_clients.bincount())
    assert 0.08 < float(share.min()) and float(share.max()) < 0.13
    with np.load(real_data() / "har" / "hapt_int16.npz", allow_pickle=False) as file:
        first = file["x"][:, :128] * har.SENSOR_UNITS[:, None]
    assert data.test_clients[0] == 0  # person 1 begins with five windows for testing
    assert np.abs(data.test[0][0].numpy() - first).max() < 1e-6


def test_heart_is_flambys(real: Callable[..., Data]) -> None:
    data = real("heart")
    assert data.clients is not None and data.test_clients is not None and data.test is not None
    both = data.clients.bincount() + data.test_clients.bincount()
    assert both.tolist() == [303, 261, 46, 130] and int(both.sum()) == 740
    assert data.client_names == ("cleveland", "hungarian", "switzerland", "va")
    X = data.train[0]
    assert X.shape == (494, 13) and data.test[0].shape == (246, 13)
    assert X.mean(0).abs().max() < 1e-5 and (X.std(0, correction=0) - 1).abs().max() < 1e-5


def test_parkinsons_leaves_the_other_score_out(real: Callable[..., Data]) -> None:
    data = real("parkinsons")
    X, y = data.train
    assert X.shape == (4699, 19) and y.shape == (4699, 1) and y.dtype == torch.float32
    correlation = (X * y).mean(0).abs().max()  # both are standardised
    assert correlation < 0.5  # motor_UPDRS has 0.95
    assert data.clients is not None and data.test_clients is not None
    both = data.clients.bincount() + data.test_clients.bincount()
    assert (len(both), int(both.min()), int(both.max())) == (42, 101, 168)
    assert "(total_UPDRS - 29.0" in data.about


def test_adult_one_hot(real: Callable[..., Data]) -> None:
    data = real("adult")
    assert data.test is not None
    X = data.train[0]
    assert X.shape == (32_561, 108) and data.test[0].shape == (16_281, 108)
    assert int(data.train[1].sum()) == 7841 and int(data.test[1].sum()) == 3846
    numbers = [c for c in range(108) if not set(X[:200, c].unique().tolist()) <= {0.0, 1.0}]
    assert len(numbers) == 6
    hot = [c for c in range(108) if c not in numbers]
    assert (X[:, hot].sum(1) == 8).all() and X[:, numbers].mean(0).abs().max() < 1e-4


def test_libsvm_sets(real: Callable[..., Data]) -> None:
    positives = {"a9a": (123, 7841), "w8a": (300, 1479), "mushrooms": (112, 4208)}
    for name, (width, positive) in positives.items():
        X, y = real(name).train
        assert X.shape[1] == width and X.dtype == torch.float32 and int(y.sum()) == positive
    _, labels = ud.libsvm(real_data() / "tabular" / "mushrooms.libsvm.gz")
    assert labels.unique().tolist() == [1.0, 2.0]


def test_a_real_set_trains(real: Callable[..., Data]) -> None:
    data = real("heart")
    problem = ud.federate(
        data.train,
        data.test,
        model=nn.Linear(13, 2),
        loss=F.cross_entropy,
        clients=data.clients,  # pyright: ignore[reportArgumentType]
    )
    result = ud.run(ud.FedAvg(), problem, rounds=20, local=ud.Local(steps=5, lr=0.1, batch=16))
    assert problem.N == 4 and result.history[-1].metrics["accuracy"] > 0.7


# --- the registry ------------------------------------------------------------------------------------------------


def test_every_name_has_a_reader() -> None:
    for name, source in DATASETS.items():
        assert source.read.__module__.startswith("undrift.data.datasets."), name
        assert callable(source.read) and source.about, name


def test_unknown_names_and_options() -> None:
    with pytest.raises(InvalidInput, match="unknown data set 'minst'; did you mean 'mnist'"):
        load("minst")
    with pytest.raises(InvalidInput, match="option of cifar100: 'label'; did you mean 'labels'"):
        load("cifar100", label="fine")
    with pytest.raises(InvalidInput, match="heart has no options, got 'seed'"):
        load("heart", seed=1)
    with pytest.raises(InvalidInput, match="'fine' or 'coarse', got 'medium'"):
        load("cifar100", labels="medium")


def test_a_custom_reader_is_held_to_its_name_and_its_type() -> None:
    X, y = torch.zeros(2, 1), torch.tensor([0, 1])

    @ud.dataset("custom", about="two samples")
    def custom(as_data: bool = True) -> Any:
        return Data("custom", (X, y), None) if as_data else (X, y)

    try:
        assert load("custom").about == "two samples"
        assert ud.dataset("custom", about="again")(custom) is custom  # a cell that is run twice
        with pytest.raises(InvalidInput, match="'custom': its reader must return a ud.Data, got t"):
            load("custom", as_data=False)
        with pytest.raises(InvalidInput, match="there is a data set 'custom' already"):
            ud.dataset("custom")(lambda: None)
    finally:
        DATASETS.pop("custom")


def test_a_table_with_column_names() -> None:
    class Dataset:  # as Hugging Face's
        column_names = ["x", "y", "who"]

        def __getitem__(self, name: str) -> list[Any]:
            return {"x": [0.5, 1.5], "y": [True, False], "who": [7, 3]}[name]

    data = ud.from_table(Dataset(), ["x"], "y", "who")
    assert data.client_names == ("3", "7") and data.clients is not None
    assert data.clients.tolist() == [1, 0] and data.train[1].tolist() == [1, 0]
    with pytest.raises(InvalidInput, match="unknown column 'keys'.* Known: who, x, y"):
        ud.from_table(Dataset(), "keys", "y")


def test_importing_is_lazy() -> None:
    code = (
        "import sys, undrift, undrift.data.datasets;"
        "assert 'undrift.data.datasets.uci' in sys.modules;"
        "print([m for m in ('h5py', 'PIL', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_nothing_is_unpickled(home: Path) -> None:
    readers = Path(str(datasets.__file__)).parent.glob("*.py")
    for file in (Path(store.__file__), Path(registry.__file__), *readers):
        source = file.read_text()
        assert "import pickle" not in source and "allow_pickle=True" not in source
        assert "torch.load" not in source
        loads = re.findall(r"np\.load\([^)]*\)", source)
        assert all("allow_pickle=False" in call for call in loads)

    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(home / "sprung"),)

    objects = np.array([Trap()], dtype=object)
    np.savez(
        home / "hapt_int16.npz", x=objects, seg_len=objects, seg_label=objects, seg_user=objects
    )
    with pytest.raises(InvalidInput, match="hapt_int16.npz is not a whole npz file"):
        load("hapt")
    assert not (home / "sprung").exists()


def test_data_check_themselves() -> None:
    X, y = torch.zeros(3, 2), torch.tensor([0, 1, 2])
    clients = torch.tensor([0, 0, 1])
    Data("a", (X, y), None, clients, client_names=("p", "q"), classes=3)
    for wrong, message in [
        (lambda: Data("a", (X[:2], y), None), "2 inputs and 3 targets"),
        (lambda: Data("a", (X[:0], y[:0]), None), "0 inputs"),
        (lambda: Data("a", (X, y), None, classes=2), "from 0 to 2, allowed are 0 to 1"),
        (lambda: Data("a", (X, y.int()), None, classes=3), "must be int64"),
        (lambda: Data("a", (X / 0, y), None), "train inputs have NaN or Inf"),
        (lambda: Data("a", (X, y), None, clients, client_names=("p",)), "for 1 client names"),
        (lambda: Data("a", (X, y), None, -clients, client_names=("p", "q")), "clients go from -1"),
        (lambda: Data("a", (X, y), None, clients[:2], client_names=("p",)), "one per sample"),
        (lambda: Data("a", (X, y), None, test_clients=clients), "test_clients must be"),
        (lambda: Data("a", (X, y), (X, y - 1), classes=3), "test labels go from -1"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            wrong()


# --- the store ---------------------------------------------------------------------------------------------------


class Answer(io.BytesIO):
    def __init__(self, content: bytes, promised: int | None = None):
        super().__init__(content)
        self.headers = {} if promised is None else {"Content-Length": str(promised)}


def served(
    monkeypatch: pytest.MonkeyPatch, content: bytes, promised: int | None = None
) -> list[str]:
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
        assert (
            store.find("set", "f.txt", url="https://example.org/f.txt", known_hash=known_hash)
            == path
        )
        assert path.read_bytes() == b"hello"
    assert asked == ["https://example.org/f.txt"]
    assert [p.name for p in path.parent.iterdir()] == ["f.txt"]


def test_a_bad_download_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# --- images ------------------------------------------------------------------------------------------------------


def small_mnist(folder: Path, n: int = 6) -> dict[str, np.ndarray]:
    """Files in MNIST's layout, with QMNIST tables; three writers, of whom one is in test."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, qmnist in (("train", "train"), ("t10k", "test")):
        pixels = random.integers(0, 256, (n, 4, 5), dtype=np.uint8)
        labels = random.integers(0, 10, n, dtype=np.uint8)
        table = np.zeros((n + 2, 8), dtype=np.int32)
        table[:n, 0] = labels
        table[:, 2] = 700 + np.arange(n + 2) % (2 if part == "train" else 3)
        write(folder / f"{part}-images-idx3-ubyte.gz", gzip.compress(idx(pixels)))
        write(folder / f"{part}-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))
        write(folder / f"qmnist-{qmnist}-labels-idx2-int.gz", gzip.compress(idx(table)))
        arrays |= {f"{part}-pixels": pixels, f"{part}-labels": labels}
    return arrays


@pytest.mark.parametrize("folder", ["mnist", ".", "MNIST/raw"])
def test_mnist_layout(home: Path, folder: str) -> None:
    arrays = small_mnist(home / folder)
    data = load("mnist-writers")
    assert data.test is not None and data.clients is not None and data.test_clients is not None
    assert np.array_equal(data.train[0].squeeze(1).numpy(), arrays["train-pixels"])
    assert np.array_equal(data.test[1].numpy(), arrays["t10k-labels"])
    assert data.client_names == ("700", "701")
    assert data.clients.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.test_clients.tolist() == [0, 1, -1, 0, 1, -1]
    assert load("mnist").clients is None and len(data.checksums) == 6


def test_published_checksums_are_asked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {"mnist": {"t10k-labels-idx1-ubyte.gz": "md5:ec29112d"}}
    monkeypatch.setattr(mnist, "KNOWN_HASHES", hashes)
    small_mnist(home / "mnist")
    with pytest.raises(InvalidInput, match="t10k-labels-idx1-ubyte.gz: its md5 is .*ec29112d"):
        load("mnist")


def test_idx_gone_wrong(home: Path) -> None:
    good = idx(np.arange(6, dtype=np.uint8))
    assert mnist.read_idx(write(home / "f", good)).tolist() == [0, 1, 2, 3, 4, 5]
    numbers = np.array([[1, -2]], dtype=np.int32)
    assert np.array_equal(mnist.read_idx(write(home / "f", idx(numbers))), numbers)
    for wrong, message in [
        (b"", "begins with nothing"),
        (b"\0\0\x0b\1" + good[4:], "f is not an idx file: it begins with 00000b01"),
        (b"PK\3\4", "not an idx file"),
        (good[:6], "ends within its header"),
        (good[:-1], r"promises \[6\] numbers of 1 bytes, but 5 bytes follow"),
        (good + b"\0", "but 7 bytes follow"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            mnist.read_idx(write(home / "f", wrong))


def test_mnist_files_that_do_not_belong_together(home: Path) -> None:
    pixels = write(home / "x", idx(np.zeros((3, 2, 2), dtype=np.uint8)))
    for labels, message in [
        (np.zeros(2, dtype=np.uint8), r"shape \[2\] for the 3 images"),
        (np.array([0, 10, 1], dtype=np.uint8), "sample 1 has label 10, allowed are 0 to 9"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            mnist.read_images(pixels, write(home / "y", idx(labels)))
    with pytest.raises(InvalidInput, match=r"images are bytes \[n, h, w\]"):
        mnist.read_images(write(home / "y", idx(np.zeros(2, dtype=np.uint8))), pixels)
    table = np.zeros((3, 8), dtype=np.int32)
    path = write(home / "q", idx(table))
    with pytest.raises(InvalidInput, match="1 classes are not those .* row 1"):
        mnist.read_writers(path, np.array([0, 5, 0]))
    with pytest.raises(InvalidInput, match="has no writers for 4 digits"):
        mnist.read_writers(path, np.zeros(4))
    table[2, 2] = -1
    with pytest.raises(InvalidInput, match="row 2 has no writer"):
        mnist.read_writers(write(home / "q", idx(table)), np.zeros(3))


def small_cifar(coarse: bool) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    names = ["train.bin", "test.bin"]
    if not coarse:
        names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    random = np.random.default_rng(1)
    files, arrays = {}, {}
    for name in names:
        records = random.integers(0, 256, (2, 3072 + 1 + coarse), dtype=np.uint8)
        records[:, 0] = (3, 9)
        records[:, int(coarse)] = (7, 99) if coarse else (3, 9)
        files[name], arrays[name] = records.tobytes(), records
    return files, arrays


def tar_of(files: dict[str, bytes], folder: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("packed", [True, False])
def test_cifar_layouts(home: Path, packed: bool) -> None:
    for name, folder, coarse in (
        ("cifar10", "cifar-10-batches-bin", False),
        ("cifar100", "cifar-100-binary", True),
    ):
        files, arrays = small_cifar(coarse)
        if packed:
            archive = folder.replace("batches-bin", "binary") + ".tar.gz"
            write(home / name / archive, tar_of(files, folder))
        else:
            for file, content in files.items():
                write(home / name / folder / file, content)
        data = load(name)
        assert data.test is not None
        test = arrays["test.bin" if coarse else "test_batch.bin"]
        assert np.array_equal(data.test[0].flatten(1).numpy(), test[:, 1 + coarse :])
        assert data.test[1].tolist() == ([7, 99] if coarse else [3, 9])
        assert len(data.train[0]) == (2 if coarse else 10)
        second = arrays["train.bin" if coarse else "data_batch_1.bin"][1, 1 + coarse :]
        assert np.array_equal(data.train[0][1].flatten().numpy(), second)
        assert len(data.checksums) == (1 if packed else len(files))
    data = load("cifar100", labels="coarse")
    assert data.classes == 20 and data.train[1].tolist() == [3, 9]


def test_cifar_gone_wrong(home: Path) -> None:
    files, _ = small_cifar(False)
    whole = tar_of(files, "cifar-10-batches-bin")
    path = home / "cifar-10-binary.tar.gz"
    for wrong in (whole[: len(whole) // 2], b"not a tar file"):
        write(path, wrong)
        with pytest.raises(InvalidInput, match="cifar-10-binary.tar.gz is truncated or damaged"):
            load("cifar10")
    write(path, tar_of({"test_batch.bin": b""}, "x"))
    with pytest.raises(InvalidInput, match="does not contain data_batch_1.bin"):
        load("cifar10")
    write(path, tar_of(files | {"data_batch_2.bin": b"\0" * 3072}, "x"))
    with pytest.raises(InvalidInput, match="data_batch_2.bin: 3072 bytes .* records of 3073"):
        load("cifar10")
    write(path, tar_of(files | {"data_batch_2.bin": b"\x0a" * 3073}, "x"))
    with pytest.raises(InvalidInput, match="data_batch_2.bin: sample 0 has label 10"):
        load("cifar10")


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 8)) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, quality=100)


LANDMARKS = ["abc1", "abd2", "0123"]


def small_landmarks(home: Path) -> None:
    for i, image in enumerate(LANDMARKS):
        picture(home / "gldv2" / "train" / Path(*image[:3]) / f"{image}.jpg", (80 * i, 0, 255))
    write(home / "gldv2" / "federated_train.csv", "user_id,image_id,class\n9,abc1,0\n10,abd2,1\n")
    write(home / "gldv2" / "test.csv", "image_id,class\n0123,1\n")


def test_landmarks_layout(home: Path) -> None:
    pytest.importorskip("PIL")
    small_landmarks(home)
    data = load("gldv2", size=4)
    assert data.test is not None and data.clients is not None and data.prepare is not None
    assert data.client_names == ("10", "9") and data.clients.tolist() == [1, 0]
    assert data.classes == 2 and data.test_clients is None and data.test[0].tolist() == [2]
    batch = data.prepare(torch.tensor([[0, 1], [2, 0]]))
    assert batch.shape == (2, 2, 3, 4, 4) and torch.equal(batch[0, 0], batch[1, 1])
    assert torch.equal(batch[1, 0], data.prepare(data.test[0])[0])
    red = batch[:, :, 0, 0, 0] * 0.229 + 0.485
    assert torch.allclose(red * 255, torch.tensor([[0.0, 80.0], [160.0, 0.0]]), atol=4)
    assert set(data.checksums) == {"federated_train.csv", "test.csv"}
    assert "paths" not in repr(data.prepare)
    assert load("gldv2", test=None, images=home / "gldv2" / "train").test is None


def test_inaturalist_layout(home: Path) -> None:
    pytest.importorskip("PIL")
    folder = home / "inaturalist"
    for name in ("Aves/Jay/one", "Aves/Tit/two", "Fungi/Cep/two", "Fungi/Cep/three"):
        picture(folder / "train_val_images" / f"{name}.jpg", (1, 2, 3))
    table = folder / "inaturalist-user-120k" / "federated_train_user_120k.csv"
    write(
        table,
        "user_id,image_id,class,label\nann,one,0,5\nbob,Aves/Tit/two.jpg,1,6\nann,three,1,6\n",
    )
    data = load("inaturalist", test=None, size=2)
    assert data.clients is not None and isinstance(data.prepare, federated_vision.ImageFiles)
    assert data.client_names == ("ann", "bob") and data.clients.tolist() == [0, 1, 0]
    assert [p.stem for p in data.prepare.paths] == ["one", "two", "three"]
    write(table, "user_id,image_id,class\nann,two,0\n")
    with pytest.raises(InvalidInput, match="'two' is both .*Tit.* and .*Cep"):
        load("inaturalist", test=None)
    write(table, f"user_id,image_id,class\nann,{table},0\nann,../test.csv,0\n")
    with pytest.raises(InvalidInput, match="2 of 2 images are not in .*train_val_images"):
        load("inaturalist", test=None)  # nothing outside the folder is read
    with pytest.raises(store.DataMissing, match="test.csv is not beside"):
        load("inaturalist")


def test_image_tables_gone_wrong(home: Path) -> None:
    pytest.importorskip("PIL")
    small_landmarks(home)
    table = home / "gldv2" / "federated_train.csv"
    for rows, message in [
        ("user_id,image_id,class\n", "federated_train.csv has no rows"),
        ("user_id,image_id,class\n1,abc1,0\n,abd2,1\n", "line 3: no user_id"),
        ("image_id,class\nabc1,0\n", "line 2: no user_id; every row needs image_id, class"),
        ("user_id,image_id,class\n1,abc1\n", "line 2: no class"),
        ("user_id,image_id,class\n1,abc1,x\n", "line 2: class must be 0, 1, 2, .* 'x'"),
        ("user_id,image_id,class\n1,abc1,-1\n", "class must be"),
        ("user_id,image_id,class\n1,abcdef,1\n", "1 of 2 images are not in .*'abcdef'"),
        ("user_id,image_id,class\n1,../../x,1\n", "letters and digits"),
        ("user_id,image_id,class\n1,abc1,0\n", "test.csv: sample 0 has label 1"),
    ]:
        write(table, rows)
        with pytest.raises(InvalidInput, match=message):
            load("gldv2")
    small_landmarks(home)
    write(home / "gldv2" / "train" / "a" / "b" / "c" / "abc1.jpg", b"no image")
    data = load("gldv2")
    assert data.prepare is not None
    with pytest.raises(InvalidInput, match="abc1.jpg is not an image that can be read"):
        data.prepare(torch.tensor([0]))
    with pytest.raises(InvalidInput, match="is not a folder"):
        load("gldv2", images=home / "nowhere")
    with pytest.raises(InvalidInput, match="size must be 1 or more"):
        load("gldv2", size=0)


# --- text --------------------------------------------------------------------------------------------------------


def sentence_of(n: int, offset: int = 0) -> str:
    return "".join(shakespeare.ALPHABET[1 + (i * 7 + offset) % 79] for i in range(n))


def leaf_json(users: dict[str, Any], counts: list[int]) -> str:
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": users})


def sampled(n: int, offset: int) -> dict[str, list[str]]:
    said = sentence_of(80 + n, offset)
    return {"x": [said[i : i + 80] for i in range(n)], "y": [said[i + 80] for i in range(n)]}


def test_leaf_raw_layout(home: Path) -> None:
    said = {"A": sentence_of(100), "B": sentence_of(81), "C": sentence_of(83, 5), "D": "too short"}
    users = {name: {"raw": words} for name, words in said.items()}
    assert " " in said["C"]  # line ends and runs of spaces count as one space
    users["C"] = {"raw": said["C"].replace(" ", "  \n")}
    write(home / "shakespeare" / "all_data.json", leaf_json(users, [20, 1, 3, 0]))
    data = load("shakespeare")
    assert data.test is not None and data.prepare is not None
    assert data.clients is not None and data.test_clients is not None
    assert data.client_names == ("A", "C")  # the others have fewer than two windows
    assert data.clients.tolist() == [0] * 18 + [1] * 2
    assert data.test_clients.tolist() == [0, 0, 1]
    last = data.prepare(data.test[0])[-1].tolist()
    assert "".join(shakespeare.ALPHABET[c] for c in last) == said["C"][2:82]
    assert shakespeare.ALPHABET[int(data.test[1][-1])] == said["C"][82]
    path = home / "shakespeare" / "all_data.json"
    assert same(data, load("shakespeare", path=path))


def test_leaf_sampled_layout(home: Path) -> None:
    folder = home / "shakespeare" / "data"
    train = {"A": sampled(3, 0), "B": sampled(2, 9)}
    write(folder / "train" / "1.json", leaf_json(train, [3, 2]))
    write(
        folder / "train" / "2.json", leaf_json({"C": sampled(1, 30), "A": sampled(2, 50)}, [1, 2])
    )
    test = {"B": sampled(1, 2), "E": sampled(2, 3), "F": sampled(0, 0)}
    write(folder / "test" / "1.json", leaf_json(test, [1, 2, 0]))
    data = load("shakespeare")
    assert data.test is not None and data.prepare is not None
    assert data.clients is not None and data.test_clients is not None
    assert data.client_names == ("A", "B", "C")
    assert data.clients.tolist() == [0, 0, 0, 0, 0, 1, 1, 2]
    assert data.test_clients.tolist() == [1, -1, -1]
    read = data.prepare(data.train[0]).tolist()
    assert "".join(shakespeare.ALPHABET[c] for c in read[4]) == sampled(2, 50)["x"][1]
    assert shakespeare.ALPHABET[int(data.train[1][4])] == sampled(2, 50)["y"][1]
    assert set(data.checksums) == {"train/1.json", "train/2.json", "test/1.json"}
    assert same(data, load("shakespeare", path=folder))


def test_leaf_gone_wrong(home: Path) -> None:
    path = home / "shakespeare" / "all_data.json"
    good = sampled(3, 0)
    for content, message in [
        ("{", "all_data.json is not in LEAF's form"),
        ("[]", "not in LEAF's form"),
        ('{"users": ["A"], "num_samples": [1], "user_data": {}}', "KeyError: 'A'"),
        (leaf_json({"A": good}, []), "1 users and 0 num_samples"),
        (leaf_json({"A": good}, [4]), "A has 3 windows of 80 characters, num_samples says 4"),
        (leaf_json({"A": {"raw": "short"}}, [7]), "A has 0 windows"),
        (leaf_json({"A": {"words": "x"}}, [1]), "must have lists x and y, or raw text"),
        (leaf_json({"A": {"raw": 5}}, [1]), "raw must be text, got int"),
        (leaf_json({"A": good | {"y": ["a"]}}, [3]), "3 windows x and 1 next characters y"),
        (leaf_json({"A": good | {"y": ["a", "bc", "d"]}}, [3]), "sample 1 has 80 .* then 2"),
        (leaf_json({"A": {"raw": "é" * 90}}, [10]), "the character 'é' is not one of the 80"),
        (leaf_json({"A": {"raw": "$" * 90}}, [10]), r"the character '\$'"),
        (leaf_json({"A": {"raw": "short"}}, [0]), "no role has windows of 80"),
    ]:
        write(path, content)
        with pytest.raises(InvalidInput, match=message):
            load("shakespeare")
    write(path, gzip.compress(b"{}" * 99)[:-9])
    with pytest.raises(InvalidInput, match="truncated or damaged"):
        load("shakespeare")
    with pytest.raises(InvalidInput, match="has no .*json files"):
        load("shakespeare", path=home / "nowhere")
    with pytest.raises(InvalidInput, match="length must be 1 or more"):
        load("shakespeare", length=0)


def test_tinyshakespeare_layout(home: Path) -> None:
    write(home / "tinyshakespeare" / "input.txt", "A:\nOne two.\n\nB:\nNo.\n\n\nA:\nThree.\n")
    data = load("tinyshakespeare", length=4)
    assert data.test is not None and data.prepare is not None
    assert data.client_names == ("A",) and len(data.train[0]) + len(data.test[0]) == 11
    last = data.prepare(data.test[0])[0].tolist()
    assert "".join(shakespeare.TINY_ALPHABET[c] for c in last) == "hree"
    write(home / "tinyshakespeare" / "input.txt", "A\nOne two.\n")
    with pytest.raises(InvalidInput, match="begins with 'A'; each must begin with a line `Name:`"):
        load("tinyshakespeare")


def small_stackoverflow(home: Path) -> None:
    h5py = pytest.importorskip("h5py")
    folder = home / "stackoverflow"
    write(folder / "stackoverflow.word_count", "the 9\nto 7\nof 5\nrare 1\n")
    for part, users in (
        ("train", {"0002": [b"the of to the", b"what"], "0001": [b"to", b"of", b"the"]}),
        ("test", {"0002": [b"to the"], "0003": [b"of"]}),
    ):
        with h5py.File(folder / f"stackoverflow_{part}.h5", "w") as file:
            for user, lines in users.items():
                file[f"examples/{user}/tokens"] = np.array(lines, dtype=object)
                file[f"examples/{user}/score"] = np.zeros(len(lines))


def test_stackoverflow_layout(home: Path) -> None:
    small_stackoverflow(home)
    data = load("stackoverflow", vocabulary=3, length=3)
    assert data.test is not None and data.clients is not None and data.test_clients is not None
    # 1 the, 2 to, 3 of, 4 unknown, 5 begin, 6 end
    assert data.classes == 7 and data.client_names == ("0001", "0002")
    assert data.train[0].tolist() == [[5, 2, 6], [5, 3, 6], [5, 1, 6], [5, 1, 3], [5, 4, 6]]
    no = -100  # padding, which losses leave out
    assert data.train[1].tolist() == [[2, 6, no], [3, 6, no], [1, 6, no], [1, 3, 2], [4, 6, no]]
    assert data.train[0].dtype == torch.int16 and data.train[1].dtype == torch.int64
    assert data.clients.tolist() == [0, 0, 0, 1, 1] and data.test_clients.tolist() == [1, -1]
    assert data.prepare is not None and data.prepare(data.train[0]).dtype == torch.int64
    assert set(data.checksums) == {"stackoverflow.word_count"}
    some = load("stackoverflow", vocabulary=3, length=3, clients=1, sentences=2, verify=True)
    assert some.clients is not None and some.clients.tolist() == [0, 0] and some.test is None
    assert len(some.checksums) == 3


def test_stackoverflow_gone_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stackoverflow(home)
    with pytest.raises(InvalidInput, match="has 4 words, 10000 are needed"):
        load("stackoverflow")
    for option in ("clients", "sentences", "vocabulary", "length"):
        with pytest.raises(InvalidInput, match=f"{option} must be 1 or more, got 0"):
            load("stackoverflow", **{option: 0})
    with pytest.raises(InvalidInput, match="at most 32,000"):
        load("stackoverflow", vocabulary=40_000)
    path = home / "stackoverflow" / "stackoverflow_train.h5"
    whole = path.read_bytes()
    write(path, whole[:100])
    with pytest.raises(InvalidInput, match="stackoverflow_train.h5 cannot be read"):
        load("stackoverflow", vocabulary=3)
    write(path, whole)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InvalidInput, match="needs h5py: pip install"):
        load("stackoverflow", vocabulary=3)
    for lines in ("the 9\nthe 7\n", "the\n", "the nine\n"):
        write(home / "stackoverflow" / "stackoverflow.word_count", lines)
        with pytest.raises(InvalidInput, match="must be a new word and its count"):
            load("stackoverflow", vocabulary=2)


# --- tables ------------------------------------------------------------------------------------------------------


def small_hapt() -> dict[str, str]:
    """RawData of two people: 2,400 rows each, one segment of walking, one of lying, some rows without a label."""
    random = np.random.default_rng(2)
    files, labels = {}, []
    for experiment, person in ((1, 1), (2, 3)):
        for sensor in ("acc", "gyro"):
            rows = random.standard_normal((2400, 3)).round(6)
            files[f"{sensor}_exp{experiment:02d}_user{person:02d}.txt"] = "\n".join(
                " ".join(f"{v:.6f}" for v in row) for row in rows
            )
        labels += [f"{experiment} {person} 1 11 1290", f"{experiment} {person} 6 1400 2400"]
    return files | {"labels.txt": "\n".join(labels)}


@pytest.mark.parametrize("layout", ["folder", "zip"])
def test_hapt_layouts(home: Path, layout: str) -> None:
    files = small_hapt()
    if layout == "folder":
        for name, content in files.items():
            write(home / "hapt" / "RawData" / name, content)
    else:
        with zipfile.ZipFile(home / "HAPT Data Set.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"RawData/{name}", content)
    data = load("hapt")
    assert data.test is not None and data.clients is not None
    # 1,280 rows are 19 windows, 1,001 rows are 14
    assert len(data.train[0]) + len(data.test[0]) == 2 * (19 + 14)
    assert data.client_names == ("1", "3") and len(data.checksums) == (
        5 if layout == "folder" else 1
    )
    acc = np.loadtxt(io.StringIO(files["acc_exp01_user01.txt"]))
    gyro = np.loadtxt(io.StringIO(files["gyro_exp01_user01.txt"]))
    first = np.concatenate([acc, gyro], axis=1)[10 : 10 + 128].T
    assert np.allclose(data.test[0][0].numpy(), first, atol=1e-6) and int(data.test[1][0]) == 0
    assert set(data.train[1].tolist()) == {0, 5}


def test_hapt_gone_wrong(home: Path) -> None:
    folder = home / "hapt" / "RawData"
    for name, wrong, message in [
        ("labels.txt", "1 1 13 11 1290", "labels go from 13 to 13, allowed are 1 to 12"),
        ("labels.txt", "1 1 1 11 2401", "line 1: rows 11 to 2401, .* 1 to 2400"),
        ("labels.txt", "1 1 1 11", "labels.txt: lines must have 5 finite numbers, got 4"),
        ("labels.txt", "1 1 1.5 11 200", "are integers"),
        ("labels.txt", "1 1 1 11 20", "no segment has 128 rows"),
        ("labels.txt", "", "labels.txt is empty"),
        ("labels.txt", "9 1 1 11 200", "acc_exp09_user01.txt cannot be read"),
        ("acc_exp01_user01.txt", "1 2 x", "acc_exp01_user01.txt is not a table of numbers"),
        ("acc_exp01_user01.txt", "1 2 nan", "3 finite numbers, got 3 columns and NaN"),
        ("gyro_exp01_user01.txt", "1 2 3", "has 2400 rows and gyro_exp01_user01.txt 1"),
    ]:
        for file, content in (small_hapt() | {name: wrong}).items():
            write(folder / file, content)
        with pytest.raises(InvalidInput, match=message):
            load("hapt")
    for file in folder.iterdir():
        file.unlink()
    write(home / "HAPT Data Set.zip", b"PK\3\4 and then nothing")
    with pytest.raises(InvalidInput, match="HAPT Data Set.zip is truncated or damaged"):
        load("hapt")
    with zipfile.ZipFile(home / "HAPT Data Set.zip", "w") as archive:
        archive.writestr("Train/labels.txt", "")
    with pytest.raises(InvalidInput, match="does not contain RawData/labels.txt"):
        load("hapt")


def test_hapt_compact_gone_wrong(home: Path) -> None:
    path = home / "hapt_int16.npz"
    good: dict[str, Any] = {
        "x": np.zeros((6, 300), dtype=np.int16),
        "seg_len": np.array([300], dtype=np.int32),
        "seg_label": np.array([2], dtype=np.uint8),
        "seg_user": np.array([1], dtype=np.uint8),
    }
    for change, message in [
        ({"x": np.zeros((6, 299))}, r"shape \[6, 299\], the segments have 300 rows"),
        ({"seg_label": np.array([0])}, "labels go from 0 to 0"),
        ({"seg_user": np.array([0])}, "people are numbered from 1"),
        ({"seg_user": np.array([1, 2])}, "1 lengths, 1 labels and 2 users"),
    ]:
        np.savez(path, **(good | change))
        with pytest.raises(InvalidInput, match=message):
            load("hapt")
    write(path, path.read_bytes()[:200])
    with pytest.raises(InvalidInput, match="not a whole npz file"):
        load("hapt")
    np.savez(path, x=good["x"])
    with pytest.raises(InvalidInput, match="not a whole npz file with x, seg_len"):
        load("hapt")


HEART_ROW = "63.0,1.0,4.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,?,?,?,3"


def test_heart_layout(home: Path) -> None:
    for i, hospital in enumerate(uci.HOSPITALS):
        healthy = HEART_ROW.replace("63.0", f"{30 + i}").replace("?,3", "?,0")
        unknown = HEART_ROW.replace("233.0", "?")
        rows = [HEART_ROW, healthy, unknown, HEART_ROW.replace("4.0", "1")]
        write(home / "heart" / f"processed.{hospital}.data", "\n".join(rows) + "\n")
    data = load("heart")
    assert data.clients is not None and data.test is not None
    assert data.clients.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and len(data.test[0]) == 4
    assert data.train[0].isfinite().all()  # columns that do not vary too
    features, labels = uci.read_hospital(home / "heart" / "processed.va.data")
    assert features[0].tolist() == [63, 1, 0, 0, 1, 145, 233, 1, 0, 1, 150, 0, 2.3]
    assert labels.tolist() == [1, 0, 1]


def test_heart_gone_wrong(home: Path) -> None:
    for row, message in [
        (HEART_ROW + ",1", "line 1: 15 columns, there must be 14"),
        (HEART_ROW.replace("150.0", "nan"), "line 1, column 7: not a number: 'nan'"),
        (HEART_ROW.replace("150.0", ""), "line 1, column 7: not a number: ''"),
        (HEART_ROW.replace("?,3", "?,5"), "the last column is 0 to 4, got 5"),
        (HEART_ROW.replace("4.0", "9.0"), "column 2 is one of"),
        (HEART_ROW.replace("145.0", "?"), "has no complete row"),
        ("\n", "va.data is empty"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            uci.read_hospital(write(home / "va.data", row))


def small_parkinsons(change: Callable[[list[str]], list[str]] = lambda lines: lines) -> str:
    voice = [f"voice{i}" for i in range(16)]
    header = ["subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", *voice]
    random = np.random.default_rng(3)
    rows = [[str(7 + i // 5), *(f"{v:.4f}" for v in random.standard_normal(21))] for i in range(10)]
    return "\n".join(change([",".join(row) for row in (header, *rows)])) + "\n"


def test_parkinsons_layout(home: Path) -> None:
    write(home / "parkinsons" / "parkinsons_updrs.data", small_parkinsons())
    data = load("parkinsons")
    assert data.classes is None and data.clients is not None and data.test is not None
    assert data.client_names == ("7", "8") and data.clients.tolist() == [0] * 4 + [1] * 4
    assert data.train[0].shape == (8, 19) and data.test[1].shape == (2, 1)


def test_parkinsons_gone_wrong(home: Path) -> None:
    changes: list[tuple[Callable[[list[str]], list[str]], str]] = [
        (lambda lines: [*lines[:3], lines[3][1:]], "line 4, column subject#: not a number: ''"),
        (lambda lines: [*lines[:3], "7" + ",nan" * 21], "line 4, column age: not a number: 'nan'"),
        (lambda lines: [*lines[:3], "7,1"], "line 4: 2 columns, there must be 22"),
        (lambda lines: lines[1:], "first line must name 22 columns with subject#"),
        (lambda lines: lines[:1], "has no rows"),
    ]
    for change, message in changes:
        write(home / "parkinsons_updrs.data", small_parkinsons(change))
        with pytest.raises(InvalidInput, match=message):
            load("parkinsons")


ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K"
)


def test_adult_layout(home: Path) -> None:
    other = ADULT_ROW.replace("State-gov", "?").replace("39", "41").replace("<=", ">")
    write(home / "adult" / "adult.data", f"{ADULT_ROW}\n{other}\n\n")
    write(home / "adult" / "adult.test", f"|1x3 Cross validator\n{other}.\n\n")
    data = load("adult")
    assert data.test is not None
    assert data.train[0].shape == (2, 6 + 9) and data.train[1].tolist() == [0, 1]
    assert data.train[0][:, 0].tolist() == [-1, 1]  # age
    assert data.train[0][:, 1:3].tolist() == [[0, 1], [1, 0]]  # ?, State-gov
    assert torch.equal(data.test[0][0], data.train[0][1]) and data.test[1].tolist() == [1]


def test_adult_gone_wrong(home: Path) -> None:
    write(home / "adult.data", ADULT_ROW)
    for row, message in [
        (ADULT_ROW.replace("39", "x"), "adult.test, line 1, column age: not a number: 'x'"),
        (ADULT_ROW.replace("White", ""), "line 1: no race; unknown is written ?"),
        (ADULT_ROW.replace("White", "Blue"), "race 'Blue' is not in adult.data"),
        (ADULT_ROW.replace("<=50K", "50K"), "income is one of <=50K, >50K, got '50K'"),
        (ADULT_ROW.replace(", Male", ""), "14 columns, there must be 15"),
    ]:
        write(home / "adult.test", row)
        with pytest.raises(InvalidInput, match=re.escape(message)):
            load("adult")


def test_libsvm_format(home: Path) -> None:
    path = write(
        home / "f", gzip.compress(b"+1 1:0.5 3:2\n\n-1 # nothing\n2.5 2:1e-1 # a comment\n")
    )
    X, y = ud.libsvm(path)
    assert X.tolist() == [[0.5, 0, 2], [0, 0, 0], [0, pytest.approx(0.1), 0]]
    assert ud.libsvm(write(home / "g", "1 3:3 1:1\n"))[0].tolist() == [[1, 0, 3]]
    assert y.tolist() == [1, -1, 2.5] and ud.libsvm(str(path), features=5)[0].shape == (3, 5)
    for content, message in [
        ("", "f has no rows"),
        ("1 0:1", "indices are counted from 1, got 0"),
        ("1 1:1\n1 x:1", "f, line 2: lines are `label index:value ...`, got '1 x:1'"),
        ("1 1", "line 1"),
        ("a 1:1", "line 1"),
        ("1 1:nan", "f has NaN or Inf"),
        ("inf 1:1", "f has NaN or Inf"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            ud.libsvm(write(home / "f", content))
    with pytest.raises(InvalidInput, match="an index is 3, allowed are 1 to 2"):
        ud.libsvm(write(home / "f", "1 3:1"), features=2)


def test_libsvm_sets_with_their_test_file(home: Path) -> None:
    write(home / "a9a" / "a9a", "-1 3:1\n+1 123:1\n")
    assert load("a9a").test is None
    write(home / "a9a" / "a9a.t", "+1 1:1\n")
    data = load("a9a", test=True)
    assert data.test is not None and data.test[1].tolist() == [1]
    assert data.train[1].tolist() == [0, 1] and data.train[0].shape == (2, 123)
    write(home / "a9a" / "a9a.t", "0 1:1\n")
    with pytest.raises(InvalidInput, match=r"a9a.t: labels must be \[-1.0, 1.0\]"):
        load("a9a", test=True)
    write(home / "mushrooms" / "mushrooms", "1 1:1\n")
    with pytest.raises(InvalidInput, match="are not two classes"):
        load("mushrooms")


def test_digits_are_all_there_once() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    assert data.test is not None and data.prepare is not None
    both = torch.cat([data.train[0], data.test[0]]).flatten(1)
    whole = torch.from_numpy(load_digits().data).to(torch.uint8)  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(both.tolist()) == sorted(whole.tolist())
    assert float(data.prepare(data.train[0]).max()) == 1.0
    assert data.train[1][:8].tolist() == load("digits").train[1][:8].tolist()
