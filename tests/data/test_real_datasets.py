"""The real data sets: the counts and properties that their sources publish."""

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.data_files import same
from tests.support.real_data import real_data
from undrift.core.errors import InvalidInput
from undrift.core.rng import Key
from undrift.data import store
from undrift.data.datasets import har, mnist, shakespeare
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


@pytest.mark.slow
@pytest.mark.xdist_group("cifar")
def test_cifar10_restored(cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(cifar10, tmp_path, dirs_exist_ok=True)
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


@pytest.mark.parametrize(
    "clients", [ud.Natural(at_least=2000, at_most=2000, choose=100), ud.IID(100, size=2000, shared=False)], ids=str
)
def test_shakespeare_is_that_of_ghbms_table_6(real: Callable[..., Data], clients: object, capsys: object) -> None:
    """100 clients of 2000 examples, 80 classes, 20 local steps; by role clients differ, dealt at random they do not."""
    settings = {"model": ud.models.char_lstm(), "loss": F.cross_entropy, "clients": clients}
    problem = ud.federate(real("shakespeare"), **settings)  # pyright: ignore[reportArgumentType]
    problem.describe(batch=100)
    said = capsys.readouterr().out  # pyright: ignore[reportAttributeAccessIssue]
    assert said.startswith("100 clients by ") and " 200,000 samples," in said
    assert "samples a client: 2000 to 2000, median 2000, mean 2000\n" in said
    assert "local steps an epoch with batch 100: 20 to 20, mean 20\n" in said
    assert ud.Local(batch=100).count(problem, Key(0, 1), range(100)) == [20] * 100
    found = problem.heterogeneity()
    assert found.classes is not None and 70 <= found.classes <= 80  # some characters are rare
    roles = real("shakespeare").clients
    assert roles is not None
    held = [len(roles[problem.samples(i)].unique()) for i in range(100)]
    assert held == [1] * 100 if isinstance(clients, ud.Natural) else min(held) > 200


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
