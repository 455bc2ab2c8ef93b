"""Readers of text: Shakespeare by speaking role (LEAF), tinyshakespeare by speaker, Stack Overflow by user."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data import store
from undrift.data.registry import DATASETS, IGNORED, Data

# LEAF's 80 characters; a character's code is its place
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
TINY_ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LENGTH = 80
LEAF_HOME = (
    "no archive of it is hosted: in a copy of https://github.com/TalwalkarLab/leaf run "
    "`./preprocess.sh -s niid --sf 1.0 -k 0 -t sample -tf 0.9` in data/shakespeare "
    "and put its folder `data` there"
)
TINY_HOME = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
STACKOVERFLOW_HOME = (
    "unpack stackoverflow.tar.bz2 and stackoverflow.word_count.tar.bz2 of "
    "https://storage.googleapis.com/tff-datasets-public/"
)
PAD = 0  # Stack Overflow: words are 1 to n, then unknown words, beginning and end of a sentence


@dataclass(frozen=True, eq=False)
class Windows:
    """Start positions to the `length` codes that begin there, int64 [..., length]: overlapping windows, one text.

    >>> Windows(torch.tensor([5, 6, 7, 8], dtype=torch.uint8), 2)(torch.tensor([0, 2]))
    tensor([[5, 6],
            [7, 8]])
    """

    text: Tensor = field(repr=False)
    length: int

    def __call__(self, batch: Tensor) -> Tensor:
        start = batch.to(self.text.device, torch.int64).unsqueeze(-1)
        steps = torch.arange(self.length, device=self.text.device)
        return self.text[start + steps].to(batch.device, torch.int64)


@dataclass(frozen=True)
class Codes:
    """Codes in few bytes to int64, which an embedding takes."""

    def __call__(self, batch: Tensor) -> Tensor:
        return batch.long()


@dataclass(frozen=True)
class Role:
    """What a client has said: a text, and where in it the windows begin; a window's target is `targets`."""

    text: np.ndarray  # uint8 codes
    starts: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)


def shakespeare(path: str | Path | None = None, length: int = LENGTH) -> Data:
    """LEAF's Shakespeare by speaking role: predict the character after 80; 80 classes.

    path     a JSON file (plain or gzip) or a folder of them in LEAF's form; by default what lies with the data set:
             data/train and data/test, or data/all_data, or all_data.json, or shakespeare_by_role.json.gz
    length   of the windows

    A user of LEAF's form has lists x (windows) and y (next characters), or `raw` text, which is cut into all its
    windows.  Data that come in one part are split by role in the order of time: the last tenth (at least one window)
    is for testing.  A test target is then never part of a training window, though the text before it may be.  Roles
    with fewer than two windows are left out.  Stored inputs are positions in one text; `prepare` gives windows.
    """
    _check_length("shakespeare", length)
    train_files, test_files = _leaf_files(path)
    if test_files:
        train, test = leaf(train_files, length), leaf(test_files, length)
    else:
        train, test = split_in_time(leaf(train_files, length))
    return _windowed("shakespeare", train, test, length, len(ALPHABET), [*train_files, *test_files])


def tinyshakespeare(length: int = LENGTH) -> Data:
    """tinyshakespeare with its speakers as clients: predict the character after `length`; 65 classes.

    A speaker's lines are joined in their order, whatever play they are from.  The last tenth of the windows of each
    speaker is for testing; speakers with fewer than two windows are left out.
    """
    _check_length("tinyshakespeare", length)
    path = store.find(
        "tinyshakespeare",
        "input.txt",
        url=TINY_HOME,
        aliases=[
            "tinyshakespeare.txt",
            "tinyshakespeare.txt.gz",
            "shakespeare/tinyshakespeare.txt.gz",
        ],
    )
    said = speakers(store.read_text(path))
    roles = {
        name: windows(encode(text, TINY_ALPHABET, f"{path}, {name}"), length)
        for name, text in said.items()
    }
    train, test = split_in_time(roles)
    return _windowed("tinyshakespeare", train, test, length, len(TINY_ALPHABET), [path])


