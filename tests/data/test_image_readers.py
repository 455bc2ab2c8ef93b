"""Readers of images: small files in the original layouts, and damaged ones."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.data_files import idx, write
from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.datasets import federated_vision, mnist
from undrift.data.registry import load


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
    monkeypatch.setattr(mnist, "_CHECKSUMS", hashes)
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
    picture(home / "gldv2" / "train" / "a" / "b" / "c" / "abc1.jpg", (0, 0, 0), size=(60_000, 1))
    with pytest.raises(InvalidInput, match="abc1.jpg, 60000 x 1, would take .* GiB of memory"):  # as wide as it is high
        load("gldv2", size=1000).prepare(torch.tensor([0]))  # pyright: ignore[reportOptionalCall]
    with pytest.raises(InvalidInput, match="is not a folder"):
        load("gldv2", images=home / "nowhere")
    with pytest.raises(InvalidInput, match="size must lie in"):
        load("gldv2", size=0)
