"""Damaged and hostile data files: every reader says in one line what is wrong, or reads.

python -m tests.faults.data_files 2000 0
"""

import gzip
import io
import json
import os
import random
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.faults.harness import Tally, run_as_script
from tests.support.data_files import idx, write
from undrift.core.errors import InvalidInput
from undrift.data.datasets import cifar, mnist
from undrift.data.datasets.libsvm import libsvm
from undrift.data.registry import load
from undrift.simulation.asynchronous.availability import Trace

ATTACK = "mutated data files"
Files = dict[str, bytes]


def _sources() -> dict[str, tuple[Files, Callable[[Path], object]]]:
    """Small files in the layouts of data sets, and what reads them."""
    rows = np.random.default_rng(0)
    windows = ["".join(rows.choice(list("abcde ,."), 80)) for _ in range(4)]
    user = {"x": windows, "y": list("abcd")}
    leaf = {"users": ["ann", "bob"], "num_samples": [4, 4], "user_data": {"ann": user, "bob": user}}
    heart = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n41,0,2,130,204,0,2,172,0,1.4,1,0,3,1\n" * 5
    header = "subject#,age,sex,test_time,motor_UPDRS,total_UPDRS," + ",".join(f"v{i}" for i in range(16))
    parkinsons = header + "\n" + "".join(f"{1 + i % 3},72,0,{i},28.2,34.4," + "0.5," * 15 + "1.5\n" for i in range(30))
    adult = "39, State-gov, 77516, Bachelors, 13, Never, Clerk, Not, White, Male, 2174, 0, 40, Cuba, <=50K\n" * 6
    images, labels = rows.integers(0, 255, (12, 4, 4)).astype("u1"), (np.arange(12) % 10).astype("u1")
    cifar_records = bytes(
        b"".join(bytes([i % 10]) + rows.integers(0, 255, 3072).astype("u1").tobytes() for i in range(3))
    )
    npz = io.BytesIO()
    signal = rows.integers(-99, 99, (6, 768)).astype("i2")
    np.savez_compressed(
        npz, x=signal, seg_len=np.array([256, 512]), seg_label=np.array([1, 2]), seg_user=np.array([1, 2])
    )
    device = {"active": [0, 50], "inactive": [20, 80], "finish_time": 100}
    named = lambda name: lambda home: load(name)
    idx_files = {
        f"mnist/{part}-{kind}.gz": gzip.compress(idx(array))
        for part in ("train", "t10k")
        for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels))
    }
    return {
        "libsvm": ({"a.libsvm": b"+1 1:0.5 3:1\n-1 2:1 3:0.25\n" * 4}, lambda home: libsvm(home / "a.libsvm")),
        "leaf": (
            {"leaf.json": json.dumps(leaf).encode()},
            lambda home: load("shakespeare", path=str(home / "leaf.json")),
        ),
        "heart": (
            {f"heart/processed.{h}.data": heart.encode() for h in ("cleveland", "hungarian", "switzerland", "va")},
            named("heart"),
        ),
        "parkinsons": ({"parkinsons/parkinsons_updrs.data": parkinsons.encode()}, named("parkinsons")),
        "adult": ({f"adult/adult.{p}": adult.encode() for p in ("data", "test")}, named("adult")),
        "mnist": (idx_files, named("mnist")),
        "cifar10": (
            {
                f"cifar10/cifar-10-batches-bin/{name}": cifar_records
                for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
            },
            named("cifar10"),
        ),
        "hapt": ({"hapt/hapt_int16.npz": npz.getvalue()}, named("hapt")),
        "tinyshakespeare": (
            {"tinyshakespeare/input.txt": b"ROMEO:\n" + b"Ay me what love " * 12 + b"\n\nJULIET:\n" + b"O Romeo " * 20},
            named("tinyshakespeare"),
        ),
        "trace": ({"trace.csv": b"client,from,to\n0,1,5\n1,0,9\n0,6,8\n"}, lambda home: Trace.read(home / "trace.csv")),
        "fedscale": (
            {"trace.json": json.dumps({"1": device, "2": device}).encode()},
            lambda home: Trace.read(home / "trace.json"),
        ),
    }


# what is done to a file


def _flip(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]


def _cut(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content))]


def _insert(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content))
    junk = dice.choice(
        [b"\0", b"\xff\xfe", b"nan", b"1e999", b"-1", b"9" * 30, b'"', b"\r", b"\xed\xa0\x80", b"\t", b"[" * 50_000]
    )
    return content[:at] + junk + content[at:]


def _drop_line(content: bytes, dice: random.Random) -> bytes:
    lines = content.split(b"\n")
    del lines[dice.randrange(len(lines))]
    return b"\n".join(lines)


def _other_number(content: bytes, dice: random.Random) -> bytes:
    """A number of the text becomes another one."""
    places = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        return _flip(content, dice)
    at = dice.choice(places)
    number = dice.choice([b"-1", b"0", b"1e300", b"nan", b"inf", b"1000000000000", b"null", b"{}", b'"a"', b"3.5"])
    return content[:at] + number + content[at + 1 :]


def _other_value(content: bytes, dice: random.Random) -> bytes:
    """A value of a JSON file becomes something else."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return _flip(content, dice)
    node = tree
    while isinstance(node, (dict, list)) and node:
        key = dice.choice(list(node)) if isinstance(node, dict) else dice.randrange(len(node))
        if dice.random() < 0.4 or not isinstance(node[key], (dict, list)):
            node[key] = dice.choice([3, -1, None, [], {}, "", "\ud800", 1e300, float("nan"), True, [[1]], 10**30])
            break
        node = node[key]
    return json.dumps(tree).encode()


def _bomb(content: bytes, dice: random.Random) -> bytes:
    """A small file that unpacks to a large one."""
    if content.startswith(b"PK"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("x.npy", "seg_len.npy", "seg_label.npy", "seg_user.npy"):
                archive.writestr(name, bytes(10**8))
        return file.getvalue()
    return gzip.compress(bytes(2 * 10**8), 1)


MUTATIONS = (_flip, _flip, _cut, _insert, _insert, _drop_line, _other_number, _other_number, _other_value, _other_value)


def main(tries: int, seed: int) -> Tally:
    """So many damaged files, read."""
    dice, tally, sources = random.Random(seed), Tally(ATTACK), _sources()
    before = {name: os.environ.get(name) for name in ("UNDRIFT_DATA", "XDG_CACHE_HOME", "UNDRIFT_OFFLINE")}
    published = mnist._CHECKSUMS, cifar._CHECKSUMS
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        home = Path(folder)
        os.environ |= {"UNDRIFT_DATA": folder, "XDG_CACHE_HOME": f"{folder}/cache", "UNDRIFT_OFFLINE": "1"}
        mnist._CHECKSUMS, cifar._CHECKSUMS = {}, {}
        try:
            for files, read in sources.values():  # they are sound as they are
                for name, content in files.items():
                    write(home / name, content)
                read(home)
            for number in range(tries):
                kind = dice.choice(list(sources))
                files, read = sources[kind]
                name = dice.choice(list(files))
                mutate = _bomb if number % 200 == 7 else dice.choice(MUTATIONS)
                write(home / name, mutate(files[name], dice))
                try:
                    read(home)
                    tally.survive()
                except InvalidInput as error:
                    tally.refuse(error)
                except Exception as error:
                    tally.crash(f"{kind}, {name}, {mutate.__name__}: {type(error).__name__}: {error}")
                write(home / name, files[name])
        finally:
            mnist._CHECKSUMS, cifar._CHECKSUMS = published
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
    return tally


if __name__ == "__main__":
    run_as_script(main)