def speakers(text: str) -> dict[str, str]:
    """Who says what in a text of paragraphs that begin with a line `Name:`.

    >>> speakers("ROMEO:\\nAy me!\\n\\nJULIET:\\nO Romeo!\\n\\nROMEO:\\nCall me but love.\\n")
    {'ROMEO': 'Ay me!\\nCall me but love.', 'JULIET': 'O Romeo!'}
    """
    said: dict[str, list[str]] = {}
    for paragraph in re.split(r"\n\n+", text.strip("\n")):
        name, _, lines = paragraph.partition("\n")
        if not name.endswith(":"):
            raise InvalidInput(
                f"a paragraph of the text begins with {name[:40]!r}; each must begin with a line `Name:`"
            )
        said.setdefault(name[:-1], []).append(lines)
    return {name: "\n".join(parts) for name, parts in said.items()}


def encode(text: str, alphabet: str, where: str) -> np.ndarray:
    """Characters as uint8 codes, their places in the alphabet.

    >>> encode("cab", "abc", "here").tolist()
    [2, 0, 1]
    """
    table = np.full(0x110000 if not text.isascii() else 128, 255, dtype=np.uint8)
    table[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    codes = table[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    if (codes == 255).any():
        raise InvalidInput(
            f"{where}: the character {text[int(np.argmax(codes == 255))]!r} is not one of the "
            f"{len(alphabet)} of the alphabet"
        )
    return codes


def windows(text: np.ndarray, length: int) -> Role:
    """All windows of a text that have a character after them."""
    starts = np.arange(max(0, len(text) - length))
    return Role(text, starts, text[starts + length])


def split_in_time(roles: Mapping[str, Role]) -> tuple[dict[str, Role], dict[str, Role]]:
    """The first nine tenths of the windows of each role, and the last tenth, at least one; who has one is left out."""
    early, late = {}, {}
    for name, role in roles.items():
        if len(role) < 2:
            continue
        n = len(role) - max(1, len(role) // 10)
        early[name] = Role(role.text, role.starts[:n], role.targets[:n])
        late[name] = Role(role.text, role.starts[n:], role.targets[n:])
    return early, late


def leaf(files: Sequence[Path], length: int = LENGTH) -> dict[str, Role]:
    """Users of LEAF's JSON files, in their order; a user who is in several files has the windows of all."""
    found: dict[str, list[Role]] = {}
    for file in files:
        for user, role in _leaf_users(file, length):
            found.setdefault(user, []).append(role)
    joined = {user: _joined(roles) for user, roles in found.items()}
    return {user: role for user, role in joined.items() if len(role) > 0}


def stackoverflow(
    clients: int | None = None,
    sentences: int | None = None,
    vocabulary: int = 10_000,
    length: int = 20,
    verify: bool = False,
) -> Data:
    """Stack Overflow by user, in the HDF5 files of TensorFlow Federated: predict every next word.

    clients      the first so many users, in the order of their names, for testing the same; None: all 342,477
    sentences    at most so many of each user, the first ones
    vocabulary   the most frequent words that have a code; with padding, unknown, begin and end there are 4 more classes
    length       of the sequences; longer sentences are cut, shorter ones padded with 0
    verify       also take the sha256 of the HDF5 files, which are tens of gigabytes

    Inputs are int16 [n, length], a sentence after its begin mark; targets int64 [n, length], the same one place on, where
    -100 is padding, which F.cross_entropy and accuracy leave out.  A sentence takes 200 bytes.  Needs h5py.
    """
    for name, value in (
        ("clients", clients),
        ("sentences", sentences),
        ("vocabulary", vocabulary),
        ("length", length),
    ):
        if value is not None and value < 1:
            raise InvalidInput(f"stackoverflow: {name} must be 1 or more, got {value}")
    if vocabulary > 32_000:
        raise InvalidInput(f"stackoverflow: vocabulary must be at most 32,000, got {vocabulary}")
    files = [
        store.find("stackoverflow", name, home=STACKOVERFLOW_HOME)
        for name in ("stackoverflow.word_count", "stackoverflow_train.h5", "stackoverflow_test.h5")
    ]
    words = most_frequent(files[0], vocabulary)
    users, counts, train = _sentences(files[1], words, length, clients, sentences, None)
    known = {user: i for i, user in enumerate(users)}
    # a cut of the training users cuts the test to the same ones: what is left is comparable
    only = known if clients is not None else None
    test_users, test_counts, test = _sentences(files[2], words, length, None, sentences, only)
    test_numbers = np.array([known.get(user, -1) for user in test_users], dtype=np.int64)
    return Data(
        "stackoverflow",
        train,
        test if test_users else None,
        torch.from_numpy(np.repeat(np.arange(len(users)), counts)),
        torch.from_numpy(np.repeat(test_numbers, test_counts)) if test_users else None,
        tuple(users),
        classes=len(words) + 4,
        prepare=Codes(),
        checksums=store.checksums(files if verify else files[:1]),
        about=DATASETS["stackoverflow"].about,
    )


def most_frequent(path: Path, n: int) -> dict[str, int]:
    """The codes 1 to n of the words of a file with lines `word count`, the most frequent first."""
    words: dict[str, int] = {}
    lines = store.read_text(path).splitlines()
    for number, line in enumerate(lines[:n], start=1):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdecimal() or word in words:
            raise InvalidInput(
                f"{path}, line {number}: must be a new word and its count, got {line[:40]!r}"
            )
        words[word] = number
    if len(words) < n:
        raise InvalidInput(f"{path} has {len(words)} words, {n} are needed: give vocabulary=...")
    return words


def sequence(sentence: str, words: Mapping[str, int], length: int) -> list[int]:
    """Begin mark, codes of at most `length` words, end mark if there is room, padding: length + 1 codes in all.

    >>> sequence("to be or", {"to": 1, "be": 2}, 5)
    [4, 1, 2, 3, 5, 0]
    """
    other, begin, end = (len(words) + k for k in (1, 2, 3))
    codes = [words.get(word, other) for word in sentence.split()[:length]]
    marked = [begin, *codes, end][: length + 1]
    return marked + [PAD] * (length + 1 - len(marked))


def _check_length(dataset: str, length: int) -> None:
    if length < 1:
        raise InvalidInput(f"{dataset}: length must be 1 or more characters, got {length}")


def _leaf_files(path: str | Path | None) -> tuple[list[Path], list[Path]]:
    """JSON files of the training part and of the test part; no test part: all is in the first."""
    if path is not None:
        root = Path(path)
        if root.is_file():
            return [root], []
        if (root / "train").is_dir() and (root / "test").is_dir():
            return _json_files(root / "train"), _json_files(root / "test")
        return _json_files(root), []
    for train, test in (("data/train", "data/test"), ("train", "test")):
        folder, other = (store.look_folder("shakespeare", [part]) for part in (train, test))
        if folder and other:
            return _json_files(folder), _json_files(other)
    whole = store.look_folder("shakespeare", ["data/all_data"])
    if whole:
        return _json_files(whole), []
    names = ["all_data.json", "all_data.json.gz", "shakespeare_by_role.json"]
    file = store.find("shakespeare", "shakespeare_by_role.json.gz", aliases=names, home=LEAF_HOME)
    return [file], []


def _json_files(folder: Path) -> list[Path]:
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not files:
        raise store.DataMissing(f"{folder} has no *.json files; {LEAF_HOME}")
    return files


def _leaf_users(file: Path, length: int) -> Iterator[tuple[str, Role]]:
    try:
        content = json.loads(store.read_text(file))
        users, counts, data = (content[key] for key in ("users", "num_samples", "user_data"))
        entries = [data[user] for user in users]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"{file} is not in LEAF's form, JSON with users, num_samples and user_data of each user "
            f"({type(error).__name__}: {error}): make it again"
        ) from error
    if len(counts) != len(users):
        raise InvalidInput(f"{file}: {len(users)} users and {len(counts)} num_samples")
    for user, count, entry in zip(users, counts, entries, strict=True):
        role = _leaf_role(f"{file}, {user}", entry, length)
        counted = (
            "x" in entry or length == LENGTH
        )  # num_samples of raw text counts LEAF's own windows
        if counted and len(role) != count:
            raise InvalidInput(
                f"{file}: {user} has {len(role)} windows of {length} characters, num_samples says {count}"
            )
        yield user, role


def _leaf_role(where: str, entry: Any, length: int) -> Role:
    if not isinstance(entry, dict) or not ({"x", "y"} <= entry.keys() or "raw" in entry):
        raise InvalidInput(f"{where}: must have lists x and y, or raw text")
    if "x" not in entry:
        raw = entry["raw"]
        if not isinstance(raw, str):
            raise InvalidInput(f"{where}: raw must be text, got {type(raw).__name__}")
        # as LEAF does before it cuts windows
        text = re.sub(r"  +", " ", raw.replace("\n", " "))
        return windows(encode(text, ALPHABET, where), length)
    x, y = entry["x"], entry["y"]
    if len(x) != len(y):
        raise InvalidInput(f"{where}: {len(x)} windows x and {len(y)} next characters y")
    wrong = [
        i for i, (w, c) in enumerate(zip(x, y, strict=True)) if (len(w), len(c)) != (length, 1)
    ]
    if wrong:
        i = wrong[0]
        raise InvalidInput(
            f"{where}: sample {i} has {len(x[i])} characters and then {len(y[i])}, allowed are {length} and 1"
        )
    text, after = (encode("".join(parts), ALPHABET, where) for parts in (x, y))
    return Role(text, np.arange(len(x)) * length, after)


def _joined(roles: Sequence[Role]) -> Role:
    if len(roles) == 1:
        return roles[0]
    begins = np.cumsum([0, *(len(role.text) for role in roles[:-1])])
    return Role(
        np.concatenate([role.text for role in roles]),
        np.concatenate([role.starts + b for role, b in zip(roles, begins, strict=True)]),
        np.concatenate([role.targets for role in roles]),
    )


def _windowed(
    dataset: str,
    train: Mapping[str, Role],
    test: Mapping[str, Role],
    length: int,
    classes: int,
    files: Sequence[Path],
) -> Data:
    """One text of all roles; where train and test share a role's text it is there once."""
    if not train or not test:
        raise InvalidInput(
            f"{dataset}: no role has windows of {length} characters to train and to test: take a smaller length"
        )
    place: dict[int, int] = {}
    texts: list[np.ndarray] = []
    end = 0
    for role in (*train.values(), *test.values()):
        if id(role.text) not in place:
            place[id(role.text)] = end
            texts.append(role.text)
            end += len(role.text)
    dtype = np.int32 if end < 2**31 else np.int64

    def pair(roles: Mapping[str, Role]) -> tuple[Tensor, Tensor]:
        starts = [(role.starts + place[id(role.text)]).astype(dtype) for role in roles.values()]
        targets = np.concatenate([role.targets for role in roles.values()])
        return torch.from_numpy(np.concatenate(starts)), torch.from_numpy(targets.astype(np.int64))

    names = tuple(train)
    number = {name: i for i, name in enumerate(names)}
    train_clients, test_clients = (
        torch.from_numpy(
            np.repeat(
                np.array([number.get(name, -1) for name in roles], dtype=np.int64),
                [len(role) for role in roles.values()],
            )
        )
        for roles in (train, test)
    )
    return Data(
        dataset,
        pair(train),
        pair(test),
        train_clients,
        test_clients,
        names,
        classes=classes,
        prepare=Windows(torch.from_numpy(np.concatenate(texts)), length),
        checksums=_checksums(files),
        about=DATASETS[dataset].about,
    )


def _checksums(files: Sequence[Path]) -> dict[str, str]:
    """With the folder in the name where files of train and test have the same."""
    unique = len({file.name for file in files}) == len(files)
    return {
        file.name if unique else f"{file.parent.name}/{file.name}": store.checksum(file)
        for file in files
    }


def _sentences(
    path: Path,
    words: Mapping[str, int],
    length: int,
    clients: int | None,
    sentences: int | None,
    only: Mapping[str, int] | None,
) -> tuple[list[str], list[int], tuple[Tensor, Tensor]]:
    """Users, how many sentences each has, and the sequences of all of them."""
    try:
        import h5py
    except ImportError as error:
        raise InvalidInput("stackoverflow: reading HDF5 needs h5py: pip install h5py") from error
    users: list[str] = []
    blocks: list[np.ndarray] = []
    try:
        with h5py.File(path, "r") as file:
            for user in islice(sorted(file["examples"]), clients):  # pyright: ignore[reportArgumentType]
                if only is not None and user not in only:
                    continue
                tokens = file[f"examples/{user}/tokens"][:sentences]  # pyright: ignore[reportIndexIssue]
                rows = [sequence(_words(line), words, length) for line in tokens]  # pyright: ignore[reportGeneralTypeIssues]
                if rows:
                    users.append(user)
                    blocks.append(np.array(rows, dtype=np.int16))
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:  # as HDF5 has it
        raise InvalidInput(
            f"{path} cannot be read ({error}): it must be HDF5 with examples/<user>/tokens; get it again"
        ) from error
    codes = np.concatenate(blocks or [np.zeros((0, length + 1), np.int16)])
    inputs, targets = np.ascontiguousarray(codes[:, :-1]), codes[:, 1:].astype(np.int64)
    targets[targets == 0] = IGNORED
    counts = [len(block) for block in blocks]
    return users, counts, (torch.from_numpy(inputs), torch.from_numpy(targets))


def _words(line: Any) -> str:
    return line.decode("utf-8") if isinstance(line, bytes) else str(line)
